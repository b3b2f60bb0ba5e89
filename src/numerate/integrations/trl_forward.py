"""The forward pass of a model in TRL's SFTTrainer, with the numeric term computed from the same hidden states.

All that depends on how TRL computes its loss is here and in ``trl.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from numerate.integrations.fields import Batch, aligned, fields_of
from numerate.integrations.lazy_logits import find_head, override
from numerate.integrations.split_sequences import fields_of_part
from numerate.integrations.step import StepCounts
from numerate.losses.logit_rows import divide, rest_of, wide
from numerate.objective import CutSequence, NumericObjective, ObjectiveOutput
from numerate.objective.batch import BatchLabels
from numerate.objective.cut_sequence import CutNumbers, whole_batch
from numerate.objective.head import Head
from numerate.objective.overrun import NumberEnds
from numerate.objective.term import mean_mass
from numerate.targets.soft_targets import SoftTargets

_TESTED = "trl 1.15 to 1.16"
try:
    from trl.trainer.utils import FusedCausalLMOutput
except ImportError as error:
    raise ImportError(
        f"trl {version('trl')} has no FusedCausalLMOutput, from which the numeric term is computed: expected {_TESTED}, or "
        "another that computes the loss of SFTTrainer in this way; before 1.15, use numerate.attach(SFTTrainer(...), objective)."
    ) from error


@dataclass
class NumericCausalLMOutput(FusedCausalLMOutput):  # type: ignore[misc]
    """TRL's output and the numeric term: FSDP expects gradients only for what is part of the output."""

    numeric: Tensor | None = None


@dataclass
class NumericTerm:
    """The numeric term of a forward pass."""

    out: ObjectiveOutput  # its loss is the weighted numeric term alone
    positions: Tensor  # number of numeric positions


class NumericForward:
    """Wraps a model's forward: where TRL computes log-probabilities, the numeric term is computed too."""

    def __init__(self, model: nn.Module, objective: NumericObjective) -> None:
        self.objective = objective
        self.term: NumericTerm | None = None
        self.hidden: Tensor | None = None
        self.logit_scale, self.softcap = logit_shape(model.config)
        fused_forward = model.forward

        def forward(owner: nn.Module, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
            if not fused_lm_head or self._removed:
                return fused_forward(*args, **({"fused_lm_head": True} if fused_lm_head else {}), **kwargs)
            hook = owner.base_model.register_forward_hook(self._keep_hidden)  # type: ignore[union-attr]
            try:
                output = fused_forward(*args, fused_lm_head=True, **kwargs)
            finally:
                hook.remove()
            hidden, self.hidden = self.hidden, None
            assert hidden is not None
            self.term, log_probs = self._term(owner, hidden, output, kwargs)
            return NumericCausalLMOutput(**{**output, "log_probs": log_probs}, numeric=self.term.out.loss)

        self._removed, method = False, MethodType(forward, model)
        self._model, self._forward, self._restore = model, method, override(model, "forward", method)

    def remove(self) -> None:
        """Restore the model's forward; if others have wrapped it since, such as accelerate, it does what it did before."""
        self._removed = True
        if self._model.forward is self._forward:
            self._restore()

    def begin(self, counts: StepCounts, batch: Batch, cut: CutSequence | None, *, with_overrun: bool) -> None:
        """Compute the term in the next forward pass, with the counts of its step; ``cut``: how its sequences are, if they are."""
        self.counts, self.batch, self.cut, self.with_overrun, self.term = counts, batch, cut, with_overrun, None

    def take(self) -> NumericTerm:
        """Return the term of the last forward pass."""
        term, self.term = self.term, None
        if term is None:
            raise NotImplementedError(
                f"SFTTrainer of trl {version('trl')} computed its loss without calling model(fused_lm_head=True): expected that, "
                f"as in {_TESTED}; install one of these, or, with Unsloth, use numerate.integrations.unsloth.attach."
            )
        return term

    def _keep_hidden(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.hidden = output.last_hidden_state

    def _term(self, model: nn.Module, hidden: Tensor, output: FusedCausalLMOutput, batch: Batch) -> tuple[NumericTerm, Tensor]:
        """Return the numeric term, and the log-probabilities of labels against soft targets and with weights."""
        objective, loss = self.objective, self.objective.numeric_loss
        # On the CPU, as in `fused`: the number of targets determines shapes. PEFT may have added labels of virtual tokens.
        labels, _ = aligned({name: batch.get(name) for name in ("labels", "shift_labels")}, shift=True)
        if self.cut is None:
            fields = fields_of({**self.batch, "position_ids": batch.get("position_ids")}, labels, shift=True)
        else:
            fields = fields_of_part(self.batch, self.cut)
        soft, weights = fields.pop("soft", None), fields.pop("token_weights", None)
        labels_on_cpu, on_cpu = labels.cpu(), {name: field.cpu() for name, field in fields.items()}
        numbers: CutNumbers | None = None
        if self.cut is None:
            targets = loss.targets(labels_on_cpu, **on_cpu, compact=True).to(hidden.device)
        else:
            whole = whole_batch(BatchLabels(labels, **fields), self.cut)
            numbers = CutNumbers.read(loss, self.cut, whole, labels.shape[-1], hidden.device)
            targets = numbers.targets
        labels = labels_on_cpu
        assert targets.rows is not None
        hidden = hidden.flatten(0, -2)  # [B·T, H]
        z = self._logits(model, hidden.index_select(0, targets.rows), loss.columns)
        length = output.log_probs.shape[1]  # TRL leaves out the last position, which predicts nothing
        log_p = nn.functional.pad(output.log_probs, (0, labels.shape[1] - length))  # [B, T]
        # A label's logit minus its log-probability is the log-sum-exp of its row.
        lse = z.gather(1, targets.index[:, None])[:, 0] - log_p.flatten().index_select(0, targets.rows).to(z.dtype)
        items, units = self.counts.num_items, self.counts.num_units
        rest = rest_of(z, lse) if loss.uses_rest else None
        total = (loss.per_row(z, rest, targets) if numbers is None else numbers.costs(loss, z, rest)).sum()
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
        return NumericTerm(out, torch.as_tensor(digits, device=hidden.device)), log_p[:, :length]

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


def logit_shape(config: Any) -> tuple[float | None, float | None]:
    """Return the scale and the soft cap of a model's logits from its configuration, as TRL reads them."""
    text = config.get_text_config()
    names = ("logit_scale", "output_multiplier", "lm_head_multiplier")
    scale = next((value for name in names if (value := getattr(text, name, None)) is not None), None)
    divisor = getattr(text, "logits_scaling", None)
    if scale is None and divisor is not None:
        scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
    return scale, getattr(text, "final_logit_softcapping", None)
