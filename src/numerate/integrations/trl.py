"""TRL: ``attach(SFTTrainer(...), "smmd", soft=0.05)`` and train as before.

TRL never builds logits: it runs the backbone once, and computes log-probabilities, entropy and accuracy from hidden states and
head in chunks. This is unchanged. The numeric term is computed from the same hidden states in the same forward pass, as
``hidden[rows] @ head_weight[columns].T`` of numeric positions and tokens only, and added to TRL's loss. The cross-entropy against
a soft target is TRL's plus a term that is linear in the logits of that target's tokens, computed in the same way. Packing,
padding-free batches, completion-only and assistant-only loss, vision-language models and PEFT work as in TRL.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from numerate.checks import public_dir
from numerate.integrations.attachment import Attachment
from numerate.integrations.fields import LABEL_FIELDS, Batch, has_fields, without_fields
from numerate.integrations.lazy_logits import override
from numerate.integrations.split_sequences import cut_of, refuse_split, split_over, whole_labels
from numerate.integrations.step import StepCounts, without_repeats
from numerate.integrations.trl_forward import NumericCausalLMOutput, NumericForward
from numerate.objective import CutSequence
from numerate.targets import SoftCollator

from trl import SFTTrainer  # isort: skip - after the check of its version
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # isort: skip

__all__ = ["NumericCausalLMOutput"]
__dir__ = public_dir(globals())


class SFTAttachment(Attachment):
    """An SFTTrainer of TRL that trains with what was asked for: TRL's loss plus ``objective.weight`` times a numeric term."""

    def _refuse(self, trainer: SFTTrainer) -> None:
        if "compute_loss" in vars(trainer):
            raise RuntimeError("trainer.compute_loss was replaced already: call .detach() on the first attachment.")
        names = getattr(trainer.train_dataset, "column_names", None) or ()
        if has_fields(names) and trainer.args.max_length is not None and trainer.args.truncation_mode == "keep_end":
            raise ValueError(
                "truncation_mode='keep_end' with max_length moves tokens, and the dataset has columns that belong to positions "
                f"of tokens ({', '.join(name for name in names if name in LABEL_FIELDS)}): expected attach(trainer, soft=...), "
                "which makes them of the rows as they are, or truncation_mode='keep_start'."
            )

    def _change_trainer(self, trainer: SFTTrainer) -> None:
        objective = self.objective
        if trainer.compute_loss_func is not None or trainer.label_smoother is not None or objective.label_smoothing:
            raise ValueError(
                "compute_loss_func and label smoothing need the logits of a second forward pass, which this trainer does not "
                "run: expected neither; use attach with a transformers Trainer."
            )
        refuse_split(objective, trainer, soft=False)
        if (sp_size := split_over("sp", trainer)) > 1:
            raise NotImplementedError(
                f"sequence parallelism over {sp_size} processes: SFTTrainer averages the losses of their parts, and the numeric "
                "term is divided by the counts of the step; use attach with a transformers Trainer, or context parallelism."
            )
        self.objective = objective.to(trainer.args.device)
        self._counts: StepCounts | None = None  # of the current step
        # TRL's loss divides by the tokens of the whole step if it gets them; some vision models declare that they do not.
        self._undo.append(override(trainer, "model_accepts_loss_kwargs", True))
        self._undo.append(override(trainer, "compute_loss", self._compute_loss))
        if type(trainer.data_collator) is DataCollatorForLanguageModeling:
            self._undo.append(override(trainer, "data_collator", SoftCollator(trainer.data_collator)))
        base = trainer.model.get_base_model() if hasattr(trainer.model, "get_base_model") else trainer.model
        self._numeric = NumericForward(base, self.objective)
        self._undo.append(self._numeric.remove)

    def _count_step(self, batches: list[Batch]) -> None:
        self._counts = self._count(batches) if batches else None

    def _count(self, batches: list[Batch], cut: CutSequence | None = None) -> StepCounts:
        trainer = self.trainer
        shift = not _has_virtual_tokens(trainer.model)
        if cut is not None:
            batches = [whole_labels(batch, cut, trainer.args.device) for batch in batches]
        return StepCounts.of(self.objective, batches, shift=shift).over(trainer.accelerator, self._copies())

    def _copies(self) -> int:
        """Return how many processes share each batch."""
        return int(self.trainer.get_tp_size()) * split_over("cp", self.trainer)

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return TRL's loss plus the numeric term of the same forward pass."""
        trainer = self.trainer
        training = trainer.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        if not training:
            inputs = without_repeats(inputs, trainer.accelerator, self._copies())
        cut = cut_of(trainer, inputs, training=training)
        # Evaluations are not cut: the processes of context parallelism compute the same.
        self._same = self._copies() if cut is None else trainer.get_tp_size()
        counts = self._counts if in_step else self._count([inputs], cut)
        assert counts is not None
        if has_fields(inputs):
            num_items_in_batch = self._items(inputs, counts, num_items_in_batch)
        with_overrun = (self._logged if in_step else not training) and cut is None
        self._numeric.begin(counts, inputs, cut, with_overrun=with_overrun)
        options = {"return_outputs": return_outputs, "num_items_in_batch": num_items_in_batch}
        result = type(trainer).compute_loss(trainer, model, without_fields(inputs), **options)
        loss, outputs = result if return_outputs else (result, None)
        term = self._numeric.take()
        self._add(term.out, counts, term.positions, training=training)
        loss = loss + term.out.loss * (trainer.accelerator.num_processes // self._same)
        return (loss, outputs) if return_outputs else loss

    def _items(self, inputs: Batch, counts: StepCounts, num_items: Any) -> Any:
        """Return what TRL divides its loss by: the weights of the label tokens, if they have any."""
        trainer = self.trainer
        if trainer.args.loss_type == "dft" and has_fields(inputs.keys() - {"position_weights"}):
            raise ValueError(
                "loss_type='dft' weighs each token by its probability, and the batch has soft targets or token_weights: expected "
                "loss_type='nll' with them."
            )
        if inputs.get("token_weights") is None:
            return num_items
        processes = trainer.accelerator.num_processes
        multiplied = processes // trainer.get_tp_size() if trainer.args.average_tokens_across_devices else 1  # by TRL
        return counts.num_items * multiplied / (processes // self._same)

    def _evaluated(self) -> dict[str, float]:
        parts = self._evaluation.of_set(self.trainer.accelerator, self.objective, self._same)
        return {name: value for name, value in parts.items() if name != "loss"}  # TRL's own


def _has_virtual_tokens(model: nn.Module) -> bool:
    """Return whether PEFT puts virtual tokens before the text; the last of them predicts the first label."""
    config = getattr(model, "active_peft_config", None)
    return bool(config is not None and config.is_prompt_learning and config.peft_type not in ("PREFIX_TUNING", "CARTRIDGE"))
