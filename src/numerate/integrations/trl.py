"""TRL: ``NumericSFTTrainer(model, args, objective=objective, ...)`` in place of ``SFTTrainer``.

TRL never builds logits: it runs the backbone once, and takes log-probabilities, entropy and accuracy from hidden states and
head in chunks. All of that stays. The numeric term is taken from the same hidden states, ``hidden[rows] @ weight[columns].T``
of the numeric positions and tokens alone, within the same forward pass, and is added to TRL's loss. Packing, padding-free
batches, completion-only and assistant-only loss, vision-language models and PEFT work as they do in TRL.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from types import MethodType
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from numerate.integrations.lazy_logits import find_head
from numerate.integrations.step import Batch, Counts, Parts, aligned, check_objective, refuse_split_sequences, without_repeats
from numerate.losses.rows import divide, rest_of, wide
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.objective.head import Head
from numerate.objective.term import mean_mass

_OLDEST, _TOO_NEW = "1.16", "1.17"
if not Version(_OLDEST) <= Version(version("trl")) < Version(_TOO_NEW):
    raise ImportError(
        f"trl {version('trl')} is not supported: expected >= {_OLDEST} and < {_TOO_NEW}, since this trainer reaches into how "
        f"SFTTrainer computes its loss. Install with `pip install 'trl~={_OLDEST}.0'`, or use numerate.integrations.transformers."
    )

from trl import SFTTrainer  # noqa: E402 - once it is known to fit
from trl.trainer.utils import FusedCausalLMOutput  # noqa: E402


class NumericSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's ``SFTTrainer``, whose loss is TRL's plus ``objective.weight`` times a numeric term.

    The term is normalised over the whole optimizer step, all micro-batches and processes, as in
    :func:`numerate.integrations.transformers.attach`, and logs the same parts.

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
                "make: expected neither; use numerate.integrations.transformers.attach with a transformers Trainer."
            )
        refuse_split_sequences(objective, self.get_cp_size(), self.get_sp_size())
        # TRL's loss divides by the tokens of the whole step if it is told; some vision models say that theirs does not.
        self.model_accepts_loss_kwargs = True
        self.objective = objective.to(self.args.device)
        self._step_counts: Counts | None = None
        self._left, self._first = 0, True  # micro-batches of the step to come, and whether the next is its first
        self._training, self._evaluation = Parts(), Parts()
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        self._numeric = _NumericForward(base, self.objective)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the step that begins."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        self._step_counts, self._left, self._first = (self._count(batches) if batches else None), len(batches), True
        return batches, num_items

    def _count(self, batches: list[Batch]) -> Counts:
        copies = self.get_tp_size() * self.get_cp_size()
        return Counts.of(self.objective, batches, shift=not _has_virtual_tokens(self.model)).over(self.accelerator, copies)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss, and the numeric term of the same forward pass."""
        training = self.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        if not training:
            inputs = without_repeats(inputs, self.accelerator)
        counts = self._step_counts if in_step else self._count([inputs])
        assert counts is not None
        self._numeric.begin(counts)
        result = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        loss, outputs = result if return_outputs else (result, None)
        made = self._numeric.take()
        if training:
            self._training.add_step(made.out, counts, made.positions, first=self._first or not in_step)
            self._left, self._first = max(self._left - 1, 0), False
        else:
            self._evaluation.add_batch(made.out, counts, made.positions, self.objective, 0.0)
        loss = loss + made.out.loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """TRL's metrics, and our parts of the whole set."""
        self._evaluation = Parts()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        parts = self._evaluation.of_set(self.accelerator, self.objective)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in parts.items() if name != "loss"})
        return output

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """TRL's logs and ours."""
        if "loss" in logs:
            logs.update(self._training.of_steps(self.accelerator))
        super().log(logs, *args, **kwargs)


@dataclass
class NumericCausalLMOutput(FusedCausalLMOutput):  # type: ignore[misc]
    """TRL's output and the numeric term: part of the output, so that whoever shards the model sees its gradient coming."""

    numeric: Tensor | None = None


@dataclass
class _Made:
    out: ObjectiveOutput  # whose loss is the numeric term alone, weighed
    positions: Tensor


class _NumericForward:
    """Wraps a model's forward: where TRL asks for log-probabilities, the numeric term is computed along with them."""

    def __init__(self, model: nn.Module, objective: NumericObjective) -> None:
        self.objective = objective
        self.made: _Made | None = None
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
            self.made = self._term(owner, hidden, output, kwargs)
            return NumericCausalLMOutput(**output, numeric=self.made.out.loss)

        model.forward = MethodType(forward, model)

    def begin(self, counts: Counts) -> None:
        self.counts, self.made = counts, None

    def take(self) -> _Made:
        made, self.made = self.made, None
        assert made is not None, "TRL called no fused forward"
        return made

    def _keep_hidden(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.hidden = output.last_hidden_state

    def _term(self, model: nn.Module, hidden: Tensor | None, output: FusedCausalLMOutput, batch: Batch) -> _Made:
        assert hidden is not None
        objective, loss = self.objective, self.objective.numeric_loss
        labels, positions = aligned(batch, shift=True)
        # Read on the CPU, as `fused` does: their number decides shapes.
        targets = loss.targets(
            labels.cpu(),
            position_ids=None if positions is None else positions.cpu(),
            compact=True,
        ).to(hidden.device)
        assert targets.rows is not None
        z = self._logits(model, hidden.flatten(0, -2).index_select(0, targets.rows))
        log_p = output.log_probs
        if log_p.shape[1] < labels.shape[1]:  # TRL leaves out the last position, which predicts nothing
            log_p = nn.functional.pad(log_p, (0, labels.shape[1] - log_p.shape[1]))
        # A label's logit less its log-probability is the log-sum-exp of its row.
        lse = z.gather(1, targets.index[:, None])[:, 0] - log_p.flatten().index_select(0, targets.rows).to(z.dtype)
        total = loss.per_row(z, rest_of(z, lse) if loss.uses_rest else None, targets).sum()
        term = divide(total, objective.weighting.denominator(self.counts.items, self.counts.units))
        ce = divide(-output.log_probs.detach().sum(), self.counts.items)
        mass = mean_mass(loss, z.detach(), lse.detach(), targets)
        weighed = objective.weighting.factor(ce, term) * term
        parts = ObjectiveOutput(weighed, ce, term.detach(), self.counts.items, self.counts.units, mass)
        digits = targets.slots if targets.mask is None else targets.mask.sum()
        return _Made(parts, torch.as_tensor(digits, device=hidden.device))

    def _logits(self, model: nn.Module, rows: Tensor) -> Tensor:
        """``z [P, N]`` of hidden states ``[P, H]``, from the head's numeric rows alone where it is plain."""
        columns = self.objective.numeric_loss.columns
        linear, _ = find_head(model)
        if linear is None:
            head = Head(rows, None, self.logit_scale, self.softcap)
            return head.shaped(model.get_output_embeddings()(rows)[:, columns].to(wide(rows.dtype)))  # type: ignore[operator]
        head = Head(linear.weight, linear.bias, self.logit_scale, self.softcap)
        z = rows.to(linear.weight.dtype) @ linear.weight.index_select(0, columns).T
        return head.shaped(z.to(wide(z.dtype)), columns)


def _has_virtual_tokens(model: nn.Module) -> bool:
    """Whether PEFT puts virtual tokens before a text: the last of them predicts its first label."""
    config = getattr(model, "active_peft_config", None)
    return bool(config is not None and config.is_prompt_learning and config.peft_type not in ("PREFIX_TUNING", "CARTRIDGE"))


def logit_shape(config: Any) -> tuple[float | None, float | None]:
    """By what a model of this configuration multiplies its logits, and at what it caps them; as TRL reads it."""
    text = config.get_text_config()
    named = ("logit_scale", "output_multiplier", "lm_head_multiplier")
    scale = next((value for name in named if (value := getattr(text, name, None)) is not None), None)
    divisor = getattr(text, "logits_scaling", None)
    if scale is None and divisor is not None:
        scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
    return scale, getattr(text, "final_logit_softcapping", None)
