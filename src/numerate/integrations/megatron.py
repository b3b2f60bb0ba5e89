"""Megatron Core: the objective in place of a model's ``compute_language_model_loss``.

Where the model is made::

    model = GPTModel(...)
    numerate.integrations.megatron.attach(model, NumericObjective(SMMDLoss(vocab), normalize="tokens"))

The model then returns losses ``[b, s]`` of the objective from its shard of the vocabulary, ``[s, b, V / tp]``, which your
``loss_func`` masks, sums and counts as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from numerate.checks import public_dir
from numerate.integrations.counts import count_step
from numerate.integrations.step import check_objective
from numerate.objective import CutSequence, NumericObjective

__all__ = ["MegatronLoss", "attach"]
__dir__ = public_dir(globals())


def attach(model: nn.Module, objective: NumericObjective, *, vocab_size: int | None = None) -> MegatronLoss:
    """Train a ``GPTModel`` or another language module of Megatron Core with an objective.

    Call it where the model is made, before it is wrapped, on every process. Tensor parallelism (also with Megatron's sequence
    parallelism), pipelines and context parallelism are those of the model. Multi-token prediction keeps Megatron's cross-entropy
    at its other depths.

    Args:
        model: with ``compute_language_model_loss``. Positions whose ``loss_mask`` is zero have no label.
        objective: with ``normalize="tokens"``; or ``"numeric"``, the default, if each step is counted before it begins, by
            :meth:`MegatronLoss.count`.
        vocab_size: number of tokens, without padding; padding then takes no part in the softmax. None: it does, as in
            Megatron's own loss.
    """
    check_objective(objective)
    if not callable(getattr(model, "compute_language_model_loss", None)):
        raise TypeError(
            f"model is a {type(model).__name__} without compute_language_model_loss: expected a language module of Megatron Core "
            "such as GPTModel, before it is wrapped; call attach in the model provider."
        )
    groups: Any = getattr(model, "pg_collection", None)
    if not hasattr(groups, "tp") or not hasattr(groups, "cp"):
        raise TypeError(
            f"{type(model).__name__} has no pg_collection with tp and cp: expected a model that knows its process groups, as "
            "those of megatron-core 0.16 do."
        )
    if not getattr(model, "parallel_output", True) and dist.get_world_size(groups.tp) > 1:
        raise NotImplementedError("parallel_output=False gathers the logits of all shards: expected parallel_output=True.")
    return MegatronLoss(model, objective, vocab_size)


class MegatronLoss:
    """What :func:`attach` returns."""

    def __init__(self, model: Any, objective: NumericObjective, vocab_size: int | None) -> None:
        self.model, self.objective, self.vocab_size = model, objective, vocab_size
        self._groups = model.pg_collection
        self._own_loss = model.compute_language_model_loss
        self._signature = inspect.signature(model.forward)
        self._given: dict[str, Any] | None = None  # the arguments of the forward pass
        self._counts: tuple[Tensor, Tensor] | None = None
        self._counted = 0  # micro-batches of the step that are still to come
        if "compute_language_model_loss" in vars(model):
            raise RuntimeError("model.compute_language_model_loss was replaced already: call .detach() on the first attachment.")
        model.compute_language_model_loss = self._loss
        self._hook = model.register_forward_pre_hook(self._remember, with_kwargs=True)

    def detach(self) -> None:
        """Give the model its own loss back."""
        self._hook.remove()
        vars(self.model).pop("compute_language_model_loss", None)

    def count(self, batches: Sequence[Mapping[str, Any]], *, group: Any = None) -> None:
        """Count an optimizer step before its first forward pass, over the processes of data parallelism.

        Needed with ``normalize="numeric"``, and a loop of your own around Megatron's ``forward_backward_func``.

        Args:
            batches: all micro-batches of this process, with ``labels`` and ``loss_mask``; sequences that context parallelism has
                not cut. Processes of one tensor-, context- or pipeline-parallel group have the same.
            group: the processes with different batches. Default: the model's data-parallel group, without context parallelism.
        """
        group = getattr(self._groups, "dp", None) if group is None else group
        if group is None:
            raise ValueError("the model's pg_collection has no dp: expected group=, such as get_data_parallel_group().")
        labels = [{"labels": self._masked(batch["labels"], batch.get("loss_mask"))} for batch in batches]
        device = next((parameter.device for parameter in self.model.parameters()), None)
        self._counts = count_step(self.objective, labels, shift=False, group=group, device=device)
        self._counted = len(labels)

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = self._signature.bind_partial(*args, **kwargs).arguments

    def _masked(self, labels: Tensor, loss_mask: Tensor | None) -> Tensor:
        return labels if loss_mask is None else labels.masked_fill(loss_mask == 0, self.objective.ignore_index)

    def _loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Replace ``compute_language_model_loss``: labels ``[b, s]`` and logits ``[s, b, V / tp]`` to losses ``[b, s]``."""
        if self._given is None:
            raise NotImplementedError(
                "the loss was called without the model's forward, as overlap_moe_expert_parallel_comm does: expected a schedule "
                "that calls the model; turn it off."
            )
        if labels is not self._given.get("labels"):  # a further depth of multi-token prediction
            return self._own_loss(labels, logits)  # type: ignore[no-any-return]
        given, self._given = self._given, None
        num_items, num_units = self._step_counts()
        losses = self.objective.per_position(
            logits.transpose(0, 1),
            self._masked(labels, given.get("loss_mask")),
            num_items=num_items,
            num_units=num_units,
            group=self._groups.tp,
            vocab_size=self.vocab_size,
            cut=self._cut(given.get("packed_seq_params")),
        )
        return losses.contiguous()

    def _cut(self, packed: Any) -> CutSequence | None:
        size = dist.get_world_size(self._groups.cp)
        if size == 1:
            return None
        if packed is not None:
            raise NotImplementedError(
                f"context parallelism over {size} processes cuts each document of packed sequences (packed_seq_params) by "
                "itself, which no CutSequence describes: expected sequences that are not packed, or context_parallel_size=1."
            )
        return CutSequence(self._groups.cp, "zigzag")

    def _step_counts(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the counts of the step, which evaluation and ``normalize="tokens"`` do not need."""
        if self.objective.normalize == "tokens" or not self.model.training:
            return None, None
        if self._counts is None or not self._counted:
            raise RuntimeError(
                "normalize='numeric' divides by the numbers of a whole step, which Megatron does not count, and this micro-batch "
                "was not counted: call count(batches) with all micro-batches of each step before its first forward pass; or set "
                "normalize='tokens'."
            )
        self._counted -= 1
        return self._counts
