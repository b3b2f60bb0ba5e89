"""TRL: ``NumericSFTTrainer(model, args, objective=objective, ...)`` in place of ``SFTTrainer``.

TRL never builds logits: it runs the backbone once, and computes log-probabilities, entropy and accuracy from hidden states and
head in chunks. This is unchanged. The numeric term is computed from the same hidden states in the same forward pass, as
``hidden[rows] @ head_weight[columns].T`` of numeric positions and tokens only, and added to TRL's loss. The cross-entropy against
a soft target is TRL's plus a term that is linear in the logits of that target's tokens, computed in the same way. Packing,
padding-free batches, completion-only and assistant-only loss, vision-language models and PEFT work as in TRL.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import MethodType
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from numerate.checks import public_dir
from numerate.integrations.fields import (
    LABEL_FIELDS,
    Batch,
    aligned,
    collate_fields,
    fields_of,
    has_fields,
    keep_fields,
    without_fields,
)
from numerate.integrations.lazy_logits import find_head
from numerate.integrations.step import (
    LossSums,
    StepCounts,
    check_gradient,
    check_objective,
    refuse_split_fields,
    refuse_split_sequences,
    will_be_logged,
    without_repeats,
)
from numerate.losses.logit_rows import divide, rest_of, wide
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.objective.head import Head
from numerate.objective.overrun import NumberEnds
from numerate.objective.term import mean_mass
from numerate.targets.soft_targets import SoftTargets

_OLDEST, _TOO_NEW = "1.16", "1.17"
if not Version(_OLDEST) <= Version(version("trl")) < Version(_TOO_NEW):
    raise ImportError(
        f"trl {version('trl')} is not supported: expected >= {_OLDEST} and < {_TOO_NEW}, since this trainer depends on how "
        f"SFTTrainer computes its loss. Install with `pip install 'trl~={_OLDEST}.0'`, or use numerate.integrations.transformers."
    )

from trl import SFTTrainer  # noqa: E402 - after the check of its version
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # noqa: E402
from trl.trainer.utils import FusedCausalLMOutput  # noqa: E402

__all__ = ["NumericCausalLMOutput", "NumericSFTTrainer"]
__dir__ = public_dir(globals())


class NumericSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's ``SFTTrainer``, whose loss is TRL's plus ``objective.weight`` times a numeric term.

    The term is normalised over the whole optimizer step, all micro-batches and processes, as in
    :func:`numerate.integrations.transformers.attach`, and logs the same parts. As there, batches may carry soft targets,
    ``token_weights`` and ``position_weights``, made by the data collator. They may be columns of a dataset that has ``input_ids``
    too, if it is not packed: TRL's collator then pads, or joins, them along.

    Args:
        *args: as for ``SFTTrainer``.
        objective: the numeric loss, its weight, and how it is normalised. The cross-entropy is TRL's.
        **kwargs: as for ``SFTTrainer``.

    Example::

        trainer = NumericSFTTrainer(
            model, SFTConfig(packing=True), train_dataset=dataset, objective=NumericObjective(SMMDLoss(vocab))
        )
        trainer.train()
    """

    def __init__(self, *args: Any, objective: NumericObjective, **kwargs: Any) -> None:
        check_objective(objective)
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None or self.label_smoother is not None or objective.label_smoothing:
            raise ValueError(
                "compute_loss_func and label smoothing need the logits of a second forward pass, which this trainer does not "
                "run: expected neither; use numerate.integrations.transformers.attach with a transformers Trainer."
            )
        refuse_split_sequences(objective, self.get_cp_size(), self.get_sp_size())
        # TRL's loss divides by the tokens of the whole step if it gets them; some vision models declare that they do not.
        self.model_accepts_loss_kwargs = True
        self.objective = objective.to(self.args.device)
        self._step_counts: StepCounts | None = None
        self._left, self._first = 0, True  # micro-batches left in the step, and whether the next is its first
        self._logged = False  # whether the step will be logged
        self._training, self._evaluation = LossSums(), LossSums()
        collator: Any = self.data_collator  # type: ignore[has-type]
        if type(collator) is DataCollatorForLanguageModeling:
            self.data_collator = _FieldCollator(**vars(collator))
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        self._numeric = _NumericForward(base, self.objective)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns that the objective reads, although the model does not."""
        super()._set_signature_columns_if_needed()
        self._signature_columns += [name for name in LABEL_FIELDS if name not in self._signature_columns]

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, packing: bool, *rest: Any) -> Any:
        """Refuse to move tokens away from the soft targets and weights that belong to them."""
        names = getattr(dataset, "column_names", None) or ()
        from_the_end = args.max_length is not None and args.truncation_mode == "keep_end"
        if has_fields(names) and (packing or from_the_end):
            how = "packing" if packing else "truncation_mode='keep_end' with max_length"
            raise ValueError(
                f"{how} moves tokens, and the dataset has columns that belong to positions of tokens "
                f"({', '.join(name for name in names if name in LABEL_FIELDS)}): expected a data_collator that makes these "
                "fields, or packing=False and truncation_mode='keep_start'."
            )
        return super()._prepare_dataset(dataset, processing_class, args, packing, *rest)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return keep_fields(dict(super()._prepare_inputs(inputs)), inputs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the step that begins."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        self._step_counts, self._left, self._first = (self._count(batches) if batches else None), len(batches), True
        self._logged = will_be_logged(self)
        return batches, num_items

    def _count(self, batches: list[Batch]) -> StepCounts:
        copies = self.get_tp_size() * self.get_cp_size()
        return StepCounts.of(self.objective, batches, shift=not _has_virtual_tokens(self.model)).over(self.accelerator, copies)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return TRL's loss plus the numeric term of the same forward pass."""
        training = self.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        if not training:
            inputs = without_repeats(inputs, self.accelerator)
        counts = self._step_counts if in_step else self._count([inputs])
        assert counts is not None
        if has_fields(inputs):
            refuse_split_fields(inputs, self.get_cp_size())
            num_items_in_batch = self._items(inputs, counts, num_items_in_batch)
        with_overrun = (self._logged if in_step else not training) and self.get_cp_size() == 1
        self._numeric.begin(counts, inputs, with_overrun=with_overrun)
        inputs = without_fields(inputs)
        result = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        loss, outputs = result if return_outputs else (result, None)
        term = self._numeric.take()
        if training:
            check_gradient(term.out.loss)
            self._training.add_step(term.out, counts, term.positions, first=self._first or not in_step)
            self._left, self._first = max(self._left - 1, 0), False
        else:
            self._evaluation.add_batch(term.out, counts, term.positions, self.objective, 0.0)
        loss = loss + term.out.loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss

    def _items(self, inputs: Batch, counts: StepCounts, num_items: Any) -> Any:
        """Return what TRL divides its loss by: the weights of the label tokens, if they have any."""
        if self.args.loss_type == "dft" and has_fields(inputs.keys() - {"position_weights"}):
            raise ValueError(
                "loss_type='dft' weighs each token by its probability, and the batch has soft targets or token_weights: expected "
                "loss_type='nll' with them."
            )
        if inputs.get("token_weights") is None:
            return num_items
        # TRL multiplies by the processes only if it averages tokens over them.
        processes = 1 if self.args.average_tokens_across_devices else self.accelerator.num_processes // self.get_tp_size()
        return counts.num_items / processes

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Add the parts of the whole set to TRL's metrics."""
        self._evaluation = LossSums()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        parts = self._evaluation.of_set(self.accelerator, self.objective)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in parts.items() if name != "loss"})
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of training to TRL's logs."""
        if "loss" in logs:
            logs.update(self._training.of_steps(self.accelerator))
        super().log(logs, *args, **kwargs)


class _FieldCollator(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """TRL's collator, which also pads or joins the soft targets and weights of its examples."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        return batch | collate_fields(examples, batch["labels"].shape, joined=self.padding_free)


@dataclass
class NumericCausalLMOutput(FusedCausalLMOutput):  # type: ignore[misc]
    """TRL's output and the numeric term: FSDP expects gradients only for what is part of the output."""

    numeric: Tensor | None = None


@dataclass
class _NumericTerm:
    out: ObjectiveOutput  # its loss is the weighted numeric term alone
    positions: Tensor  # number of numeric positions


class _NumericForward:
    """Wraps a model's forward: where TRL computes log-probabilities, the numeric term is computed too."""

    def __init__(self, model: nn.Module, objective: NumericObjective) -> None:
        self.objective = objective
        self.term: _NumericTerm | None = None
        self.hidden: Tensor | None = None
        self.logit_scale, self.softcap = logit_shape(model.config)
        fused_forward = model.forward

        def forward(owner: nn.Module, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
            if not fused_lm_head:
                return fused_forward(*args, **kwargs)
            hook = owner.base_model.register_forward_hook(self._keep_hidden)  # type: ignore[union-attr]
            try:
                output = fused_forward(*args, fused_lm_head=True, **kwargs)
            finally:
                hook.remove()
            hidden, self.hidden = self.hidden, None
            assert hidden is not None
            self.term, log_probs = self._term(owner, hidden, output, kwargs)
            return NumericCausalLMOutput(**{**output, "log_probs": log_probs}, numeric=self.term.out.loss)

        model.forward = MethodType(forward, model)

    def begin(self, counts: StepCounts, batch: Batch, *, with_overrun: bool) -> None:
        self.counts, self.batch, self.with_overrun, self.term = counts, batch, with_overrun, None

    def take(self) -> _NumericTerm:
        term, self.term = self.term, None
        assert term is not None, "TRL called no fused forward"
        return term

    def _keep_hidden(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.hidden = output.last_hidden_state

    def _term(self, model: nn.Module, hidden: Tensor, output: FusedCausalLMOutput, batch: Batch) -> tuple[_NumericTerm, Tensor]:
        """Return the numeric term, and the log-probabilities of labels against soft targets and with weights."""
        objective, loss = self.objective, self.objective.numeric_loss
        # On the CPU, as in `fused`: the number of targets determines shapes. PEFT may have added labels of virtual tokens.
        labels, _ = aligned({name: batch.get(name) for name in ("labels", "shift_labels")}, shift=True)
        fields = fields_of({**self.batch, "position_ids": batch.get("position_ids")}, labels, shift=True)
        labels, soft, weights = labels.cpu(), fields.pop("soft", None), fields.pop("token_weights", None)
        on_cpu = {name: field.cpu() for name, field in fields.items()}
        targets = loss.targets(labels, **on_cpu, compact=True).to(hidden.device)
        assert targets.rows is not None
        hidden = hidden.flatten(0, -2)  # [B·T, H]
        z = self._logits(model, hidden.index_select(0, targets.rows), loss.columns)
        length = output.log_probs.shape[1]  # TRL leaves out the last position, which predicts nothing
        log_p = nn.functional.pad(output.log_probs, (0, labels.shape[1] - length))  # [B, T]
        # A label's logit minus its log-probability is the log-sum-exp of its row.
        lse = z.gather(1, targets.index[:, None])[:, 0] - log_p.flatten().index_select(0, targets.rows).to(z.dtype)
        items, units = self.counts.num_items, self.counts.num_units
        total = loss.per_row(z, rest_of(z, lse) if loss.uses_rest else None, targets).sum()
        term = divide(total, objective.weighting.denominator(items, units))
        overrun = self._overrun(model, hidden, labels, on_cpu.get("position_ids"), log_p) if self.with_overrun else (None, None)
        if soft is not None:
            log_p = log_p - self._excess(model, hidden, labels, soft).reshape(log_p.shape).to(log_p.dtype)
        if weights is not None:
            log_p = log_p * weights.to(log_p)
        ce = divide(-log_p.detach().sum(), items)
        mass = mean_mass(loss, z.detach(), lse.detach(), targets)
        out = ObjectiveOutput(objective.weighting.factor(ce, term) * term, ce, term.detach(), items, units, mass, *overrun)
        digits = targets.slots if targets.mask is None else targets.mask.sum()
        return _NumericTerm(out, torch.as_tensor(digits, device=hidden.device)), log_p[:, :length]

    def _overrun(
        self, model: nn.Module, hidden: Tensor, labels: Tensor, position_ids: Tensor | None, log_p: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the mean probability of numeric tokens where a number has ended, and how many such labels there are."""
        ends = NumberEnds.of(self.objective.numeric_loss, labels, position_ids, compact=True)
        if ends is None:
            return None, None
        assert ends.rows is not None
        tokens, token = labels.flatten()[ends.rows].unique(return_inverse=True)
        rows, token = ends.rows.to(hidden.device), token.to(hidden.device)
        with torch.no_grad():
            z = self._logits(model, hidden.index_select(0, rows), torch.cat([ends.columns, tokens]).to(hidden.device))
        size = ends.columns.shape[0]
        lse = z.gather(1, size + token[:, None])[:, 0] - log_p.detach().flatten().index_select(0, rows).to(z.dtype)
        return ends.mean_mass(z[:, :size], lse), torch.tensor(ends.rows.shape[0], device=hidden.device)

    def _excess(self, model: nn.Module, hidden: Tensor, labels: Tensor, soft: SoftTargets) -> Tensor:
        """Return what the cross-entropy of each row ``[B·T]`` against its soft target is above that of its label."""
        entries = SoftTargets(soft.positions.cpu(), soft.token_ids.cpu(), soft.probabilities.cpu()).rows(labels)
        vocab_size = model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
        entries = entries.checked(vocab_size)
        given = entries.probabilities.nonzero()[:, 0]
        rows, row = entries.rows[given].unique(return_inverse=True)  # [R], [S]
        tokens = torch.cat([labels.flatten()[rows], entries.token_ids[given]])
        columns, column = (x.to(hidden.device) for x in tokens.unique(return_inverse=True))
        rows_there, row, p = (x.to(hidden.device) for x in (rows, row, entries.probabilities[given]))
        z = self._logits(model, hidden.index_select(0, rows_there), columns)  # [R, U]
        at_label = z.gather(1, column[: len(rows), None])[:, 0]
        each = p.to(z.dtype) * (at_label.index_select(0, row) - z[row, column[len(rows) :]])
        return each.new_zeros(hidden.shape[0]).index_add(0, rows_there.index_select(0, row), each)

    def _logits(self, model: nn.Module, rows: Tensor, columns: Tensor) -> Tensor:
        """Return ``z [P, N]`` of hidden states ``[P, H]``, from the head's rows ``columns`` only if it is plain."""
        linear, _ = find_head(model)
        if linear is None:
            head = Head(rows, None, self.logit_scale, self.softcap)
            return head.shaped(model.get_output_embeddings()(rows)[:, columns].to(wide(rows.dtype)))  # type: ignore[operator]
        head = Head(linear.weight, linear.bias, self.logit_scale, self.softcap)
        z = rows.to(linear.weight.dtype) @ linear.weight.index_select(0, columns).T
        return head.shaped(z.to(wide(z.dtype)), columns)


def _has_virtual_tokens(model: nn.Module) -> bool:
    """Return whether PEFT puts virtual tokens before the text; the last of them predicts the first label."""
    config = getattr(model, "active_peft_config", None)
    return bool(config is not None and config.is_prompt_learning and config.peft_type not in ("PREFIX_TUNING", "CARTRIDGE"))


def logit_shape(config: Any) -> tuple[float | None, float | None]:
    """Return the scale and the soft cap of a model's logits from its configuration, as TRL reads them."""
    text = config.get_text_config()
    names = ("logit_scale", "output_multiplier", "lm_head_multiplier")
    scale = next((value for name in names if (value := getattr(text, name, None)) is not None), None)
    divisor = getattr(text, "logits_scaling", None)
    if scale is None and divisor is not None:
        scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
    return scale, getattr(text, "final_logit_softcapping", None)
