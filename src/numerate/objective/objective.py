"""NumericObjective: cross-entropy plus a numeric term, and how both are normalised.

    loss = CE_sum / num_items + weight · numeric_sum / num_units

The target of the cross-entropy at a position is its label, or a distribution over tokens. Both sums are over the batch. If both
counts are those of the whole optimizer step, summed over micro-batches and processes, the gradient does not depend on how the
step is split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from numerate.checks import check_choice, check_number, choices
from numerate.choices import Normalize, Scale
from numerate.losses.base import NumericLoss
from numerate.objective.batch import BatchLabels, ObjectiveOutput
from numerate.objective.cut_sequence import CutSequence, refuse_cut
from numerate.objective.from_hidden import HeadGradDtype, Impl, objective_from_hidden
from numerate.objective.from_logits import objective_from_logits, objective_over_processes
from numerate.objective.head import Head
from numerate.objective.logit_columns import ALL_COLUMNS
from numerate.objective.no_loss import NoLoss
from numerate.objective.per_position import objective_per_position
from numerate.objective.placements import local_head, local_logits
from numerate.objective.weighting import Weighting
from numerate.targets.soft_targets import SoftTargets
from numerate.vocab import NumericVocab


class NumericObjective(nn.Module):
    """Cross-entropy plus ``weight`` times a numeric loss.

    Args:
        loss: a numeric loss, such as ``SMMDLoss(vocab)``; None for cross-entropy alone, for example with soft targets.
        weight: weight λ of the numeric term.
        normalize: denominator of the numeric term: ``"numeric"``, the number of numeric positions (or numbers), or
            ``"tokens"``, the number of label tokens, which gives batches with few numbers less weight.
        scale: ``"fixed"``, or ``"match_ce"``: rescale the numeric term, without gradient, to ``weight`` times the cross-entropy,
            as NTIL's published code does. The factor is computed per batch, so that the gradient depends on how a step is
            split into micro-batches.
        label_smoothing: label smoothing of the cross-entropy, as in ``F.cross_entropy``.
        vocab: the numeric tokens, only with ``loss=None``. Used by ``with_overrun`` and the logs of the trainers, not for
            training.

    All settings except ``loss`` are plain attributes and may be changed between steps, for example to warm up ``weight``.

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
                f"vocab is given with {type(loss).__name__}, which has its own: expected vocab=... only with loss=None."
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

        Sum them over the micro-batches of an optimizer step, and pass the sums to :meth:`forward` or :meth:`fused`.
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
        group: Any = None,
        vocab_size: int | None = None,
        cut: CutSequence | None = None,
    ) -> ObjectiveOutput:
        """Return the objective of ``logits [.., T, V]`` for ``labels [.., T]``, aligned unless ``shift`` is set.

        Args:
            logits: logits of any floating dtype.
            labels: token ids, or ``ignore_index``.
            num_items: denominator of the cross-entropy. Default: the number of label tokens of this batch, or the sum of their
                ``token_weights``.
            num_units: denominator of the numeric term. Default: the number of numeric positions (or numbers) of this batch.
            position_weights: ``[.., T]``, weight of each position in the numeric term.
            position_ids: ``[.., T]`` for packed sequences; a 0 starts a new document.
            token_weights: ``[.., T]``, weight of each position in the cross-entropy.
            soft: soft targets of the cross-entropy at some positions, see :class:`numerate.targets.SoftTargets`. The numeric
                term uses the labels.
            shift: shift labels, and every other argument with a position dimension, one position to the left. Set it if labels
                equal ``input_ids`` (or ``ignore_index``) at each position; leave it if they are already shifted.
            with_mass: also return the mean probability of the numeric tokens at numeric labels, for logging.
            with_overrun: also return the mean probability of the numeric tokens at the first label after a number, for logging:
                ideally 0; close to 1 if numbers do not end. None without a vocabulary.
            group: the process group of tensor parallelism, if ``logits`` are this process's shard ``[.., T, V / processes]`` of
                the vocabulary. All processes of the group pass the same labels, get the same output, and the gradient of their
                own shard. A DTensor that is sharded over the vocabulary needs no group.
            vocab_size: number of tokens, without the padding of the last shards, or where the last shard is shorter than the
                others. Padding takes no part in the softmax. None: every column is a token, and shards have equal size.
            cut: how sequences are cut over processes, if logits, labels and what belongs to them are this process's part. Then
                ``loss`` and the parts are this process's share: their sums over the processes are those of the whole sequences,
                as the default counts are; ``mass`` is the mean of its positions. All processes have the same number of positions.
        """
        if cut is not None:
            refuse_cut(self.numeric_loss, self.weighting, shift=shift, with_overrun=with_overrun)
        batch = BatchLabels(labels, position_weights, position_ids, num_items, num_units, token_weights, soft)
        batch = batch.checked(self.numeric_loss, shift=shift)
        logits, columns = local_logits(logits, group, vocab_size)
        compute = objective_from_logits if columns is ALL_COLUMNS and cut is None else objective_over_processes
        figures = {"with_mass": with_mass, "with_overrun": with_overrun}
        return compute(self.numeric_loss, self.weighting, logits, batch, columns, cut, **figures)

    def per_position(
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
        group: Any = None,
        vocab_size: int | None = None,
        cut: CutSequence | None = None,
    ) -> Tensor:
        """Return the objective of each position ``[.., T]``, for frameworks that sum the losses of tokens and divide them.

        Their sum, divided by ``num_items``, is the ``loss`` of :meth:`forward`; its gradient may weigh or mask them in any way.
        A position without a label has 0; with ``shift``, each position has the loss of the label that it predicts. A number-level
        loss is at the first digit of each number.

        With ``normalize="numeric"``, pass both counts of the optimizer step, as :func:`numerate.integrations.counts.count_step`
        returns them: the numeric term is multiplied by ``num_items / num_units``, since the framework divides it by the label
        tokens. With ``normalize="tokens"`` no count is needed.

        With ``cut``, the gradients of numbers that touch a border are exchanged in the backward pass, which all processes need to
        run. See :meth:`forward` for the arguments.

        Examples:
            >>> import torch
            >>> from numerate import NumericVocab, SMMDLoss
            >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=12)
            >>> objective = NumericObjective(SMMDLoss(vocab), normalize="tokens")
            >>> losses = objective.per_position(torch.zeros(1, 4, 12), torch.tensor([[11, 4, 2, -100]]))
            >>> [round(loss, 3) for loss in losses[0].tolist()]
            [2.485, 2.755, 2.766, 0.0]
        """
        if cut is not None:
            refuse_cut(self.numeric_loss, self.weighting, shift=shift, with_overrun=False)
        batch = BatchLabels(labels, position_weights, position_ids, num_items, num_units, token_weights, soft)
        batch = batch.checked(self.numeric_loss, shift=shift)
        logits, columns = local_logits(logits, group, vocab_size)
        losses: Tensor = objective_per_position(self.numeric_loss, self.weighting, logits, batch, columns, cut)
        return losses

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
        group: Any = None,
        vocab_size: int | None = None,
        cut: CutSequence | None = None,
    ) -> ObjectiveOutput:
        """Return the objective from ``hidden [.., T, H]`` and ``head_weight [V, H]``, without materializing all logits.

        Loss and gradients are those of ``objective(hidden @ head_weight.T + bias, labels)``. Rows without a label are skipped,
        and gradients that are not required are not computed.

        Args:
            hidden: the model's last hidden states.
            head_weight: weight of the head, such as ``lm_head.weight``; may be tied to the embeddings.
            labels: token ids, or ``ignore_index``; aligned with ``hidden`` unless ``shift`` is set.
            bias: bias of the head, ``[V]``.
            logit_scale: factor of the logits, as in Cohere and Granite models.
            softcap: apply ``softcap · tanh(logits / softcap)`` after ``logit_scale``, as in Gemma models.
            impl: ``"triton"`` needs CUDA and bfloat16, float16 or float32; ``"torch"`` runs anywhere; ``"auto"`` chooses.
            max_logits_mib: memory for the logits of one chunk. Default: 1/64 of the GPU's memory, 64 MiB on a CPU.
            head_grad_dtype: accumulation dtype of the head's gradient over chunks: ``"float32"``, or ``"weight"`` for the dtype
                of ``head_weight``, which saves half the memory in half precision.
            group: as in :meth:`forward`; ``head_weight [V / processes, H]`` and ``bias`` are then shards, and ``hidden`` is the
                same on all processes, as is its gradient, which is summed over them.

        See :meth:`forward` for the other arguments.
        """
        if cut is not None:
            refuse_cut(self.numeric_loss, self.weighting, shift=shift, with_overrun=with_overrun)
        batch = BatchLabels(labels, position_weights, position_ids, num_items, num_units, token_weights, soft)
        batch = batch.checked(self.numeric_loss, shift=shift)
        hidden, head, shard = local_head(hidden, Head(head_weight, bias, logit_scale, softcap), group, vocab_size)
        output: ObjectiveOutput = objective_from_hidden(
            self.numeric_loss,
            self.weighting,
            hidden,
            head,
            batch,
            shard,
            cut,
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
