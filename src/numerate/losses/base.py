"""NumericLoss: select rows and columns of the logits, compute the cost of each row, reduce.

A loss has three inputs:

    z     [P, N]   logits of the numeric tokens, in float32 or wider, at the positions that count
    rest  [P]      log-sum-exp of all other tokens, in float64, only for losses that need the mass outside the numeric tokens
    targets        token, number and place of each label

Gradients flow to ``z`` and ``rest`` only, so the objective and the fused operator can add any loss to cross-entropy without
a second tensor of size ``[B·T, V]``.

``rest`` excludes the numeric tokens because subtracting them from the log-sum-exp of the whole row would cancel
catastrophically when nearly all mass is on numeric tokens.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.checks import (
    check_choice,
    check_ignore_index,
    check_labels,
    check_logits,
    check_number,
    check_settings,
    check_tensor,
    check_weights,
    choices,
)
from numerate.labels import IGNORE_INDEX, shift_all
from numerate.losses.logit_rows import check_range, divide, log_sum_exp, reads_freely, rest_of_rows, take, wide
from numerate.losses.target_tokens import NumberTargets, Places, Targets
from numerate.spans import PLAIN, Numbers, NumberSpans, Rules, check_position_ids, find_numbers, find_numbers_among
from numerate.vocab import NumericVocab, look_up

if TYPE_CHECKING:
    from typing_extensions import Self

LossLevel = Literal["token", "number"]
Outside = Literal["ignore", "penalize", "zero"]
Reduction = Literal["mean", "sum", "none"]
Suitability = Literal["good", "fair", "poor"]
Variant = Literal["paper", "released"]

MOST_PLACE_SIGMA = 100.0  # (1 + sigma)^15 must fit float32
MOST_NUMBERS = 20_000  # numeric tokens; pairwise matrices take 5 GB
LEAST_COST, MOST_COST = 1e-30, 1e30  # of a wrong number: it, its sum over a batch and its square root must fit float32
MOST_FACTOR = 1e6  # largest factor of a term, or 1 / temperature: gradients must fit float32
LEAST_SHARE = 0.9  # of the vocabulary that the logits must cover
OUTSIDE_MARGIN = 1.01  # text in place of a number costs this much more than the worst number (ntloss)


class SharedSettings(TypedDict, total=False):
    """Settings of every loss; :class:`NumericLoss` documents them and has their defaults."""

    outside: Outside | None
    thousands: bool
    ignore_index: int


class TokenSettings(SharedSettings, total=False):
    """Settings of every token-level loss."""

    places: Places
    place_sigma: float


def check_vocab(vocab: Any) -> NumericVocab:
    """Return ``vocab``, or raise if it is not a vocabulary."""
    if not isinstance(vocab, NumericVocab):
        raise TypeError(
            f"vocab is a {type(vocab).__name__}: expected a NumericVocab; use NumericVocab.from_tokenizer(tokenizer)."
        )
    return vocab


def columns_needed(vocab: NumericVocab, token_ids: Tensor) -> int:
    """Return the smallest V of logits that a loss over ``token_ids`` accepts.

    A tensor-parallel shard may contain every numeric token but at most half of the columns, and is rejected. A head that lacks a
    few tokens added to the tokenizer is accepted.
    """
    return max(int(token_ids.max()) + 1, math.ceil(LEAST_SHARE * vocab.vocab_size))


class NumericLoss(nn.Module):
    """Base class of all losses. Subclasses implement :meth:`cost`; everything that depends only on settings is precomputed.

    Number-level losses derive from :class:`~numerate.losses.number_level.NumberLevelLoss`.

    Args:
        vocab: the numeric tokens. Its ``format`` says which places digits have, for number-level losses and ``places``.
        outside: how to treat probability on non-numeric tokens. ``"ignore"``: the softmax covers the numeric tokens only.
            ``"penalize"``: that probability costs more than the worst number. ``raft`` also accepts ``"zero"``.
        places: weights of the digits of a number, for token-level losses. ``"exponential"``: ``(1 + place_sigma)^k``
            for a token with k digits to its right, at most 15 (NTIL); ``"linear"``: n, n-1, .., 1 over their mean (DIST2);
            ``"del"``: 2, 4, 6, .. for units, tens, hundreds, and ``1.02^-(j + 1)`` for the j-th decimal (DEL).
        place_sigma: growth per place of ``places="exponential"``.
        thousands: read ``1,000`` as one number. Affects number-level losses and ``places``.
        ignore_index: label of the positions to skip.
        **unknown: raises a TypeError that lists the available settings.

    Value and gradient are finite whenever the label's logit is finite, even if other logits are -inf. Exception: losses with
    soft targets are infinite if a token with target weight has a logit of -inf. NaN, +inf, and rows whose numeric logits are
    all -inf give NaN. See docs/reliability.md.
    """

    name: ClassVar[str]
    sees: ClassVar[str] = ""  # what it penalizes in a distribution, for the playground and plots
    level: ClassVar[LossLevel] = "token"
    outsides: ClassVar[tuple[Outside, ...]] = ("ignore", "penalize")  # valid values of ``outside``
    default_outside: ClassVar[Outside] = "ignore"
    strictly_proper: ClassVar[bool] = False  # only the true distribution over distinct values minimizes the expected cost
    shift_invariant: ClassVar[bool] = True  # unchanged when a constant is added to all logits of a row
    zero_when_certain: ClassVar[bool] = True  # a one-hot correct prediction costs 0 (False for smoothed targets)
    formula: ClassVar[Callable[..., Tensor] | None] = None  # (p [N], target index, values [N], settings) -> cost, unoptimized
    numbers: Numbers = "values"
    rules: Rules = PLAIN  # how labels are read as numbers
    scores_signs = False  # whether it also reads the logits where the label is a minus sign

    values: Tensor
    columns: Tensor
    column_ids: Tensor
    widths: Tensor
    number_values: Tensor
    worst: Tensor
    _index_table: Tensor
    _flag_table: Tensor
    _part_table: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        *,
        outside: Outside | None = None,
        places: Places = "uniform",
        place_sigma: float = 0.2,
        thousands: bool = False,
        ignore_index: int = IGNORE_INDEX,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if check_vocab(vocab).size > MOST_NUMBERS:
            raise ValueError(
                f"vocab has {vocab.size:,} numeric tokens: expected at most {MOST_NUMBERS:,}, because losses compare all pairs; "
                "use vocab.restrict(max_value=...)."
            )
        check_settings(type(self).__name__, unknown, self.settings())
        outside = self.default_outside if outside is None else outside
        check_choice("outside", outside, self.outsides)
        check_choice("places", places, choices(Places))
        check_choice("thousands", thousands, (False, True))
        self.vocab = vocab
        self.outside: Outside = outside
        self.places: Places = places
        self.place_sigma = check_number("place_sigma", place_sigma, above=-1.0, most=MOST_PLACE_SIGMA)
        self.thousands = bool(thousands)
        self.ignore_index = check_ignore_index(ignore_index)
        self.read_columns(vocab.token_ids)
        self.keep("values", vocab.values)
        self.keep("widths", vocab.widths)
        self.keep("number_values", vocab.number_values)
        self.keep("_index_table", vocab.index_table)
        self.keep("_flag_table", vocab.flag_table)
        self.keep("_part_table", vocab.part_table)
        self.keep("worst", torch.tensor(0.0, dtype=torch.float64))
        self.read_as(self.numbers)

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return all settings with their defaults: those of the class first, then the shared ones."""
        inits = [vars(base)["__init__"] for base in cls.__mro__ if issubclass(base, NumericLoss) and "__init__" in vars(base)]
        known: dict[str, Any] = {}
        for parameter in (parameter for init in inits for parameter in inspect.signature(init).parameters.values()):
            if parameter.name not in ("self", "vocab") and parameter.kind is not parameter.VAR_KEYWORD:
                known.setdefault(parameter.name, parameter.default)
        return known

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Return how well the loss suits a vocabulary, and a note on it."""
        return "good", ""

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        reduction: Reduction = "mean",
        shift: bool = False,
    ) -> Tensor:
        """Return the loss of ``logits [.., T, V]`` for ``labels [.., T]``.

        By default labels must be aligned with the logits: ``labels[t]`` is the token that ``logits[t]`` predicts. Labels that
        equal ``input_ids`` (or ``ignore_index``), as causal language models take them, need ``shift=True``.

        Args:
            logits: logits of any floating dtype; V may exceed ``vocab.vocab_size``.
            labels: token ids; positions with ``ignore_index`` or a non-numeric label are skipped.
            position_weights: ``[.., T]``, weight of each position; a number takes the weight of its first digit.
            position_ids: ``[.., T]`` for packed sequences; a 0 starts a new document.
            reduction: ``"mean"`` over numeric positions (or numbers), ``"sum"``, or ``"none"``: ``[.., T]``, zero where
                there is no number. Number-level losses put a number's cost at its first digit (NTIL spreads its EMD over
                all digits).
            shift: shift labels, position_weights and position_ids one position to the left.
        """
        check_choice("reduction", reduction, choices(Reduction))
        check_choice("shift", shift, (False, True))
        labels = check_labels(labels)
        check_logits(logits, labels, self.columns_needed)
        check_range(labels, logits.shape[-1], self.ignore_index)
        if shift:
            labels, position_weights, position_ids = shift_all(labels, position_weights, position_ids, self.ignore_index)
        targets = self.targets(labels, position_weights=position_weights, position_ids=position_ids)
        z, rest = self.select(logits, targets)
        cost = self.per_row(z, rest, targets)
        if reduction == "none":
            return self.scatter(cost, targets)
        total = cost.sum()
        return total if reduction == "sum" else divide(total, self.num_units(targets))

    if TYPE_CHECKING:  # nn.Module's returns Any
        __call__ = forward

    def count(
        self, labels: Tensor, *, position_weights: Tensor | None = None, position_ids: Tensor | None = None, shift: bool = False
    ) -> Tensor:
        """Return the denominator of ``"mean"``, 0-d: the count of numeric positions, or of numbers for a number-level loss.

        Takes the same arguments as :meth:`forward`.
        """
        check_choice("shift", shift, (False, True))
        labels = check_labels(labels)
        if shift:
            labels, position_weights, position_ids = shift_all(labels, position_weights, position_ids, self.ignore_index)
        return self.num_units(self.targets(labels, position_weights=position_weights, position_ids=position_ids))

    # Read the labels

    def read_as(self, numbers: Numbers) -> None:
        """Set what is a number; raise if the loss reads numbers, and cannot read them in the format of the vocabulary."""
        check_choice("numbers", numbers, choices(Numbers))
        self.numbers = numbers
        if self.level == "number" or self.places != "uniform":
            self.rules = Rules.of(self.vocab.format, numbers, thousands=self.thousands, reader=type(self).__name__)

    def targets(
        self,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        compact: bool | None = None,
    ) -> Targets:
        """Read aligned labels. ``compact`` drops rows that do not count; the default on a CPU, where it needs no sync."""
        if position_weights is not None:
            check_weights(position_weights, labels)
        if position_ids is not None:
            check_tensor("position_ids", position_ids, "of the shape of labels")
            check_position_ids(position_ids, labels)
        if compact is None:
            compact = reads_freely(labels)
        rows: Tensor | None = None
        spans: NumberSpans | None = None
        if self.reads_numbers:
            rows, spans = self._read_numbers(labels, position_ids, compact)
            index = spans.index
        else:
            index = look_up(self._tables(labels.device)[1], labels.flatten(), self.ignore_index)
            rows = (index >= 0).nonzero()[:, 0] if compact else None
            index = take(index, rows)
        all_count = compact and not self.scores_signs
        read: dict[str, Any] = {
            "rows": rows,
            "index": index if all_count else index.clamp_min(0),
            "mask": None if all_count else index >= 0,
            "position_weights": None if position_weights is None else take(position_weights.flatten(), rows).double(),
            "shape": labels.shape,
        }
        return Targets(**read) if spans is None else NumberTargets(**read, spans=spans)

    @property
    def reads_numbers(self) -> bool:
        """Whether the loss needs :class:`NumberTargets`: the number that each token belongs to."""
        return self.places != "uniform"

    def _read_numbers(self, labels: Tensor, position_ids: Tensor | None, compact: bool) -> tuple[Tensor | None, NumberSpans]:
        """Return the rows that the loss reads (None: all) and the numbers they belong to, ``[P]`` each."""
        part_table, *tables = self._tables(labels.device)
        options: dict[str, Any] = {"rules": self.rules, "ignore_index": self.ignore_index}
        rows: Tensor | None = None
        read: Tensor | None = None
        if compact:
            rows, spans = find_numbers_among(labels, part_table, *tables, position_ids=position_ids, **options)
            read = self.reads_rows(spans).flatten().nonzero()[:, 0]
            rows = rows[read]
        else:
            spans = find_numbers(labels, *tables, position_ids=position_ids, **options)
        # By fields: torch 2.11 does not trace vars() of a frozen dataclass.
        return rows, NumberSpans(**{f.name: take(getattr(spans, f.name).flatten(), read) for f in fields(spans)})

    def _tables(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the vocabulary's tables on the labels' device: the buffers themselves if they are there, else copies."""
        if device == self._index_table.device:
            return self._part_table, self._index_table, self._flag_table, self.widths, self.number_values
        vocab = self.vocab
        tables = (vocab.part_table, vocab.index_table, vocab.flag_table, vocab.widths, vocab.number_values)
        return tuple(table.to(device) for table in tables)

    def reads_rows(self, spans: NumberSpans) -> Tensor:
        """Mask of the positions whose logits the loss reads: numeric labels, and minus signs if it scores them."""
        return spans.is_digit | spans.is_sign if self.scores_signs else spans.is_digit

    # Compute the cost

    def select(self, logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """Return ``z [P, N]`` and, if the loss uses it, ``rest [P]``."""
        flat = logits.reshape(-1, logits.shape[-1])
        rest = rest_of_rows(flat, targets.rows, self.columns, targets.mask) if self.uses_rest else None
        return self.select_columns(flat, targets), rest

    def select_columns(self, flat: Tensor, targets: Targets) -> Tensor:
        """Return ``z [P, N]`` of ``[B·T, V]`` logits."""
        z = flat.index_select(-1, self.columns) if targets.rows is None else flat[targets.rows[:, None], self.columns]
        return z.to(wide(flat.dtype))

    def per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        """Return each row's share ``[P]`` of the total cost; zero in masked rows."""
        with torch.autocast(z.device.type, enabled=False):
            return self.row_costs(z, rest, targets)

    def row_costs(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        """Compute :meth:`per_row` from :meth:`cost`, ``outside``, ``places`` and position weights."""
        # Masked rows are zeroed before the arithmetic: a NaN in them must reach neither value nor gradient.
        z, rest = targets.blank(z), None if rest is None else targets.blank(rest)
        cost = self.cost(z, rest, targets.index)
        if self.outside == "penalize" and not self.costs_outside:
            cost = self.charge_outside(cost, self.log_mass(z, rest))
        cost = targets.blank(cost)
        if self.places != "uniform":
            cost = cost * self.place_weights(targets).to(cost.dtype)
        return cost if targets.position_weights is None else cost * targets.position_weights.to(cost.dtype)

    def place_weights(self, targets: Targets) -> Tensor:
        """Return the weight of each row ``[P]`` within its number, float64."""
        return NumberTargets.of(targets).place_weights(self.places, self.place_sigma, self.rules, self.widths)

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """Return the cost of each row ``[P]`` from ``z [P, N]``, ``rest [P]`` and target index ``[P]``."""
        raise NotImplementedError

    @property
    def replayable(self) -> bool:
        """Whether :meth:`value_and_grad` runs many small kernels independent of the labels, so that a CUDA graph pays off."""
        return False

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the total cost and its gradients with respect to ``z [P, N]`` and ``rest [P]``, detached.

        Uses autograd by default. Losses made of many small kernels override it with an analytic gradient, which needs a third
        of the kernels; a test compares the two.
        """
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in (z, rest) if tensor is not None]
            total = self.per_row(inputs[0], inputs[1] if rest is not None else None, targets).sum()
            dz, *d_rest = torch.autograd.grad(total, inputs)
        return total.detach(), dz, d_rest[0] if d_rest else None

    def num_units(self, targets: Targets) -> Tensor:
        """Return the number of units that the total sums over, or the sum of their position weights."""
        mask = self.unit_rows(targets)
        if targets.position_weights is not None:
            return (targets.position_weights if mask is None else torch.where(mask, targets.position_weights, 0.0)).sum()
        return torch.full((), targets.slots, device=targets.index.device) if mask is None else mask.sum()

    def unit_rows(self, targets: Targets) -> Tensor | None:
        """Mask with one row per unit of ``"mean"``; None: all rows."""
        return targets.mask

    # Mass outside the numeric tokens

    @property
    def uses_rest(self) -> bool:
        """Whether the loss needs ``rest``, the log-sum-exp of all other tokens."""
        return self.outside != "ignore"

    @property
    def costs_outside(self) -> bool:
        """Whether the formula itself includes mass outside the numeric tokens."""
        return False

    def log_mass(self, z: Tensor, rest: Tensor | None) -> Tensor:
        """Return the log-probability ``[P]``, float64, of the numeric tokens under the whole vocabulary."""
        assert rest is not None, "outside='penalize' needs the log-sum-exp of the other tokens"
        size = self.values.shape[0]
        if z.shape[1] > size:  # signs are read but are not numbers; all of them may be -inf
            rest = torch.logaddexp(rest, log_sum_exp(z[:, size:].clamp_min(torch.finfo(z.dtype).min)))
        return F.logsigmoid(log_sum_exp(z[:, :size]) - rest)

    def charge_outside(self, cost: Tensor, log_mass: Tensor, worst: Tensor | None = None) -> Tensor:
        """Return ``m·cost + 1.01·worst·(1 - m)``, m being the mass on numeric tokens (``reweigh`` of ``ntloss``)."""
        worst = self.worst if worst is None else worst
        mass, outside = log_mass.exp().to(cost.dtype), -torch.expm1(log_mass).to(cost.dtype)
        return mass * cost + OUTSIDE_MARGIN * worst.to(cost.dtype) * outside

    # Buffers

    def read_columns(self, token_ids: Tensor) -> None:
        """Set the logit columns that the loss reads: the N numeric tokens first."""
        self.keep("columns", token_ids)
        self.column_ids = token_ids  # stays on the CPU
        self.columns_needed = columns_needed(self.vocab, token_ids)

    def keep(self, name: str, tensor: Tensor) -> None:
        """Register a buffer that moves with ``.to()`` and is not saved in checkpoints."""
        self.register_buffer(name, tensor.clone(), persistent=False)

    def keep_matrix(self, name: str, matrix: Tensor) -> None:
        """Register a float64 matrix and its float32 copy; :meth:`matrix` returns the one for a dtype."""
        self.check_scale(matrix, least=0.0)
        self.keep(name, matrix.double())
        self.keep(f"{name}_float32", matrix.float())

    def set_worst(self, cost: Tensor) -> None:
        """Set the cost of the worst number, 0-d."""
        values = self.vocab.values
        self.check_scale(values[-1] - values[0] if cost == 0 else cost)  # the square of a small distance may be 0
        self.worst.copy_(cost)

    def check_scale(self, costs: Tensor, least: float = LEAST_COST) -> None:
        """Raise if float32 cannot hold the largest of ``costs``, or rounds all of them to zero."""
        largest = float(costs.abs().max()) if costs.numel() else 0.0
        if largest != 0 and not least <= largest <= MOST_COST:
            low, high = float(self.vocab.values[0]), float(self.vocab.values[-1])
            raise ValueError(
                f"{type(self).__name__} of values {low:g}..{high:g} computes with numbers of {largest:g}: expected "
                f"{LEAST_COST:g} to {MOST_COST:g}, to fit float32. Use another unit, or change the settings."
            )

    def matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a matrix of :meth:`keep_matrix` in the dtype of the computation."""
        return self.get_buffer(name if dtype == torch.float64 else f"{name}_float32")

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # `.to(torch.bfloat16)` must not round the buffers: place values and grams keep their dtype.
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None and buffer.is_floating_point()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = self._buffers[name]
            assert moved is not None
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self

    def scatter(self, cost: Tensor, targets: Targets) -> Tensor:
        """Return the costs of rows ``[P]`` at their positions ``[.., T]``."""
        if targets.rows is None:
            return cost.reshape(targets.shape)
        return cost.new_zeros(targets.shape.numel()).index_add(0, targets.rows, cost).reshape(targets.shape)

    def extra_repr(self) -> str:
        """Shown by ``repr(loss)``."""
        return f"{self.vocab!r}"
