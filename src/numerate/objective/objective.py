"""NumericObjective: cross-entropy plus a numeric term, and how both are normalised.

    loss = CE_sum / num_items + weight · numeric_sum / num_units

The cross-entropy of a position is that of its label, or against a distribution over tokens. Both sums run over the batch. Both
counts may be those of a whole optimizer step, over all its micro-batches and processes: then any split of a batch gives the same
gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from numerate.checks import check_choice, check_number, choices
from numerate.choices import Normalize, Scale
from numerate.losses.base import NumericLoss
from numerate.objective.batch import BatchLabels, ObjectiveOutput
from numerate.objective.from_hidden import HeadGradDtype, Impl, objective_from_hidden
from numerate.objective.from_logits import objective_from_logits
from numerate.objective.head import Head
from numerate.objective.no_loss import NoLoss
from numerate.objective.weighting import Weighting
from numerate.targets.soft_targets import SoftTargets
from numerate.vocab import NumericVocab


class NumericObjective(nn.Module):
    """Cross-entropy plus ``weight`` times a numeric loss.

    Args:
        loss: a numeric loss, such as ``SMMDLoss(vocab)``; None for cross-entropy alone, with soft targets for example.
        weight: λ, the factor of the numeric term.
        normalize: ``"numeric"`` divides the numeric term by the numeric positions (or numbers), ``"tokens"`` by all
            label tokens, which gives it less influence in a batch with few numbers.
        scale: ``"fixed"``, or ``"match_ce"``: the numeric term is rescaled, without gradient, to ``weight`` times the
            cross-entropy, as NTIL's published code does. That factor is computed per batch, so that a split into
            micro-batches changes the gradient.
        label_smoothing: of the cross-entropy, as in ``F.cross_entropy``.
        vocab: the numeric tokens, for ``loss=None`` alone: a numeric loss has its own. Training does not read them, but
            ``with_overrun`` and the logs of the trainers do.

    All settings but ``loss`` are plain attributes and may be changed between steps, for example to warm up ``weight``.

    Examples:
        >>> import torch
        >>> from numerate import NumericVocab, SMMDLoss
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=12)
        >>> objective = NumericObjective(SMMDLoss(vocab), weight=0.3)
        >>> logits = torch.zeros(1, 4, 12, requires_grad=True)
        >>> out = objective(logits, torch.tensor([[11, 4, 2, -100]]))
        >>> out.loss.backward()
        >>> int(out.num_items), int(out.num_units)
        (3, 2)
    """

    def __init__(
        self,
        loss: NumericLoss | None,
        weight: float = 0.3,
        normalize: Normalize = "numeric",
        scale: Scale = "fixed",
        label_smoothing: float = 0.0,
        *,
        vocab: NumericVocab | None = None,
    ) -> None:
        super().__init__()
        if loss is not None and not isinstance(loss, NumericLoss):
            raise TypeError(f"loss is a {type(loss).__name__}: expected a numeric loss such as SMMDLoss(vocab), or None.")
        if loss is not None and vocab is not None:
            raise TypeError(
                f"vocab is given with {type(loss).__name__}, which has its own: expected vocab=... for loss=None alone."
            )
        check_choice("normalize", normalize, choices(Normalize))
        check_choice("scale", scale, choices(Scale))
        self.numeric_loss: NumericLoss = NoLoss(vocab) if loss is None else loss
        self.weight = check_number("weight", weight, least=0.0)
        self.normalize: Normalize = normalize
        self.scale: Scale = scale
        self.label_smoothing = check_number("label_smoothing", label_smoothing, least=0.0)
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r} is out of range: expected a share in [0, 1).")

    @property
    def ignore_index(self) -> int:
        """Label of positions to skip: a setting of the numeric loss."""
        return self.numeric_loss.ignore_index

    @property
    def weighting(self) -> Weighting:
        """The current settings as one object."""
        return Weighting(self.weight, self.normalize, self.scale, self.label_smoothing)

    def count(
        self,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_weights: Tensor | None = None,
        shift: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return ``num_items`` and ``num_units`` of these labels.

        Sum them over the batches of an optimizer step, and pass the sums to :meth:`forward` or :meth:`fused` with each batch.
        """
        batch = BatchLabels(labels, position_weights, position_ids, token_weights=token_weights)
        batch = batch.checked(self.numeric_loss, shift=shift)
        return batch.count(self.numeric_loss)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        num_items: int | Tensor | None = None,
        num_units: int | float | Tensor | None = None,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_weights: Tensor | None = None,
        soft: SoftTargets | None = None,
        shift: bool = False,
        with_mass: bool = False,
        with_overrun: bool = False,
    ) -> ObjectiveOutput:
        """Return the objective of ``logits [.., T, V]`` for ``labels [.., T]``, which are ALIGNED unless ``shift`` is set.

        Args:
            logits: scores of any floating dtype.
            labels: token ids, or ``ignore_index``.
            num_items: label tokens to divide the cross-entropy by. Default: those of this batch, or the sum of their weights.
            num_units: numeric positions (or numbers) to divide the numeric term by. Default: those of this batch.
            position_weights: ``[.., T]``, factor of each position in the numeric term.
            position_ids: ``[.., T]`` for packed sequences; a 0 begins a new document.
            token_weights: ``[.., T]``, factor of each position in the cross-entropy.
            soft: targets that are distributions over tokens, at some positions: see :class:`numerate.targets.SoftTargets`. The
                numeric term is that of the labels.
            shift: set it for the raw labels of a causal model; labels, and all that belongs to their positions, are then
                shifted left by one. Labels that equal ``input_ids`` wherever they are not ``ignore_index`` are raw.
                Labels that equal the next position's ``input_ids`` are aligned.
            with_mass: also return the mean probability of the numeric tokens where the label is one, for logs.
            with_overrun: also return the mean probability of the numeric tokens at the first label after a number, for logs: 0
                is right, and near 1 numbers do not end. A point within a number does not count. None without a vocabulary.
        """
        batch = BatchLabels(labels, position_weights, position_ids, num_items, num_units, token_weights, soft)
        batch = batch.checked(self.numeric_loss, shift=shift)
        return objective_from_logits(
            self.numeric_loss, self.weighting, logits, batch, with_mass=with_mass, with_overrun=with_overrun
        )

    if TYPE_CHECKING:  # nn.Module's returns Any
        __call__ = forward

    def fused(  # noqa: D417
        self,
        hidden: Tensor,
        head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        num_items: int | Tensor | None = None,
        num_units: int | float | Tensor | None = None,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_weights: Tensor | None = None,
        soft: SoftTargets | None = None,
        shift: bool = False,
        logit_scale: float | None = None,
        softcap: float | None = None,
        impl: Impl = "auto",
        max_logits_mib: float | None = None,
        head_grad_dtype: HeadGradDtype = "float32",
        with_mass: bool = False,
        with_overrun: bool = False,
    ) -> ObjectiveOutput:
        """Return the same objective from ``hidden [.., T, H]`` and ``head_weight [V, H]``, without building all logits.

        Loss and gradients are those of ``objective(hidden @ head_weight.T + bias, labels)``. Rows without a label cost
        nothing. A head that requires no gradient needs neither the product nor the memory for it.

        Args:
            hidden: the model's last hidden states.
            head_weight: the weight of the head, such as ``lm_head.weight``; tied embeddings work too.
            labels: token ids, or ``ignore_index``; aligned with ``hidden`` unless ``shift`` is set.
            bias: of the head, ``[V]``.
            logit_scale: factor of the logits, as in Cohere's and Granite's models.
            softcap: logits become ``softcap · tanh(logits / softcap)``, as in Gemma's models, after ``logit_scale``.
            impl: ``"triton"`` needs CUDA and bfloat16, float16 or float32; ``"torch"`` runs anywhere; ``"auto"`` chooses.
            max_logits_mib: memory for the logits of one chunk. Default: 1/64 of the GPU's memory, 64 MiB on a CPU.
            head_grad_dtype: dtype in which the head's gradient is summed over chunks: ``"float32"``, or ``"weight"`` for the
                dtype of ``head_weight``, which takes half the memory in half precision.

        All other arguments are those of :meth:`forward`.
        """
        batch = BatchLabels(labels, position_weights, position_ids, num_items, num_units, token_weights, soft)
        output: ObjectiveOutput = objective_from_hidden(
            self.numeric_loss,
            self.weighting,
            hidden,
            Head(head_weight, bias, logit_scale, softcap),
            batch.checked(self.numeric_loss, shift=shift),
            impl=impl,
            max_logits_mib=max_logits_mib,
            head_grad_dtype=head_grad_dtype,
            with_mass=with_mass,
            with_overrun=with_overrun,
        )
        return output

    def extra_repr(self) -> str:
        """Shown by ``repr(objective)``."""
        return f"weight={self.weight}, normalize={self.normalize!r}, scale={self.scale!r}"
