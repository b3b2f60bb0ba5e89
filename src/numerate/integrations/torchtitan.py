"""torchtitan: an objective as the ``loss`` of a ``Trainer.Config``.

In a function of a config registry::

    def llama3_8b_numbers() -> Trainer.Config:
        config = llama3_8b()
        config.loss = numerate.integrations.torchtitan.loss_config(objective, vocab_size=decoder_vocab_size(config.model_spec))
        return config

torchtitan is imported by the call. Each micro-batch is divided by ``global_valid_tokens``, the label tokens of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from numerate.checks import check_choice, check_integer, choices, public_dir
from numerate.integrations.lazy_logits import override
from numerate.integrations.step import check_objective, reads_complete_numbers
from numerate.objective import CutSequence, NumericObjective
from numerate.objective.cut_sequence import Order

__all__ = ["loss_config"]
__dir__ = public_dir(globals())


def loss_config(objective: NumericObjective, *, vocab_size: int, fused: bool = True, order: Order | None = None) -> Any:
    """Return a ``BaseLoss.Config`` for ``Trainer.Config(loss=...)``.

    Args:
        objective: with ``normalize="tokens"``, since torchtitan counts the label tokens of a step, and not its numbers.
        vocab_size: number of columns of the head of all tensor-parallel processes, ``decoder_vocab_size(model_spec)``.
        fused: whether to take hidden states and the head, in place of ``ChunkedLossWrapper``; else logits, as
            ``CrossEntropyLoss`` does.
        order: how context parallelism cuts sequences, for losses that read complete numbers: ``"zigzag"`` with
            ``context_parallel_load_balancer="headtail"``, its default, ``"contiguous"`` with None. Needs ``fused=False``.
    """
    check_objective(objective)
    check_integer("vocab_size", vocab_size, "the number of columns of the head, an integer >= 1", least=1)
    if objective.normalize != "tokens":
        raise ValueError(
            f"normalize={objective.normalize!r}: torchtitan does not count the numbers of a step; expected "
            'NumericObjective(..., normalize="tokens"). A weight w then has the effect of w · label tokens / numbers before.'
        )
    if order is not None:
        check_choice("order", order, choices(Order))
    if fused and order is not None:
        raise ValueError(f"order={order!r} has no effect with fused=True, which cannot read numbers that are cut: leave out one.")
    return _kinds()[fused].Config(objective=lambda: objective, vocab_size=vocab_size, order=order)


@cache
def _kinds() -> tuple[Any, Any]:
    """Return the losses of logits and of hidden states, which are built on torchtitan's classes."""
    losses: Any = import_module("torchtitan.components.loss")

    @dataclass(kw_only=True, slots=True)
    class TitanConfig(losses.BaseLoss.Config):  # type: ignore[misc]
        objective: Callable[[], NumericObjective]  # a function, into whose arguments torchtitan's command line does not look
        vocab_size: int
        order: str | None = None

    class LossOfLogits(losses.BaseLoss):  # type: ignore[misc]
        Config = make_dataclass("Config", [], bases=(TitanConfig,), kw_only=True, slots=True)

        def __init__(self, config: Any, *, compile_config: Any = None) -> None:
            self.config = config

        def __call__(
            self, pred: Any, labels: Any, global_valid_tokens: Tensor | None = None, **inputs: Any
        ) -> tuple[Tensor, dict[str, Tensor]]:
            objective, place = self.config.objective(), _Place.of(pred, labels)
            options = {"num_items": _denominator(global_valid_tokens), "cut": place.cut(objective, self.config.order)}
            return objective(pred, labels, **options, **place.shards(pred, self.config.vocab_size)).loss, {}

    class LossOfHiddenStates(losses.ChunkedLossWrapper):  # type: ignore[misc]
        """The trainer gives a ``ChunkedLossWrapper`` the head, and it hidden states."""

        Config = make_dataclass("Config", [], bases=(TitanConfig,), kw_only=True, slots=True)

        def __init__(self, config: Any, *, compile_config: Any = None) -> None:
            self.config = config
            self.lm_head: Any = None

        def __call__(
            self, pred: Any, labels: Any, global_valid_tokens: Tensor | None = None, **inputs: Any
        ) -> tuple[Tensor, dict[str, Tensor]]:
            objective, head, place = self.config.objective(), self.lm_head, _Place.of(pred, labels)
            if head is None:
                raise RuntimeError("the head is not known: expected set_lm_head(lm_head), which torchtitan's Trainer calls.")
            place.cut(objective, None)

            def forward(hidden: Tensor) -> Tensor:
                shards = place.shards(head.weight, self.config.vocab_size)
                if shards and hidden.requires_grad:  # torchtitan sums this gradient over the processes, as the objective does
                    hidden = hidden.view_as(hidden)
                    hidden.register_hook(lambda grad: grad / place.tp.size())
                options = {"num_items": _denominator(global_valid_tokens), **shards}
                loss: Tensor = objective.fused(hidden, head.weight, labels, head.bias, **options).loss
                return loss

            restore = override(head, "forward", forward)
            try:  # called as a module, so that FSDP gathers its weight and reduces the gradient
                return head(pred), {}
            finally:
                restore()

    return LossOfLogits, LossOfHiddenStates


def _denominator(global_valid_tokens: Tensor | None) -> Tensor | int:
    """Return the label tokens of the step; 1 in validation, where torchtitan divides the sum itself."""
    return 1 if global_valid_tokens is None else global_valid_tokens


@dataclass(frozen=True)
class _Place:
    """The processes of tensor and context parallelism, as far as torchtitan's backend says."""

    backend: str
    tp: Any  # a mesh of one dimension, or None
    cp: Any

    @classmethod
    def of(cls, pred: Any, labels: Any) -> _Place:
        """Read torchtitan's state; raise for what the objective cannot take."""
        if isinstance(pred, (list, tuple)):
            raise NotImplementedError(
                f"pred is a {type(pred).__name__} of {len(pred)} predictions, as multi-token prediction makes: expected one; use "
                "a model without MTP layers."
            )
        if type(labels).__name__ == "DTensor":
            raise NotImplementedError(
                "labels are a DTensor (parallelism.spmd_backend='full_dtensor'): expected 'spmd_types', the default, or "
                "'partial_dtensor'."
            )
        if import_module("spmd_types").is_type_checking():
            raise NotImplementedError("debug.spmd_typechecking has no types for the objective: expected it to be off.")
        state = import_module("torchtitan.distributed.spmd_types")
        backend, mesh = import_module("torchtitan.distributed.utils").get_spmd_backend(), state.current_spmd_mesh()
        tp, cp = (mesh[name] if state.spmd_mesh_size(name) > 1 else None for name in ("tp", "cp"))
        return cls(backend, tp, cp)

    def shards(self, tensor: Any, vocab_size: int) -> dict[str, Any]:
        """Return the group and size of plain shards of the vocabulary; a DTensor knows its own."""
        plain = self.tp is not None and type(tensor).__name__ != "DTensor"
        return {"group": self.tp.get_group(), "vocab_size": vocab_size} if plain else {}

    def cut(self, objective: NumericObjective, order: Order | None) -> CutSequence | None:
        """Return how sequences are cut, which token-level losses need not know."""
        name = type(objective.numeric_loss).__name__
        if not reads_complete_numbers(objective.numeric_loss):
            return None
        if self.backend != "spmd_types":
            raise NotImplementedError(
                f"parallelism.spmd_backend={self.backend!r} gives a loss no sign whether context parallelism cuts numbers, and "
                f"{name} reads complete ones: expected 'spmd_types', the default, or a token-level loss such as SMMDLoss."
            )
        if self.cp is None:
            return None
        if order is None:
            raise NotImplementedError(
                f"context parallelism over {self.cp.size()} processes cuts numbers, and {name} reads complete ones: expected "
                "loss_config(..., fused=False) with order='zigzag' for context_parallel_load_balancer='headtail' or 'contiguous' "
                "for None ('ptrr' has no such order), or a token-level loss such as SMMDLoss."
            )
        return CutSequence(self.cp, order)
