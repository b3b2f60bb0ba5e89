"""Logits that a model's code passes around, and nobody has computed.

A model calls its head, perhaps scales or caps the result, and hands it to a loss. For the time of that call the head
returns a :class:`LazyLogits`: the hidden states, and a note of what was done to their logits. The loss then goes to
``objective.fused``, and no ``[B, T, V]`` tensor is ever built. Whoever does anything else with them gets real logits,
computed then, so that a result is never wrong, at worst slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from numerate.objective import NumericObjective, ObjectiveOutput

_LOOKS = {
    getattr(torch.Tensor, name).__get__
    for name in ("device", "dtype", "grad_fn", "is_cuda", "is_leaf", "is_quantized", "layout", "ndim", "requires_grad", "shape")
} | {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.is_floating_point,
    torch.Tensor.__len__,
    torch.is_floating_point,
}
_TIMES = {torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.mul, torch.multiply}
_OVER = {torch.Tensor.div, torch.Tensor.__truediv__, torch.div, torch.true_divide}
_TANH = {torch.Tensor.tanh, torch.tanh}
_CASTS = {
    torch.Tensor.float,
    torch.Tensor.to,
    torch.Tensor.clone,
    torch.Tensor.contiguous,
    torch.Tensor.type,
    torch.Tensor.bfloat16,
    torch.Tensor.half,
}


class LazyLogits(torch.Tensor):
    """``head(hidden)``, not computed; remembers ``post · tanh(pre · x)``, which is how models scale and cap their logits."""

    hidden: Tensor  # [.., T, H]
    head: LazyHead
    steps: tuple[Callable[[Tensor], Tensor], ...]  # what was done to the logits
    pre: float
    post: float | None  # None: no tanh
    with_grad: bool  # whether they were asked for with a graph
    computed: Tensor | None  # [.., T, V], once somebody needed them

    @staticmethod
    def __new__(cls, hidden: Tensor, head: LazyHead, dtype: torch.dtype | None = None) -> LazyLogits:
        """Looks like ``[.., T, V]`` logits."""
        shape = (*hidden.shape[:-1], head.linear.weight.shape[0])
        lazy: LazyLogits = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or hidden.dtype, device=hidden.device, requires_grad=False
        )
        lazy.hidden, lazy.head, lazy.steps, lazy.pre, lazy.post, lazy.computed = hidden, head, (), 1.0, None, None
        lazy.with_grad = torch.is_grad_enabled()
        return lazy

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks are answered, scales and caps are noted down, anything else gets real logits."""
        kwargs = kwargs or {}
        if func in _LOOKS:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        lazy = next((arg for arg in args[:2] if isinstance(arg, LazyLogits)), None)
        if lazy is not None and lazy.computed is None:
            noted = lazy._note(func, [arg for arg in args if arg is not lazy], kwargs)
            if noted is not None:
                return noted

        def real(arg: Any) -> Any:
            if isinstance(arg, (list, tuple)):
                return type(arg)(map(real, arg))
            return arg.logits() if isinstance(arg, LazyLogits) else arg

        return func(*map(real, args), **{name: real(arg) for name, arg in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Nothing comes this far but what asks for storage that is not there."""
        raise RuntimeError(f"{func} asked for logits that were not computed; call .logits() on them first.")

    def _note(self, func: Callable[..., Any], rest: list[Any], kwargs: dict[str, Any]) -> LazyLogits | None:
        number = float(rest[0]) if len(rest) == 1 and isinstance(rest[0], (int, float)) and not kwargs else None
        pre, post, dtype = self.pre, self.post, self.dtype
        if func in _CASTS:
            with torch._C.DisableTorchFunctionSubclass():
                dtype = func(torch.empty(0, dtype=self.dtype, device=self.device), *rest, **kwargs).dtype
        elif func in _TANH and post is None and not rest:
            post = 1.0
        elif number and func in _TIMES | _OVER:
            by = number if func in _TIMES else 1 / number
            pre, post = (pre * by, None) if post is None else (pre, post * by)
        else:
            return None
        noted = LazyLogits(self.hidden, self.head, dtype)
        noted.steps = (*self.steps, lambda logits: func(logits, *rest, **kwargs))
        noted.pre, noted.post, noted.with_grad = pre, post, self.with_grad
        return noted

    def logits(self) -> Tensor:
        """The real ones. Those computed for a look, without a graph, are not kept: the loss needs its gradient."""
        if self.computed is not None:
            return self.computed
        logits = self.head.compute(self.hidden)
        for step in self.steps:
            logits = step(logits)
        if torch.is_grad_enabled() or not self.with_grad:
            self.computed = logits
        return logits

    def objective(self, objective: NumericObjective, labels: Tensor, **counts: Any) -> ObjectiveOutput:
        """The objective of these logits, fused with the head unless somebody has computed them."""
        linear = self.head.linear
        if self.computed is not None or (self.post is not None and self.post <= 0) or not _is_whole(linear):
            return objective(self.logits(), labels, **counts)  # type: ignore[no-any-return]
        scale = self.pre if self.post is None else self.pre * self.post
        hidden = self.hidden.to(linear.weight.dtype)  # QLoRA leaves the head in float32
        options: dict[str, Any] = {"logit_scale": None if scale == 1 else scale, "softcap": self.post}
        return objective.fused(hidden, linear.weight, labels, linear.bias, **options, **counts)


class LazyHead:
    """A linear head whose forward can be put off. Off until :meth:`on`; :meth:`remove` leaves the module as it was."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        self.lazy = False
        self._compute = linear.forward
        linear.forward = self._forward  # type: ignore[method-assign, assignment]

    def _forward(self, hidden: Tensor) -> Tensor:
        return LazyLogits(hidden, self) if self.lazy and _is_whole(self.linear) else self._compute(hidden)

    def compute(self, hidden: Tensor) -> Tensor:
        """Logits, computed, with whatever hooks the module has: a sharded weight is gathered by them."""
        before, self.lazy = self.lazy, False
        try:
            return self.linear(hidden)  # type: ignore[no-any-return]
        finally:
            self.lazy = before

    @contextmanager
    def on(self) -> Iterator[None]:
        """Logits are put off within."""
        self.lazy = True
        try:
            yield
        finally:
            self.lazy = False

    def remove(self) -> None:
        """Give the module its own forward back."""
        del self.linear.forward


def find_head(model: nn.Module) -> tuple[nn.Linear | None, str]:
    """The linear head of a model if its weight is all there is to it; else None, and why not."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    if head is None:
        return None, f"{type(model).__name__} names no output embeddings"
    if hasattr(head, "modules_to_save"):  # PEFT: a copy of the head is trained in its place
        (adapter, *_) = head.active_adapters
        head = head.modules_to_save[adapter]
    if type(head) is not nn.Linear:
        return None, f"the head is a {type(head).__module__}.{type(head).__name__}, not a plain torch.nn.Linear"
    if not head.weight.is_floating_point():
        return None, f"the head's weight is {head.weight.dtype}"
    if head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head) or nn.utils.parametrize.is_parametrized(head):
        return None, "the head has hooks, or a forward or weight of its own"
    return head, ""


def _is_whole(linear: nn.Linear) -> bool:
    """Whether the weight at hand is the whole weight: not a shard of it, and not given back to those who hold it."""
    from torch.distributed.tensor import DTensor

    return not isinstance(linear.weight, DTensor) and linear.weight.dim() == 2
