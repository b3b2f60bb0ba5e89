"""NeMo Automodel: an objective as the ``loss_fn`` of a recipe.

In the YAML::

    loss_fn:
      _target_: numerate.integrations.nemo.build_loss
      tokenizer: Qwen/Qwen3-0.6B
      numeric_loss: smmd
      weight: 0.3

The loss takes logits, as ``MaskedCrossEntropy`` does, and divides by ``num_label_tokens``, the label tokens of the step.
``nemo_automodel`` is imported by the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from numerate.checks import public_dir
from numerate.integrations.section import Section
from numerate.integrations.step import check_objective, reads_complete_numbers
from numerate.objective import CutSequence, NumericObjective
from numerate.objective.cut_sequence import refuse_cut

__all__ = ["build_loss", "loss_of"]
__dir__ = public_dir(globals())


def build_loss(
    tokenizer: str,
    numeric_loss: str = "smmd",
    weight: float = 0.3,
    settings: Mapping[str, Any] | None = None,
    *,
    label_smoothing: float = 0.0,
    whole_sequences: bool = False,
) -> nn.Module:
    """Return the loss of a recipe, from what a YAML can say.

    Args:
        tokenizer: name or folder of the model's tokenizer, for ``AutoTokenizer``.
        numeric_loss: a name of ``numerate.LOSSES``. (NeMo calls the function itself ``loss``.)
        weight: of the numeric term.
        settings: of the loss, such as ``sigma``.
        label_smoothing: of the cross-entropy.
        whole_sequences: as for :func:`loss_of`.
    """
    section = Section(numeric_loss, weight, "tokens", dict(settings or {}))
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    objective = section.objective(made, label_smoothing=label_smoothing)
    return loss_of(objective, whole_sequences=whole_sequences)


def loss_of(objective: NumericObjective, *, whole_sequences: bool = False, cut: CutSequence | None = None) -> nn.Module:
    """Return the ``loss_fn`` of an objective: ``loss_fn(logits=..., labels=..., num_label_tokens=...)``.

    Args:
        objective: with ``normalize="tokens"``, since the recipe counts the label tokens of a step, and not its numbers.
        whole_sequences: that ``distributed.cp_size`` is 1, so that no process has a part of a number. Needed for losses that read
            complete numbers: the recipe does not give its loss a sign of context parallelism.
        cut: how context parallelism cuts sequences, for such losses: ``CutSequence(recipe.device_mesh["cp"], "zigzag")`` where
            torch does, after ``recipe.setup()``, which makes the mesh.
    """
    check_objective(objective)
    if cut is not None:
        refuse_cut(objective.numeric_loss, objective.weighting, shift=False, with_overrun=False)
    if objective.normalize != "tokens":
        raise ValueError(
            f"normalize={objective.normalize!r}: NeMo Automodel does not count the numbers of a step; expected "
            'NumericObjective(..., normalize="tokens").'
        )
    if reads_complete_numbers(objective.numeric_loss) and not whole_sequences and cut is None:
        raise ValueError(
            f"{type(objective.numeric_loss).__name__} reads complete numbers, which context parallelism cuts, and the recipe "
            "gives its loss no sign of it: expected whole_sequences=True with distributed.cp_size=1, cut=CutSequence(...), or a "
            "token-level loss such as SMMDLoss."
        )
    made: nn.Module = _kind()(objective, cut)
    return made


@cache
def _kind() -> Any:
    """Return the class; as a ``MaskedCrossEntropy`` it is not replaced by one where a model or pipeline supports no other."""
    base: Any = import_module("nemo_automodel.components.loss.masked_ce").MaskedCrossEntropy

    class MaskedObjective(base):  # type: ignore[misc]
        def __init__(self, objective: NumericObjective, cut: CutSequence | None) -> None:
            super().__init__(ignore_index=objective.ignore_index)
            self.objective, self.cut = objective, cut

        def forward(self, logits: Any, labels: Tensor, mask: Tensor | None = None, num_label_tokens: int | None = None) -> Tensor:
            labels = labels.to(logits.device)
            labels = labels.masked_fill(labels == -100, self.ignore_index)
            if mask is not None:
                labels = labels.masked_fill(mask.to(labels.device) == 0, self.ignore_index)
            # Pipelines pass no count, and divide the gradients of the sum.
            out = self.objective(logits, labels, num_items=1 if num_label_tokens is None else num_label_tokens, cut=self.cut)
            return out.loss

    return MaskedObjective
