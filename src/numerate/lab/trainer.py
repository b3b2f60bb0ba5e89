"""Train a model with the Hugging Face Trainer, and record the learning curve, the time per step and the memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from numerate.integrations.transformers import attach
from numerate.lab.data import collate
from numerate.lab.models import LoadedModel, quietly
from numerate.lab.progress import Progress
from numerate.lab.records import is_first_process, plain
from numerate.lab.validation import Validation
from numerate.objective import NumericObjective
from numerate.objective.no_loss import NoLoss


def fit(
    loaded: LoadedModel,
    data: Any,
    objective: NumericObjective | None,
    arguments: dict[str, Any],
    folder: Path,
    *,
    tensorboard: bool = False,
    checkpoint: str | None = None,
    validation: Validation | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Train the model in place on rows in training order, and return the cost.

    ``arguments`` are those of ``TrainingArguments``. ``objective=None`` trains with cross-entropy alone. ``folder`` receives
    ``curve.jsonl`` and ``tensorboard/``. ``checkpoint`` is the folder to resume from. ``validation`` joins the curve.
    """
    trainer = make_trainer(loaded, data, arguments)
    if tensorboard and is_first_process():
        trainer.add_callback(_board(folder / "tensorboard", checkpoint))
    numeric = objective is not None and not isinstance(objective.numeric_loss, NoLoss)
    recorder = _CurveRecorder(folder / "curve.jsonl", progress, numeric=numeric)
    trainer.add_callback(recorder)
    if validation is not None:
        trainer.add_callback(_Validating(validation, recorder, folder / "checkpoints" / "best.pt"))
    detach: Callable[[], object] = attach(trainer, objective).detach if objective is not None else lambda: None
    begin = time.perf_counter()
    with quietly():  # checkpoints
        trainer.train(resume_from_checkpoint=checkpoint)
    detach()
    if validation is not None:
        validation.restore()
    seconds = time.perf_counter() - begin
    return {
        "steps": arguments["max_steps"],
        "train_seconds": seconds,
        "ms_per_step": median(recorder.step_ms) if recorder.step_ms else None,
        "tokens_per_second": (recorder.tokens - recorder.tokens_before) / seconds,
        "peak_mib": recorder.peak_mib,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "trained_parameters": sum(p.numel() for p in loaded.model.parameters() if p.requires_grad),
    }


def make_trainer(loaded: LoadedModel, data: Any, arguments: dict[str, Any]) -> Trainer:
    """Return a Trainer that reads ``data`` in order and prints nothing."""
    cuda = torch.cuda.is_available()
    has_pictures = any(isinstance(value, torch.Tensor) for value in data[0].values())
    args = TrainingArguments(
        **arguments,
        use_cpu=not cuda,
        train_sampling_strategy="sequential",  # the data are in training order
        remove_unused_columns=False,
        dataloader_pin_memory=cuda,
        # Workers read pictures while the GPU computes. On a CPU they would compete for its cores.
        dataloader_num_workers=min(8, (os.cpu_count() or 1) // 2) if has_pictures and cuda else 0,
        logging_first_step=True,
        save_total_limit=1,
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        report_to="none",
    )
    trainer = Trainer(loaded.model, args, train_dataset=data, data_collator=partial(collate, pad=loaded.pad))
    trainer.remove_callback(PrinterCallback)
    return trainer


def _board(folder: Path, checkpoint: str | None) -> TrainerCallback:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    # purge_step hides what an interrupted run logged after the checkpoint.
    first_step = 1 + (0 if checkpoint is None else int(checkpoint.rpartition("-")[2]))
    return TensorBoardCallback(SummaryWriter(str(folder), purge_step=first_step))


class _CurveRecorder(TrainerCallback):  # type: ignore[misc]
    """Callback that writes the learning curve and measures each step."""

    def __init__(self, curve: Path, progress: Progress, *, numeric: bool) -> None:
        self.curve, self.progress, self.numeric = curve, progress, numeric
        self.step_ms: list[float] = []
        self.tokens = self.tokens_before = 0  # of the whole run, and up to the checkpoint
        self.peak_mib: float | None = None
        self.begin = self.step_begin = time.perf_counter()
        self.figures: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the lines of the curve up to the checkpoint: later ones, and an incomplete one, are logged again."""
        if not state.is_world_process_zero:
            return
        self.curve.parent.mkdir(parents=True, exist_ok=True)
        resumed = self.curve.is_file() and state.global_step
        lines = self.curve.read_text(encoding="utf-8").split("\n")[:-1] if resumed else []
        valid = [line for line in lines if json.loads(line)["step"] <= state.global_step]
        self.curve.write_text("".join(f"{line}\n" for line in valid), encoding="utf-8")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.tokens = self.tokens_before = int(state.num_input_tokens_seen or 0)
        self.begin = time.perf_counter() - (json.loads(valid[-1])["seconds"] if valid else 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available() and state.global_step % args.logging_steps == 0:
            torch.cuda.synchronize()
            self.peak_mib = torch.cuda.max_memory_allocated() / 2**20
        if state.global_step > 3:  # the first steps are slower
            self.step_ms.append((time.perf_counter() - self.step_begin) * 1000)
        self.progress("train", state.global_step, state.max_steps, self.figures)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs is None or "loss" not in logs or not state.is_world_process_zero:
            return
        # Without a numeric term the loss has no parts, but its numbers may not end.
        parts = ("loss/", "numeric/") if self.numeric else ("numeric/overrun",)
        self.figures = {
            name: float(value)
            for name, value in logs.items()
            if name in ("loss", "learning_rate", "grad_norm") or name.startswith(parts)
        }
        self.tokens = int(state.num_input_tokens_seen or 0)
        self.write(state.global_step, self.figures)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Append a point to the curve."""
        point = {"step": step, **figures, "seconds": time.perf_counter() - self.begin}
        with self.curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(point)) + "\n")


class _Validating(TrainerCallback):  # type: ignore[misc]
    """Callback that validates, on the first process; ``best`` is the file with the best weights of a run with checkpoints."""

    def __init__(self, validation: Validation, recorder: _CurveRecorder, best: Path) -> None:
        self.validation, self.recorder, self.best = validation, recorder, best

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self.validation.read(self.best)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.validation.due(state.global_step, state.max_steps):
            self.recorder.write(state.global_step, self.validation.after(state.global_step)[0])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.validation.keep_best:
            self.validation.save(self.best)
