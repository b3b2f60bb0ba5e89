"""One run: a configuration in; learning curve, weights, predictions, result and environment out.

runs/name/
config.json  environment.json   what was asked for, and what it ran on
curve.jsonl                     the learning curve; tensorboard/ too, if asked for
predictions.jsonl               one line for each test example
checkpoints/                    to resume from, if asked for; gone when the run is finished
model/                          the trained weights with a model card, if asked for
result.json                     written last: a run without it is not finished
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

import torch

from numerate.lab.config import NO_EFFECT, PLAIN, RunConfig
from numerate.lab.data import Collator, training_data
from numerate.lab.environment import environment, is_first_process
from numerate.lab.evaluate import Progress, evaluate
from numerate.lab.models import LoadedModel, Reader, load_model, load_reader
from numerate.lab.records import write_json, write_jsonl, write_text
from numerate.lab.tasks import TASKS, Task
from numerate.lab.tasks.base import Split
from numerate.lab.tasks.regression import LEAST_ROWS
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from transformers import Trainer

RESULT = "result.json"


def run(config: RunConfig, folder: Path, *, resume: bool = True, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Train and evaluate; gives what ``result.json`` holds. ``resume`` goes on from the last checkpoint, if there is one.

    Started in several processes (``accelerate launch``), all of them train, and the first alone writes and evaluates; the
    others get nothing.
    """
    first = is_first_process()
    task = make_task(config)
    reader = load_reader(config.model, trust_remote_code=config.trust_remote_code)
    check_fit(config, task, reader)
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", {**config.model_dump(mode="json"), "label": config.name})
    loaded = load_model(
        config.model,
        seed=config.seed,
        dtype=_weights(config),
        adapter=config.adapter,
        rank=config.rank,
        reader=reader,
        trust_remote_code=config.trust_remote_code,
    )
    if first:
        write_json(folder / "environment.json", environment())
    cost = train(config, task, loaded, folder, resume=resume, progress=progress)
    if not first:
        return {}
    begin = time.perf_counter()
    records = evaluate(config, task, loaded, progress=progress, images=folder)
    write_jsonl(folder / "predictions.jsonl", records)
    if config.keep_model:
        save_model(config, loaded, folder / "model", records)
    result = {
        "hash": config.hash,
        "label": config.name,
        "headline": task.measures[0],
        "splits": {split: {"n": n} for split, n in Counter(record["split"] for record in records).items()},
        "skipped_rows": len(task.skipped),
        "notes": list(task.notes),
        "cost": cost | {"eval_seconds": time.perf_counter() - begin},
    }
    write_json(folder / RESULT, result)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def claim(config: RunConfig, folder: Path, *, resume: bool = False, overwrite: bool = False) -> bool:
    """Check that a run may write to ``folder``; False if this very run is finished there.

    ``overwrite`` deletes the files of the run that is there. Other results are never overwritten.
    """
    if overwrite and resume:
        raise ValueError("overwrite=True starts over and resume=True goes on: expected one of them.")
    check_writable(folder)
    if overwrite:
        if is_first_process():
            _delete_run(folder)
        return True
    finished, begun = (folder / RESULT).is_file(), (folder / "checkpoints").is_dir()
    if not finished and not begun:
        return True
    state = "a finished run" if finished else "a run that was interrupted"
    ways = "name another folder with --out, or start over there with --overwrite"
    if not resume:
        raise ValueError(f"{folder} holds {state}: {ways if finished else f'go on with --resume, {ways}'}.")
    held = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    mine = config.model_dump(mode="json", exclude=set(NO_EFFECT))
    other = [f"{name} is {held.get(name)!r} there and {value!r} here" for name, value in mine.items() if held.get(name) != value]
    if other:
        raise ValueError(f"{folder} holds {state} with other settings ({', '.join(other)}): {ways}.")
    return not finished


def check_writable(folder: Path) -> None:
    """Make a folder, and raise if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}): name another folder with --out.") from None


def _delete_run(folder: Path) -> None:
    """Delete the files that a run and its evaluations wrote, the result first: what is left is no finished run."""
    names = (RESULT, "predictions.jsonl", "curve.jsonl", "environment.json", "config.json")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for kept in [*(folder / name for name in ("checkpoints", "model", "images", "tensorboard")), *folder.glob("eval-*")]:
        shutil.rmtree(kept, ignore_errors=True)


def make_task(config: RunConfig) -> Task:
    """The task of a configuration, generated or read."""
    kind = TASKS[config.task]
    if config.data is None:
        return kind(**config.task_settings)
    return kind.from_files(config.data, skip_bad=config.skip_bad, **config.task_settings)


def _weights(config: RunConfig) -> torch.dtype:
    """Weights that are trained stay in float32; those beneath an adapter need not."""
    return torch.bfloat16 if config.bf16 and config.adapter != "none" else torch.float32


def check_fit(config: RunConfig, task: Task, reader: Reader) -> None:
    """Raise for a model that does not fit the task, or a loss that does not fit the tokenizer."""
    check_rows(config, task)
    if task.examples("train", 1)[0].image is not None and not reader.sees:
        raise ValueError(
            f"model={config.model!r} sees no pictures, which task={config.task!r} has: expected a vision-language model, "
            "such as tiny-vlm."
        )
    make_objective(config, reader)


def check_rows(config: RunConfig, task: Task) -> None:
    """Raise for data that were read from files and leave no row to train on, or none to test on."""
    trained = task.count("train")
    if trained is None:
        return
    tested = trained if config.validation else sum(task.count(split) or 0 for split in config.eval_splits)
    if not trained or not tested:
        splits = "validation" if config.validation else " or ".join(config.eval_splits)
        counts = ", ".join(f"{task.count(split) or 0} of {split}" for split in get_args(Split))
        raise ValueError(
            f"data={config.data!r} has no row to {'test' if trained else 'train'} on ({counts}; to be tested: {splits}): "
            f"expected a table of at least {LEAST_ROWS} different rows, a fifth of which are kept for the test, or data with "
            "splits of their own, such as a column `split` with train and test."
        )


def make_objective(config: RunConfig, reader: Reader) -> NumericObjective | None:
    """None for plain cross-entropy."""
    if config.loss == PLAIN:
        return None
    vocab = NumericVocab.from_tokenizer(reader.tokenizer)
    loss = LOSSES[config.loss](vocab, **config.loss_settings)
    return NumericObjective(loss, config.weight, config.normalize, config.scale)


# Training


def train(
    config: RunConfig, task: Task, loaded: LoadedModel, folder: Path, *, resume: bool = True, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Train the model in place; gives what it cost."""
    data, too_long = training_data(config, task, loaded)
    checkpoint = _last_checkpoint(folder) if resume else None
    trainer = make_trainer(config, loaded, data, folder, checkpoint)
    watch = _watch(config, folder / "curve.jsonl", progress)
    trainer.add_callback(watch)
    objective = make_objective(config, loaded)
    attachment = None
    if objective is not None:
        from numerate.integrations.transformers import attach

        attachment = attach(trainer, objective)
    begin = time.perf_counter()
    trainer.train(resume_from_checkpoint=checkpoint)
    if attachment is not None:
        attachment.detach()
    seconds = time.perf_counter() - begin
    return {
        "steps": config.steps,
        "train_seconds": seconds,
        "ms_per_step": median(watch.step_ms) if watch.step_ms else None,
        "tokens_per_second": (watch.tokens - watch.tokens_before) / seconds,
        "peak_mib": watch.peak_mib,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "trained_parameters": sum(p.numel() for p in loaded.model.parameters() if p.requires_grad),
        "examples_too_long": too_long,
    }


def make_trainer(config: RunConfig, loaded: LoadedModel, data: Any, folder: Path, checkpoint: str | None) -> Trainer:
    """A Hugging Face Trainer with these settings, to go on from the checkpoint, that prints nothing."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    args = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=config.steps,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulation,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(config.warmup * config.steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        data_seed=config.seed,
        bf16=config.bf16,
        use_cpu=not torch.cuda.is_available(),
        train_sampling_strategy="sequential",  # the data come in the order they are trained on
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        dataloader_num_workers=_loaders(data),
        logging_steps=config.log_every,
        logging_first_step=True,
        save_strategy="no" if config.save_every is None else "steps",
        save_steps=config.save_every or 500,
        save_total_limit=1,
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        report_to="none",
    )
    assert loaded.tokenizer.pad_token_id is not None
    trainer = Trainer(loaded.model, args, train_dataset=data, data_collator=Collator(int(loaded.tokenizer.pad_token_id)))
    trainer.remove_callback(PrinterCallback)
    if config.tensorboard and is_first_process():
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations import TensorBoardCallback

        # Hides what an earlier attempt logged from this step on.
        first_step = 1 + (0 if checkpoint is None else int(checkpoint.rpartition("-")[2]))
        trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)))
    return trainer


def _loaders(data: Any) -> int:
    """Processes that draw pictures while the GPU computes; on a CPU they would only take its cores."""
    pictures = any(isinstance(value, torch.Tensor) for value in data[0].values())
    return min(8, (os.cpu_count() or 1) // 2) if pictures and torch.cuda.is_available() else 0


def _last_checkpoint(folder: Path) -> str | None:
    from transformers.trainer_utils import get_last_checkpoint

    checkpoints = folder / "checkpoints"
    return get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None


def _watch(config: RunConfig, curve: Path, progress: Progress) -> Any:
    """A callback that keeps the learning curve and the time of each step."""
    from transformers import TrainerCallback

    from numerate.lab.records import plain

    class Watch(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.step_ms: list[float] = []
            self.tokens = self.tokens_before = 0  # of the whole run, and until the checkpoint
            self.peak_mib: float | None = None
            self.begin = self.started = time.perf_counter()
            self.last: dict[str, float] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero:
                return
            curve.parent.mkdir(parents=True, exist_ok=True)
            # Lines of steps after the checkpoint, and a line cut short, are logged again.
            lines = curve.read_text(encoding="utf-8").split("\n")[:-1] if curve.is_file() and state.global_step else []
            kept = [line for line in lines if json.loads(line)["step"] <= state.global_step]
            curve.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            self.tokens = self.tokens_before = int(state.num_input_tokens_seen or 0)
            self.begin = time.perf_counter() - (json.loads(kept[-1])["seconds"] if kept else 0.0)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available() and state.global_step % args.logging_steps == 0:
                torch.cuda.synchronize()
                self.peak_mib = torch.cuda.max_memory_allocated() / 2**20
            if state.global_step > 3:  # the first are slower
                self.step_ms.append((time.perf_counter() - self.started) * 1000)
            progress("train", state.global_step, state.max_steps, self.last)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs is None or "loss" not in logs or not state.is_world_process_zero:
                return
            shown = ("loss", "numeric/", "learning_rate", "grad_norm")
            self.last = {name: float(value) for name, value in logs.items() if name.startswith(shown)}
            self.tokens = int(state.num_input_tokens_seen or 0)
            point = {"step": state.global_step, **self.last, "seconds": time.perf_counter() - self.begin}
            with curve.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(point)) + "\n")

    return Watch()


# Weights


def save_model(config: RunConfig, loaded: LoadedModel, folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Weights, tokenizer and a model card; under another name until all of it is there."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    loaded.model.save_pretrained(part)
    (loaded.processor or loaded.tokenizer).save_pretrained(part)
    write_text(part / "README.md", model_card(config, records))
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def model_card(config: RunConfig, records: Sequence[dict[str, Any]]) -> str:
    """What the weights are, how they were trained, and how well they do."""
    rows = []
    for split in dict.fromkeys(record["split"] for record in records):
        mine = [record["measures"] for record in records if record["split"] == split]
        exact = [measures.get("exact") for measures in mine if measures.get("exact") is not None]
        rows.append(f"| {split} | {len(mine)} | {sum(exact) / len(exact):.3f} |" if exact else f"| {split} | {len(mine)} | - |")
    objective = "cross-entropy" if config.loss == PLAIN else f"cross-entropy + {config.weight:g} x `{config.loss}`"
    settings = "\n".join(f"- {name}: `{value}`" for name, value in config.model_dump(mode="json").items())
    return f"""---
library_name: transformers
base_model: {config.model}
tags: [numerate, {config.loss}]
---
# {config.model} on {config.task}

Trained with {objective} for {config.steps:,} steps with numerate.

| split | examples | exact |
|---|---|---|
{chr(10).join(rows)}

## Settings

{settings}
"""
