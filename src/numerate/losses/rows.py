"""Rows of logits: what the labels say of them, and the arithmetic that all losses do on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from numerate.spans import EXACT_DIGITS, Numbers, NumberSpans, sum_by
from numerate.vocab import NumericVocab

Places = Literal["uniform", "exponential", "linear"]


@dataclass(frozen=True)
class Targets:
    """What the labels say about the P rows a loss looks at."""

    rows: Tensor | None  # [P] positions in the flattened labels; None: all of them
    index: Tensor  # [P] index of the label among the numeric tokens; 0 where it is none
    mask: Tensor | None  # [P] whether the label is a numeric token; None: all of them are
    spans: NumberSpans | None  # [P] each, the numbers the rows belong to
    position_weights: Tensor | None  # [P] the caller's position position_weights
    shape: torch.Size  # of the labels

    def to(self, device: torch.device) -> Self:
        """The same on another device, in one copy that waits for nothing."""
        if device == self.index.device:
            return self
        return self.unpacked(self.packed(pin_memory=device.type == "cuda").to(device, non_blocking=True))

    def packed(self, size: int | None = None, *, pin_memory: bool = False) -> Tensor:
        """All tensors as the rows of one, ``[.., P]`` of int64, ``rows`` first.

        With a larger ``size`` it holds that many columns; those beyond P say that their row belongs to no number, and does not
        count if there is a ``mask``.
        """
        tensors = self._tensors()
        packed = torch.zeros((len(tensors), size or self.slots), dtype=torch.int64, pin_memory=pin_memory)
        for name in ("spans.index", "spans.number_of"):
            if name in tensors:
                packed[list(tensors).index(name), self.slots :] = -1
        values = [value.view(torch.int64) if value.itemsize == 8 else value.long() for value in tensors.values()]
        packed[:, : self.slots] = torch.stack(values)
        return packed

    def unpacked(self, packed: Tensor) -> Self:
        """Targets with the tensors that :meth:`packed` made of these, perhaps more rows, on the device of ``packed``."""
        tensors = self._tensors()
        moved = {
            name: row.view(value.dtype) if value.itemsize == 8 else row.to(value.dtype)
            for (name, value), row in zip(tensors.items(), packed, strict=True)
        }
        of_spans = {name.removeprefix("spans."): value for name, value in moved.items() if name.startswith("spans.")}
        own = {name: value for name, value in moved.items() if not name.startswith("spans.")}
        return replace(self, spans=None if self.spans is None else replace(self.spans, **of_spans), **own)

    def _tensors(self) -> dict[str, Tensor]:
        own = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return own if self.spans is None else own | {f"spans.{name}": value for name, value in vars(self.spans).items()}

    @property
    def slots(self) -> int:
        """Room for the numbers: there are never more of them than rows."""
        return self.index.shape[0]

    @property
    def sequence(self) -> Tensor:
        """Which sequence each row comes from."""
        rows = torch.arange(self.slots, device=self.index.device) if self.rows is None else self.rows
        return rows // self.shape[-1]

    @property
    def group(self) -> Tensor:
        """Which number each row belongs to, -1 where it does not count."""
        assert self.spans is not None
        return self.spans.number_of if self.mask is None else torch.where(self.mask, self.spans.number_of, -1)

    def blank(self, x: Tensor) -> Tensor:
        """``x [P, ..]``, zero in the rows that do not count."""
        if self.mask is None:
            return x
        return torch.where(self.mask if x.dim() == 1 else self.mask[:, None], x, 0.0)


def take(flat: Tensor, rows: Tensor | None) -> Tensor:
    """The given rows, or all of them."""
    return flat if rows is None else flat.index_select(0, rows)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype losses are computed in: float32, or float64 for float64 logits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def divide(total: Tensor, count: Tensor | float) -> Tensor:
    """``total / count``, and zero, still connected to the graph, where there is nothing to count."""
    if not isinstance(count, Tensor):
        return total / (count if count > 0 else 1)
    return total / torch.where(count > 0, count, 1).to(total.dtype)


def residual(z: Tensor, target: Tensor) -> Tensor:
    """``r = p - e_t``: the softmax ``[P, N]`` of the rows less one at the target."""
    return z.softmax(-1).scatter_add(-1, target[:, None], torch.full_like(z[:, :1], -1.0))


def place_weights(targets: Targets, places: Places, sigma: float, numbers: Numbers) -> Tensor:
    """How much each row weighs within its number, by the digits to its right."""
    spans = targets.spans
    assert spans is not None
    right = (spans.exponent - spans.last).double()  # [P]
    if places == "exponential":
        # Beyond 15 places all weigh alike, or a number of 400 digits would weigh 10^31; the published code has no bound.
        return (1 + sigma) ** (right.clamp_max(EXACT_DIGITS) if numbers == "values" else right)
    # Linear: n, n-1, .., 1 over the digits; each token has the weight of its last digit, and the mean over a number is 1.
    raw, group = targets.blank(right + 1), targets.group
    total = sum_by(group, raw, targets.slots)
    tokens = sum_by(group, torch.ones_like(raw), targets.slots)
    return raw * (tokens / total.clamp_min(1.0))[group.clamp_min(0)]


def mean_log(log_mass: Tensor, group: Tensor, slots: int) -> Tensor:
    """Mean ``[slots]`` of the logarithms ``[P]`` in each group: the product of masses would fade with a number's length."""
    totals = sum_by(group, torch.stack([log_mass, torch.ones_like(log_mass)], -1), slots)
    return totals[:, 0] / totals[:, 1].clamp_min(1.0)


def worths(vocab: NumericVocab) -> Tensor:
    """What each token is worth ``[2, N]``, float64: before the point its value, after it a fraction (``678`` is 0.678)."""
    return torch.stack([vocab.values, vocab.values * torch.pow(10.0, -vocab.widths.double())])


def token_scale(spans: NumberSpans, width: Tensor) -> Tensor:
    """What :func:`worths` are multiplied by ``[P]``, float64, to be in units of the number's leading place.

    Before the point a token counts by its value: ``6`` where ``45`` stands is 6. After it, digits line up on the left:
    ``6`` where ``678`` stands is 0.6, that is 600 of its thousandths. ``width [P]`` is that of the label's token.
    """
    return spans.relative_place * torch.where(spans.is_fraction, torch.pow(10.0, width.double()), 1.0)


def by_mean(p: Tensor, values: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    """Gradient ``[P, N]`` by logits of ``slope · mean``: the mean ``[P]`` of ``values [P, N]`` under their softmax ``p``."""
    return p * (values - mean[:, None]).mul_(slope[:, None])


def check_range(labels: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Raise for a label that no logit stands for."""
    if torch.compiler.is_compiling():
        return
    if labels.device.type == "cpu" and labels.numel():
        low, high = labels.aminmax()
        if low >= 0 and high < vocab_size:
            return
    wrong = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if labels.device.type == "cpu":
        if bool(wrong.any()):
            raise ValueError(
                f"labels holds {int(labels[wrong][0])}: expected token ids in [0, {vocab_size}) or "
                f"ignore_index={ignore_index}. Is this another tokenizer's text, or another ignore_index?"
            )
    else:  # without waiting for the device
        torch._assert_async(~wrong.any(), f"labels holds ids outside [0, {vocab_size}) that are not ignore_index")


def refuse_second_derivative() -> None:
    """Raise in a backward pass that is asked for a graph of itself (``create_graph=True``)."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives of this loss are not available (create_graph=True): its gradient is written by hand. "
            "Use F.cross_entropy and the numeric loss on float32 logits, which autograd differentiates twice."
        )


def log_sum_exp(x: Tensor) -> Tensor:
    """``[P, N] -> [P]`` in float64, whatever the dtype of ``x``.

    In float32 the rounding of a log-sum-exp near 50 alone changes a probability by four parts in a million. Here the
    maximum is exact and only the sum is rounded.
    """
    peak = x.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)  # [P, 1]
    return (x - peak).exp().sum(-1).double().log() + peak[:, 0].double()


class _Rest(torch.autograd.Function):
    """:func:`rest_of_rows` without a wide copy of the rows, forward or backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(rows, columns)
        return torch.cat([log_sum_exp(_without(chunk, columns)) for chunk in row_chunks(rows)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative()
        rows, columns = ctx.saved_tensors
        out = torch.empty_like(rows)
        step = chunk_rows(rows)
        for chunk, part, upstream in zip(*(torch.split(x, step) for x in (rows, out, grad)), strict=True):
            others = _without(chunk, columns)
            by_row = upstream[:, None].to(others.dtype)
            # A NaN where no gradient is asked for stays out.
            part.copy_(torch.where(by_row == 0, 0.0, others.softmax(-1).mul_(by_row)))
        return out, None


def _without(rows: Tensor, columns: Tensor) -> Tensor:
    """``rows [P, V]`` in float32 or wider, the given columns so low that their exponential is zero, but finite."""
    taken = torch.zeros(rows.shape[-1], dtype=torch.bool, device=rows.device).index_fill(0, columns, True)
    wider = rows.to(wide(rows.dtype))
    return torch.where(taken, torch.finfo(wider.dtype).min, wider)


def rest_of_rows(rows: Tensor, columns: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-sum-exp ``[P]``, float64, of the rows ``[P, V]`` without ``columns``; rows that do not count may hold anything."""
    if torch.compiler.is_compiling():
        others = _without(rows, columns)
        return log_sum_exp(others if mask is None else torch.where(mask[:, None], others, 0.0))
    return _Rest.apply(rows, columns)  # type: ignore[no-any-return, no-untyped-call]


def rest_of(z: Tensor, lse: Tensor) -> Tensor:
    """The same ``[P]`` from the columns' logits ``z [P, N]`` and the log-sum-exp ``[P]`` of whole rows.

    A difference of two rounded numbers: less exact than :func:`rest_of_rows`, and no more exact than ``lse``.
    """
    lse = lse.double()
    share = -torch.expm1((log_sum_exp(z) - lse).clamp_max(0.0))  # of the rest, in the row
    there = share > 0
    return torch.where(there, lse + torch.where(there, share, 1.0).log(), torch.finfo(z.dtype).min)


def chunk_rows(rows: Tensor, elements: int = 1 << 22) -> int:
    """How many rows of ``[P, V]`` make a piece of about four million entries."""
    return max(1, elements // max(1, rows.shape[-1]))


def row_chunks(rows: Tensor) -> tuple[Tensor, ...]:
    """``rows [P, V]`` in pieces, as views."""
    return torch.split(rows, chunk_rows(rows))
