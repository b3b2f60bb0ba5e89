"""Train a model with the Hugging Face Trainer, and record the learning curve, the time per step and the memory."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from numerate.checks import one_line
from numerate.decode.rows import any_shape
from numerate.integrations.transformers import attach
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import cut_curve, is_first_process, jsonable, saving, write_text
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import LoadedModel
from numerate.lab.models.pretrained import quietly
from numerate.lab.training.validation import Validation
from numerate.objective import NumericObjective
from numerate.objective.no_loss import NoLoss

_WHOLE = "whole"  # file of a checkpoint that is complete
_BEST = "best.pt"  # the best weights up to a checkpoint


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint that is complete; a process may have been killed while it wrote a later one."""
    return max((mark.parent for mark in folder.glob(f"checkpoint-*/{_WHOLE}")), key=_step_of, default=None)


def last_saved_step(folder: Path) -> int:
    """Return the step of the last checkpoint; 0 if there is none."""
    checkpoint = last_checkpoint(folder)
    return 0 if checkpoint is None else _step_of(checkpoint)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def fit(
    loaded: LoadedModel,
    data: Any,
    objective: NumericObjective | None,
    arguments: dict[str, Any],
    folder: Path,
    *,
    tensorboard: bool = False,
    checkpoint: Path | None = None,
    validation: Validation | None = None,
    interruption: Interruption | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Train the model in place on rows in training order, and return the cost.

    ``arguments`` are those of ``TrainingArguments``. ``objective=None`` trains with cross-entropy alone. ``folder`` receives
    ``curve.jsonl`` and ``tensorboard/``. ``checkpoint`` is the folder to resume from. ``validation`` joins the curve. A signal
    that ``interruption`` catches before the last step ends training with a checkpoint and a KeyboardInterrupt.
    """
    trainer = make_trainer(loaded, data, arguments)
    if tensorboard and is_first_process():
        trainer.add_callback(_board(folder / "tensorboard", checkpoint))
    numeric = objective is not None and not isinstance(objective.numeric_loss, NoLoss)
    recorder = _CurveRecorder(folder / "curve.jsonl", progress, numeric=numeric)
    trainer.add_callback(recorder)
    if validation is not None:
        trainer.add_callback(_Validating(validation, recorder, checkpoint))
    if interruption is not None:
        trainer.add_callback(_Stopping(interruption))
    trainer.add_callback(_Checkpoints(validation))
    detach: Callable[[], object] = attach(trainer, objective, check=False).detach if objective is not None else lambda: None
    begin = time.perf_counter()
    with quietly(), saving(), any_shape(), nullcontext() if interruption is None else interruption.finishing_steps():
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except Exception as error:
            if checkpoint is None or recorder.steps_begun or isinstance(error, torch.OutOfMemoryError):
                raise
            why = f"{checkpoint} cannot be read ({one_line(error)})"
            raise ValueError(f"{why}: delete {checkpoint.parent} to train from the start.") from error
    detach()
    if interruption is not None and trainer.state.global_step < trainer.state.max_steps:
        raise KeyboardInterrupt
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
        remove_unused_columns=False,
        dataloader_pin_memory=cuda,
        # Workers read pictures while the GPU computes. On a CPU they would compete for its cores.
        dataloader_num_workers=min(8, (os.cpu_count() or 1) // 2) if has_pictures and cuda else 0,
        logging_first_step=True,
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
        report_to="none",
    )
    trainer = _InOrder(loaded.model, args, train_dataset=data, data_collator=partial(collate, pad=loaded.pad))
    trainer.remove_callback(PrinterCallback)
    return trainer


class _InOrder(Trainer):  # type: ignore[misc]
    """A Trainer that reads rows as they are: they are in training order."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Do not report a tied weight as missing from a checkpoint, which has it under its other name."""
        tensors = self.model.state_dict(keep_vars=True)
        loaded = {id(tensor) for name, tensor in tensors.items() if name not in load_result.missing_keys}
        missing = [name for name in load_result.missing_keys if id(tensors.get(name)) not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))


def _board(folder: Path, checkpoint: Path | None) -> TrainerCallback:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    # purge_step hides what an interrupted run logged after the checkpoint.
    first_step = 1 + (0 if checkpoint is None else _step_of(checkpoint))
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
        self.steps_begun = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the lines of the curve up to the checkpoint: later ones, and an incomplete one, are logged again."""
        if not state.is_world_process_zero:
            return
        earlier = cut_curve(self.curve, state.global_step)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.tokens = self.tokens_before = int(state.num_input_tokens_seen or 0)
        self.begin = time.perf_counter() - earlier

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps_begun = True
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
            file.write(json.dumps(jsonable(point)) + "\n")


class _Validating(TrainerCallback):  # type: ignore[misc]
    """Callback that validates, on the first process; ``checkpoint`` is that from which the run is resumed."""

    def __init__(self, validation: Validation, recorder: _CurveRecorder, checkpoint: Path | None) -> None:
        self.validation, self.recorder, self.checkpoint = validation, recorder, checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.checkpoint is not None:
            self.validation.read(self.checkpoint / _BEST)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.validation.due(state.global_step, state.max_steps):
            self.recorder.write(state.global_step, self.validation.after(state.global_step)[0])


class _Stopping(TrainerCallback):  # type: ignore[misc]
    """Callback that ends training with a checkpoint after a signal, at the same step in all processes."""

    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stop = self.interruption.caught is not None
        if args.world_size > 1:
            anywhere = torch.tensor(int(stop), device=args.device)
            torch.distributed.all_reduce(anywhere, torch.distributed.ReduceOp.MAX)
            stop = bool(anywhere)
        if stop and state.global_step < state.max_steps:
            # Logged too: the losses since the last point of the curve are no part of a checkpoint.
            control.should_log = control.should_save = control.should_training_stop = True


class _Checkpoints(TrainerCallback):  # type: ignore[misc]
    """Callback that adds the best weights to a checkpoint, marks it as complete, and only then deletes earlier ones."""

    def __init__(self, validation: Validation | None) -> None:
        self.validation = validation

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        own = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.validation is not None and self.validation.keep_best:
            self.validation.save(own / _BEST)
        for path in filter(Path.is_file, own.rglob("*")):  # before the mark, should the machine fail
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_text(own / _WHOLE, "")
        for other in own.parent.glob("checkpoint-*"):
            if other != own:
                shutil.rmtree(other, ignore_errors=True)
