"""Compare the time of a training step with that of the model's forward and backward pass on the same batches.

python scripts/training_speed.py smollm2 arithmetic 64
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from numerate.lab.config import RunConfig
from numerate.lab.data import collate, training_data
from numerate.lab.models import load_model
from numerate.lab.splits import training_examples
from numerate.lab.train import check_fit, find_pictures, make_task, train

STEPS, BARE, WARM_UP = 60, 25, 5


def main(model: str, task_name: str, batch_size: int) -> None:
    """Print milliseconds and tokens per second of both."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for loss in ("ce", "smmd"):
        config = RunConfig(
            model=model, task=task_name, loss=loss, steps=STEPS, batch_size=batch_size, bf16=device == "cuda", train_examples=3000
        )
        task, loaded = make_task(config), load_model(model)
        if loss == "ce":
            examples = training_examples(task, config.train_examples, config.seed)
            sizes = {"batch_size": batch_size, "batches": BARE, "seed": config.seed, "max_length": config.max_length}
            data, _ = training_data(loaded, examples, **sizes)
            rows = [[data[batch * batch_size + row] for row in range(batch_size)] for batch in range(BARE)]
            batches = [{name: value.to(device) for name, value in collate(batch, pad=loaded.pad).items()} for batch in rows]
            loaded.model.to(device).train()
            for step, batch in enumerate(batches):
                if step == WARM_UP:
                    begin = _now(device)
                with torch.autocast(device, torch.bfloat16, enabled=config.bf16):
                    out = loaded.model(**batch).loss
                out.backward()
                loaded.model.zero_grad()
            seconds = _now(device) - begin
            tokens = sum(int(batch["attention_mask"].sum()) for batch in batches[WARM_UP:])
            print(f"forward + backward: {1000 * seconds / (BARE - WARM_UP):.1f} ms, {tokens / seconds:,.0f} tokens/s")
        with tempfile.TemporaryDirectory() as folder:
            find_pictures([config], task, loaded, Path(folder), None, lambda *_: None)
            cost = train(config, task, loaded, check_fit(config, task, loaded), Path(folder))
        whole = 1000 * cost["train_seconds"] / STEPS
        print(f"{loss}: step {cost['ms_per_step']:.1f} ms, {whole:.1f} ms with data loading and logging")


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
