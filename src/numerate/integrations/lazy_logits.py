"""Logits that are not computed while a model's code passes them around.

While a model runs, its head returns a :class:`LazyLogits`: the hidden states and a record of what the model did to their
logits (scale, cap, bias, slice, reshape). The loss is then computed by ``objective.fused``, and no ``[B, T, V]`` tensor is
built. Any other operation computes the real logits first: slower, but the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from numerate.labels import IGNORE_INDEX
from numerate.objective import NumericObjective, ObjectiveOutput

_METADATA = {
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
_MULTIPLY = {torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.mul, torch.multiply}
_DIVIDE = {torch.Tensor.div, torch.Tensor.__truediv__, torch.div, torch.true_divide}
_ADD = {torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, torch.add}
_TANH = {torch.Tensor.tanh, torch.tanh}
_CASTS = {
    torch.Tensor.float,
    torch.Tensor.double,
    torch.Tensor.to,
    torch.Tensor.clone,
    torch.Tensor.contiguous,
    torch.Tensor.type,
    torch.Tensor.bfloat16,
    torch.Tensor.half,
}
_VIEWS = {torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.Tensor.__getitem__}
_PLAIN_MEAN = {"weight": None, "size_average": None, "reduce": None, "reduction": "mean", "label_smoothing": 0.0}

# Replaces a model's own cross-entropy: logits [.., V] and aligned targets [..] to a loss.
CrossEntropy = Callable[["LazyLogits", Tensor], Tensor]


class LazyLogits(torch.Tensor):
    """``post · tanh(pre · (head(hidden) + bias))``, not computed: the ways in which models shape their logits."""

    hidden: Tensor  # [.., T, H]
    head: LazyHead
    steps: tuple[Callable[[Tensor], Tensor], ...]  # elementwise operations on the logits
    bias: Tensor | None  # [V], added after the head
    pre: float
    post: float | None  # None: no tanh
    with_grad: bool  # whether gradients were enabled when the head was called
    computed: Tensor | None  # [.., T, V], once real logits were needed
    view_of: tuple[LazyLogits, Callable[[Tensor], Tensor]] | None  # the logits that this is a view of, and the operation

    @staticmethod
    def __new__(cls, hidden: Tensor, head: LazyHead, dtype: torch.dtype | None = None) -> LazyLogits:
        """Make a tensor with the shape, dtype and device of the logits and no storage."""
        shape = (*hidden.shape[:-1], head.linear.weight.shape[0])
        lazy: LazyLogits = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or hidden.dtype, device=hidden.device, requires_grad=False
        )
        lazy.hidden, lazy.head, lazy.steps, lazy.bias, lazy.pre, lazy.post = hidden, head, (), None, 1.0, None
        lazy.computed, lazy.view_of = None, None
        lazy.with_grad = torch.is_grad_enabled()
        return lazy

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return shape and dtype, record scales, caps and views, and compute real logits for anything else."""
        kwargs = kwargs or {}
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        lazy = next((arg for arg in args[:2] if isinstance(arg, LazyLogits)), None)
        if lazy is not None and lazy.with_grad and not torch.is_grad_enabled():
            lazy.head.read_without_grad = True
        if func is torch.Tensor.type and lazy is not None and len(args) == 1 and not kwargs.get("dtype"):
            with torch._C.DisableTorchFunctionSubclass():
                return torch.empty(0, dtype=lazy.dtype, device=lazy.device).type()
        if lazy is not None and not lazy.is_computed:
            if func is F.cross_entropy and lazy.head.cross_entropy is not None and lazy is args[0]:
                loss = lazy._cross_entropy(*args[1:], **kwargs)
                if loss is not None:
                    return loss
            recorded = lazy._record(func, [arg for arg in args if arg is not lazy], kwargs)
            if recorded is not None:
                return recorded

        def real(arg: Any) -> Any:
            if isinstance(arg, (list, tuple)):
                return type(arg)(map(real, arg))
            return arg.logits() if isinstance(arg, LazyLogits) else arg

        return func(*map(real, args), **{name: real(arg) for name, arg in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only by operations that need real storage."""
        raise RuntimeError(f"{func} needs logits that were not computed: call .logits() on them first.")

    def _cross_entropy(self, target: Tensor, *rest: Any, ignore_index: int = IGNORE_INDEX, **options: Any) -> Tensor | None:
        """Return the loss that replaces a plain mean cross-entropy; None for any other kind (weighted, summed, smoothed)."""
        plain = all(options.get(name, default) == default for name, default in _PLAIN_MEAN.items())
        if not plain or any(arg is not None for arg in rest) or target.shape != self.shape[:-1]:
            return None
        assert self.head.cross_entropy is not None
        return self.head.cross_entropy(self, target.masked_fill(target == ignore_index, IGNORE_INDEX))

    def _record(self, func: Callable[..., Any], rest: list[Any], kwargs: dict[str, Any]) -> LazyLogits | None:
        """Return lazy logits with ``func`` applied; None if it cannot be recorded."""
        if func in _VIEWS:
            return self._view(func, rest, kwargs)
        number = float(rest[0]) if len(rest) == 1 and isinstance(rest[0], (int, float)) and not kwargs else None
        bias, pre, post, dtype = self.bias, self.pre, self.post, self.dtype
        if func in _CASTS:
            with torch._C.DisableTorchFunctionSubclass():
                dtype = func(torch.empty(0, dtype=self.dtype, device=self.device), *rest, **kwargs).dtype
        elif func in _TANH and post is None and not rest:
            post = 1.0
        elif number and func in _MULTIPLY | _DIVIDE:
            by = number if func in _MULTIPLY else 1 / number
            pre, post = (pre * by, None) if post is None else (pre, post * by)
        elif func in _ADD and pre == 1 and post is None and len(rest) == 1 and not kwargs and self._is_bias(rest[0]):
            bias = rest[0].reshape(-1) if bias is None else bias + rest[0].reshape(-1)
            dtype = torch.promote_types(dtype, rest[0].dtype)
        else:
            return None
        lazy = LazyLogits(self.hidden, self.head, dtype)
        lazy.steps = (*self.steps, lambda logits: func(logits, *rest, **kwargs))
        lazy.bias, lazy.pre, lazy.post, lazy.with_grad = bias, pre, post, self.with_grad
        return lazy

    def _is_bias(self, tensor: Any) -> bool:
        """Return whether a tensor has one entry per token of the vocabulary, the same at all positions."""
        vocab_size = self.shape[-1]
        return type(tensor) in (Tensor, nn.Parameter) and tensor.shape[-1:] == (vocab_size,) and tensor.numel() == vocab_size

    def _view(self, func: Callable[..., Any], rest: list[Any], kwargs: dict[str, Any]) -> LazyLogits | None:
        """Return a reshape or slice as lazy logits; None if it cuts the vocabulary."""
        if func is torch.Tensor.__getitem__:
            index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
            if not all(i is ... or isinstance(i, slice) for i in index):
                return None
            reaches_vocab = ... in index or len(index) == self.dim()
            if reaches_vocab and index[-1] != slice(None):
                return None
            hidden = self.hidden[index]
        else:
            sizes = kwargs.get("shape", rest[0] if len(rest) == 1 else rest)
            if isinstance(sizes, torch.dtype):
                return None
            shape = torch.empty(self.shape, device="meta").reshape(sizes).shape
            if shape[-1:] != self.shape[-1:]:
                return None
            hidden = self.hidden.reshape(*shape[:-1], self.hidden.shape[-1])
        view = LazyLogits(hidden, self.head, self.dtype)
        view.steps, view.bias, view.pre, view.post, view.with_grad = self.steps, self.bias, self.pre, self.post, self.with_grad
        view.view_of = self, lambda logits: func(logits, *rest, **kwargs)
        return view

    @property
    def is_computed(self) -> bool:
        """Whether real logits exist, here or in the logits that this is a view of."""
        return self.computed is not None or (self.view_of is not None and self.view_of[0].is_computed)

    def logits(self) -> Tensor:
        """Return the real logits. They are cached unless gradients are disabled here and were enabled for the head."""
        if self.computed is not None:
            return self.computed
        if self.view_of is not None and self.view_of[0].is_computed:
            base, view = self.view_of
            return view(base.logits())
        logits = self.head.compute(self.hidden)
        for step in self.steps:
            logits = step(logits)
        if torch.is_grad_enabled() or not self.with_grad:
            self.computed = logits
        return logits

    def objective(self, objective: NumericObjective, labels: Tensor, **counts: Any) -> ObjectiveOutput:
        """Compute the objective of these logits, fused with the head unless they were computed already."""
        linear = self.head.linear
        if self.is_computed or (self.post is not None and self.post <= 0) or not _is_whole(linear):
            return objective(self.logits(), labels, **counts)
        scale = self.pre if self.post is None else self.pre * self.post
        hidden = self.hidden.to(linear.weight.dtype)  # QLoRA leaves the head in float32
        bias: Tensor | None = linear.bias
        if self.bias is not None:
            bias = self.bias.to(linear.weight.dtype) if bias is None else bias + self.bias
        options: dict[str, Any] = {"logit_scale": None if scale == 1 else scale, "softcap": self.post}
        return objective.fused(hidden, linear.weight, labels, bias, **options, **counts)


class LazyHead:
    """A linear head that returns lazy logits inside :meth:`deferred`. Outside of it the module is unchanged."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        self.lazy = self.with_grad = False
        # Deferred logits were an argument of an ``autograd.Function``, which cuts them off from their gradient; or merely read.
        self.read_without_grad = False
        self.cross_entropy: CrossEntropy | None = None
        self._compute: Callable[[Tensor], Tensor] = linear.forward

    def _forward(self, hidden: Tensor) -> Tensor:
        # A checkpoint that is reentrant calls the head without gradients, and again with them in its backward.
        lazy = self.lazy and torch.is_grad_enabled() == self.with_grad and not torch.compiler.is_compiling()
        return LazyLogits(hidden, self) if lazy and _is_whole(self.linear) else self._compute(hidden)

    def compute(self, hidden: Tensor) -> Tensor:
        """Compute logits by calling the module, whose hooks gather a sharded weight."""
        before, self.lazy = self.lazy, False
        try:
            return self.linear(hidden)  # type: ignore[no-any-return]
        finally:
            self.lazy = before

    @contextmanager
    def deferred(self, cross_entropy: CrossEntropy | None = None) -> Iterator[None]:
        """Return lazy logits in the body; ``cross_entropy`` replaces ``F.cross_entropy`` of them."""
        self.lazy, self.cross_entropy, self._compute = True, cross_entropy, self.linear.forward
        self.with_grad, self.read_without_grad = torch.is_grad_enabled(), False
        restore = override(self.linear, "forward", self._forward)
        try:
            yield
        finally:
            self.lazy, self.cross_entropy = False, None
            restore()


def override(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of an instance; return a function that restores what was there."""
    had, before = name in vars(owner), vars(owner).get(name)
    object.__setattr__(owner, name, value)
    return lambda: object.__setattr__(owner, name, before) if had else object.__delattr__(owner, name)


def find_head(model: nn.Module) -> tuple[nn.Linear | None, str]:
    """Return a model's linear head if its weight says it all, and ``""``; else None and the reason."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    if head is None:
        return None, f"{type(model).__name__} names no output embeddings"
    if hasattr(head, "modules_to_save"):  # PEFT: a copy of the head is trained in its place
        (adapter, *_) = head.active_adapters
        head = head.modules_to_save[adapter]
    kind = type(head)
    if issubclass(kind, FSDPModule):  # FSDP2 makes a class FSDPLinear(FSDPModule, Linear) of a module it shards
        kind = kind.__mro__[2]
    if kind is not nn.Linear:
        return None, f"the head is a {type(head).__module__}.{type(head).__name__}, not a plain torch.nn.Linear"
    if not head.weight.is_floating_point():
        return None, f"the head's weight is {head.weight.dtype}"
    if _has_hooks(head) or "forward" in vars(head) or head._compiled_call_impl is not None:
        return None, "the head has hooks, is compiled, or its forward was replaced"
    return head, ""


def _has_hooks(module: nn.Module) -> bool:
    """Return whether calling a module does more than its ``forward``, and than FSDP2's gathering of weights.

    The hooks are those of ``nn.Module.__call__``.
    """
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for name in names for hook in getattr(module, name).values()]
    if any(not str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.") for hook in hooks):
        return True
    return any(getattr(nn.modules.module, f"_global{name}") for name in names)


def _is_whole(linear: nn.Linear) -> bool:
    """Return whether the weight is whole: neither a shard, nor freed again by FSDP after it was gathered."""
    from torch.distributed.tensor import DTensor

    return not isinstance(linear.weight, DTensor) and linear.weight.dim() == 2
