"""Attachment: what ``attach`` does to any trainer of the Hugging Face family, and how it is undone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from numerate.integrations.asked import Asked
from numerate.integrations.fields import LABEL_FIELDS, keep_fields
from numerate.integrations.lazy_logits import override
from numerate.integrations.notice import notice
from numerate.integrations.step import LossSums, StepCounts, check_gradient, will_be_logged
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.targets import SoftNumbers
from numerate.targets.drawn import EpochDataset
from numerate.targets.tokenised_rows import TokenColumn


class Attachment(ABC):
    """A trainer that trains with what was asked for, until :meth:`detach`.

    Attributes:
        trainer: the trainer.
        objective: what it trains with.
        soft: what makes soft labels and masks of the training rows; None if nothing does.
        summary: what :func:`attach` logged; empty with ``check=False``.
    """

    objective: NumericObjective
    soft: SoftNumbers | None

    def __init__(self, trainer: Any, asked: Asked) -> None:
        self._refuse(trainer)
        sequence = self._token_column(trainer, asked)
        if isinstance(asked.soft, SoftNumbers) and asked.soft.sequence != sequence:
            raise ValueError(
                f"sequence={asked.soft.sequence!r} of the SoftNumbers: expected SoftNumbers(..., sequence={sequence!r}), since "
                f"numbers of a {type(trainer.model).__name__} are drawn in its {sequence}."
            )
        args, processor = trainer.args, getattr(trainer, "processing_class", None)
        seed = args.seed if args.data_seed is None else args.data_seed
        made = asked.prepared(trainer.train_dataset, trainer.data_collator, sequence, seed, processor)
        self.trainer, self.objective, self.soft, self.summary = trainer, made.objective, made.soft, made.summary
        self._training, self._evaluation = LossSums(), LossSums()
        self._left, self._first = 0, True  # micro-batches left in the step, and whether the next is its first
        self._logged = False  # whether the current step will be logged
        self._undo: list[Callable[[], None]] = []
        try:
            self._change_trainer(trainer)
            for name in ("_prepare_inputs", "log", "evaluation_loop", "get_batch_samples"):
                self._undo.append(override(trainer, name, getattr(self, f"_{name.removeprefix('_')}")))
            self._keep_columns(trainer)
            if self.soft is not None:
                self._draw(trainer, made.dataset, made.collator)
        except BaseException:
            self.detach()
            raise
        notice(self.summary, shown=trainer.is_world_process_zero())

    def detach(self) -> None:
        """Restore the trainer: its loss, data, collator and callbacks."""
        while self._undo:
            self._undo.pop()()

    @abstractmethod
    def _refuse(self, trainer: Any) -> None:
        """Raise for a trainer that cannot be attached to."""

    def _token_column(self, trainer: Any, asked: Asked) -> TokenColumn:
        """Return the tokens in which numbers are drawn."""
        return "input_ids"

    @abstractmethod
    def _change_trainer(self, trainer: Any) -> None:
        """Compute the objective in place of the trainer's loss; add to ``_undo`` what restores it."""

    @abstractmethod
    def _count_step(self, batches: list[Any]) -> None:
        """Count the step that begins."""

    def _evaluated(self) -> dict[str, float]:
        """Return the parts of an evaluation that the trainer's metrics lack."""
        return self._evaluation.of_set(self.trainer.accelerator, self.objective, self.trainer.get_tp_size())

    def _add(self, out: ObjectiveOutput, counts: StepCounts, positions: Tensor, *, training: bool, extra: Any = 0.0) -> None:
        """Add a micro-batch to what is logged; raise if it cannot be trained on. ``extra``: what the model adds to the loss."""
        if not training:
            self._evaluation.add_batch(out, counts, positions, self.objective, extra)
            return
        check_gradient(out.loss)
        self._training.add_step(out, counts, positions, first=self._first or not self._left)
        self._left, self._first = max(self._left - 1, 0), False

    def _draw(self, trainer: Any, dataset: EpochDataset, collator: Any) -> None:
        """Draw the numbers of the training rows in each epoch; rows of evaluations stay as they are."""
        self._undo.append(override(trainer, "train_dataset", dataset))
        self._undo.append(override(trainer, "data_collator", collator))
        callback = dataset.callback()
        trainer.add_callback(callback)
        self._undo.append(lambda: trainer.remove_callback(callback))

    def _keep_columns(self, trainer: Any) -> None:
        """Keep the columns of the dataset that the objective reads, although the model does not."""
        columns = trainer._signature_columns
        self._undo.append(override(trainer, "_signature_columns", None if columns is None else [*columns, *LABEL_FIELDS]))
        self._undo.append(override(trainer, "_set_signature_columns_if_needed", self._set_signature_columns))

    def _set_signature_columns(self) -> None:
        trainer = self.trainer
        type(trainer)._set_signature_columns_if_needed(trainer)
        columns: Any = trainer._signature_columns
        trainer._signature_columns = [*columns, *(name for name in LABEL_FIELDS if name not in columns)]

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        trainer = self.trainer
        return keep_fields(dict(type(trainer)._prepare_inputs(trainer, inputs)), inputs)

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches, num_items = type(self.trainer).get_batch_samples(self.trainer, *args, **kwargs)
        self._left, self._first = len(batches), True
        self._count_step(batches)
        self._logged = will_be_logged(self.trainer)
        return batches, num_items

    def _evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Add the parts of the whole set to the metrics."""
        trainer = self.trainer
        self._evaluation = LossSums()
        output = type(trainer).evaluation_loop(trainer, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in self._evaluated().items()})
        return output

    def _log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of training to the logs."""
        if "loss" in logs:
            logs.update(self._training.of_steps(self.trainer.accelerator, self.trainer.get_tp_size()))
        type(self.trainer).log(self.trainer, logs, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Trainer with a numeric objective attached cannot be pickled or copied: expected a detached one; call .detach() "
            "before, or attach in the process that trains. Its model can be."
        )
