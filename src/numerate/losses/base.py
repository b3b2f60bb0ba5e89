"""What every numeric loss shares: select the rows and columns that matter, cost each row, reduce.

A loss sees three things and no more:

    z     [P, N]   the logits of the numeric tokens, in float32 or wider, at the positions that count
    rest  [P]      the log-sum-exp of all other tokens, in float64, where a loss asks for it (mass outside the numeric tokens)
    targets        what the labels say: which index, which number, which place

Its gradient is therefore a gradient of ``z`` and ``rest`` alone, which is what lets the objective and the fused operator
add any of these losses to cross-entropy without building anything of size ``[B·T, V]``.

Why the rest and not the whole row: where nearly all mass lies on numeric tokens, the mass outside is a small difference of
two large numbers, and so is its gradient. From the rest both follow without a subtraction.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.checks import (
    check_choice,
    check_ignore_index,
    check_labels,
    check_logits,
    check_number,
    check_tensor,
    check_weights,
    choices,
    nearest,
)
from numerate.labels import IGNORE_INDEX
from numerate.losses.rows import Places, Targets, check_range, divide, log_sum_exp, place_weights, rest_of_rows, take, wide
from numerate.spans import Numbers, NumberSpans, check_position_ids, find_numbers, find_numbers_among
from numerate.vocab import NumericVocab, look_up

Level = Literal["token", "number"]
Outside = Literal["ignore", "penalize"]
Reduction = Literal["mean", "sum", "none"]
Fit = Literal["good", "fair", "poor"]

MOST_PLACE_SIGMA = 100.0  # (1 + sigma)^15 must fit float32
OUTSIDE_MARGIN = 1.01  # text where a number belongs costs this much more than the worst number (ntloss)


class _CheckedSettings(type):
    """Refuses what is no vocabulary, and names the settings a loss knows when it is given one that it does not."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        vocab = args[0] if args else settings.get("vocab")
        if not isinstance(vocab, NumericVocab):
            raise TypeError(
                f"vocab is a {type(vocab).__name__}: expected a NumericVocab; use NumericVocab.from_tokenizer(tokenizer)."
            )
        known = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "vocab")]  # type: ignore[misc]
        for name, value in settings.items():
            if name not in known and name != "vocab":
                expected = f"expected one of {', '.join(known)}.{nearest(name, known)}"
                raise TypeError(f"{name}={value!r} is not a setting of {cls.__name__}: {expected}")
        return super().__call__(*args, **settings)


class NumericLoss(nn.Module, metaclass=_CheckedSettings):
    """A cost of predicting the wrong number. Subclasses write :meth:`cost`, and settle everything else at construction.

    Settings that all losses share:
        outside: what to do with probability that lies on tokens that are no numbers. ``"ignore"`` looks at the numeric
            tokens alone; ``"penalize"`` charges it more than the worst number.
        places: how positions within a number weigh. ``"exponential"``: ``(1 + place_sigma)^k`` for a token with k digits
            to its right, 15 at most (NTIL); ``"linear"``: n, n-1, .., 1 over their mean (DIST2).
        thousands: read ``1,000`` as one number. Matters where whole numbers or their places are looked at.
        ignore_index: the label of positions to skip.

    Value and gradient are finite for any logits, -inf included, as long as the label's own logit is finite, with one
    exception: a cross-entropy with soft targets is infinite where a token of some weight has a logit of -inf. NaN, +inf, and
    rows whose numeric tokens are all -inf give NaN: nothing is hidden.
    """

    name: ClassVar[str]
    default_outside: ClassVar[Outside] = "ignore"
    strictly_proper: ClassVar[bool] = False  # only the true distribution over distinct values has the lowest expected cost
    zero_when_certain: ClassVar[bool] = True  # a certain right answer costs nothing (not so for smoothed targets)
    level: Level = "token"
    numbers: Numbers = "values"
    scores_signs = False  # whether it looks at the logits where a minus stands, too

    values: Tensor
    columns: Tensor
    widths: Tensor
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
    ) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index)
        outside = self.default_outside if outside is None else outside
        check_choice("outside", outside, choices(Outside))
        check_choice("places", places, choices(Places))
        check_choice("thousands", thousands, (False, True))
        self.vocab = vocab
        self.outside: Outside = outside
        self.places: Places = places
        self.thousands = bool(thousands)
        self.place_sigma = check_number("place_sigma", place_sigma, above=-1.0, most=MOST_PLACE_SIGMA)
        self._read_columns(vocab.token_ids)
        self._keep("values", vocab.values)
        self._keep("widths", vocab.widths)
        self._keep("_index_table", vocab.index_table)
        self._keep("_flag_table", vocab.flag_table)
        self._keep("_part_table", vocab.part_table)
        self._keep("worst", torch.tensor(0.0, dtype=torch.float64))

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """Whether the loss suits a vocabulary, and what to know about it."""
        return "good", ""

    # The three steps

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """The cost of ``logits [.., T, V]`` for ``labels [.., T]`` that are ALIGNED with them (no shift happens here).

        Args:
            logits: scores of any floating dtype; V may exceed the vocabulary's.
            labels: token ids; ``ignore_index`` is skipped, and so is every label that is not a number.
            position_weights: ``[.., T]``, how much each position counts; for a number, its first digit's.
            position_ids: ``[.., T]`` for packed sequences; a 0 begins a new document.
            reduction: ``"mean"`` over numeric positions (or numbers), ``"sum"``, or ``"none"``: ``[.., T]``, zero where
                there is nothing to cost; a number's cost stands at its first digit (NTIL spreads its EMD over all of them).
        """
        check_choice("reduction", reduction, choices(Reduction))
        labels = check_labels(labels)
        check_logits(logits, labels, self.columns_needed)
        check_range(labels, logits.shape[-1], self.ignore_index)
        targets = self.targets(labels, position_weights=position_weights, position_ids=position_ids)
        z, rest = self.select(logits, targets)
        cost = self.per_row(z, rest, targets)
        if reduction == "none":
            return self._scatter(cost, targets)
        total = cost.sum()
        return total if reduction == "sum" else divide(total, self.num_units(targets))

    def count(
        self,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """What ``"mean"`` divides by: the numeric positions, or the numbers for a number-level loss. A 0-d tensor."""
        labels = check_labels(labels)
        return self.num_units(self.targets(labels, position_weights=position_weights, position_ids=position_ids))

    def targets(
        self,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        compact: bool | None = None,
    ) -> Targets:
        """Read the labels. ``compact`` keeps only the rows that count; by default on a CPU, where it costs no wait."""
        if position_weights is not None:
            check_weights(position_weights, labels)
        if position_ids is not None:
            check_tensor("position_ids", position_ids, "of the shape of labels")
            check_position_ids(position_ids, labels)
        if compact is None:
            compact = labels.device.type == "cpu" and not torch.compiler.is_compiling()
        part_table, *tables = self._tables(labels.device)
        options = {
            "position_ids": position_ids,
            "numbers": self.numbers,
            "thousands": self.thousands,
            "ignore_index": self.ignore_index,
        }
        rows: Tensor | None = None
        spans: NumberSpans | None = None
        if self.level == "token" and self.places == "uniform":
            index = look_up(tables[0], labels.flatten(), self.ignore_index)
            rows = (index >= 0).nonzero()[:, 0] if compact else None
            index = take(index, rows)
        else:
            if compact:
                rows, spans = find_numbers_among(labels, part_table, *tables, **options)  # type: ignore[arg-type]
                kept = self.looks_at(spans).flatten().nonzero()[:, 0]
                rows = rows[kept]
            else:
                spans, kept = find_numbers(labels, *tables, **options), None  # type: ignore[arg-type]
            spans = NumberSpans(**{f.name: take(getattr(spans, f.name).flatten(), kept) for f in fields(spans)})
            index = spans.index
        all_count = compact and not self.scores_signs
        return Targets(
            rows=rows,
            index=index if all_count else index.clamp_min(0),
            mask=None if all_count else index >= 0,
            spans=spans,
            position_weights=None if position_weights is None else take(position_weights.flatten(), rows).double(),
            shape=labels.shape,
        )

    def _tables(self, device: torch.device) -> tuple[Tensor, ...]:
        """The vocabulary's tables where the labels are: with the loss, or on the CPU if they were brought there."""
        if device == self._index_table.device:
            return self._part_table, self._index_table, self._flag_table, self.widths, self.values
        vocab = self.vocab
        tables = (vocab.part_table, vocab.index_table, vocab.flag_table, vocab.widths, vocab.values)
        return tuple(table.to(device) for table in tables)

    def looks_at(self, spans: NumberSpans) -> Tensor:
        """Which positions' logits the loss needs: those whose label is a numeric token, and signs if it scores them."""
        return spans.is_digit | spans.is_sign if self.scores_signs else spans.is_digit

    def select(self, logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """``z [P, N]`` and, where the loss asks for it, ``rest [P]``."""
        flat = logits.reshape(-1, logits.shape[-1])
        rest = rest_of_rows(take(flat, targets.rows), self.columns, targets.mask) if self.uses_rest else None
        return self.select_columns(flat, targets), rest

    def select_columns(self, flat: Tensor, targets: Targets) -> Tensor:
        """``z [P, N]`` of ``[B·T, V]`` logits."""
        z = flat.index_select(-1, self.columns) if targets.rows is None else flat[targets.rows[:, None], self.columns]
        return z.to(wide(flat.dtype))

    def per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        """Each row's share ``[P]`` of the total cost; the shares of rows that do not count are zero."""
        with torch.autocast(z.device.type, enabled=False):
            return self._per_row(z, rest, targets)

    def _per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        # Rows that do not count are blanked before the arithmetic: a NaN in them must reach neither value nor gradient.
        z, rest = targets.blank(z), None if rest is None else targets.blank(rest)
        cost = self.cost(z, rest, targets.index)
        if self.outside == "penalize" and not self.costs_outside:
            cost = self.charge_outside(cost, self.log_mass(z, rest))
        cost = targets.blank(cost)
        if self.places != "uniform":
            cost = cost * place_weights(targets, self.places, self.place_sigma, self.numbers).to(cost.dtype)
        return cost if targets.position_weights is None else cost * targets.position_weights.to(cost.dtype)

    @property
    def replayable(self) -> bool:
        """Whether :meth:`value_and_grad` is many small steps on a GPU, whatever the labels: worth recording."""
        return False

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """The total cost, and its gradients by ``z [P, N]`` and ``rest [P]``, apart from any graph.

        By autograd. Losses whose formula takes many small steps override it with the gradient written out, which takes a
        third of the steps; a test compares the two.
        """
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in (z, rest) if tensor is not None]
            total = self.per_row(inputs[0], inputs[1] if rest is not None else None, targets).sum()
            dz, *d_rest = torch.autograd.grad(total, inputs)
        return total.detach(), dz, d_rest[0] if d_rest else None

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """Cost of each row: logits ``[P, N]``, log-sum-exp of all others ``[P]``, target index ``[P]`` to ``[P]``."""
        raise NotImplementedError

    def num_units(self, targets: Targets) -> Tensor:
        """How many units, or how much weight, the rows' total is a sum over."""
        counts = self.unit_rows(targets)
        if targets.position_weights is not None:
            return (targets.position_weights if counts is None else torch.where(counts, targets.position_weights, 0.0)).sum()
        return torch.full((), targets.slots, device=targets.index.device) if counts is None else counts.sum()

    def unit_rows(self, targets: Targets) -> Tensor | None:
        """One row for each unit that ``"mean"`` averages over; None: all rows."""
        return targets.mask

    # Mass outside the numeric tokens

    @property
    def uses_rest(self) -> bool:
        """Whether the loss needs the log-sum-exp of the tokens that it does not read."""
        return self.outside == "penalize"

    @property
    def costs_outside(self) -> bool:
        """Whether the formula itself charges mass outside the numeric tokens."""
        return False

    def log_mass(self, z: Tensor, rest: Tensor | None) -> Tensor:
        """Log-probability ``[P]``, float64, of the numeric tokens under the whole vocabulary."""
        assert rest is not None, "outside='penalize' needs the log-sum-exp of the other tokens"
        size = self.values.shape[0]
        if z.shape[1] > size:  # signs are read, but they are no numbers; all of them may be -inf
            rest = torch.logaddexp(rest, log_sum_exp(z[:, size:].clamp_min(torch.finfo(z.dtype).min)))
        return F.logsigmoid(log_sum_exp(z[:, :size]) - rest)

    def charge_outside(self, cost: Tensor, log_mass: Tensor, worst: Tensor | None = None) -> Tensor:
        """``m·cost + 1.01·worst·(1 - m)`` with m the mass on numeric tokens (the ``reweigh`` of ``ntloss``)."""
        worst = self.worst if worst is None else worst
        mass, outside = log_mass.exp().to(cost.dtype), -torch.expm1(log_mass).to(cost.dtype)
        return mass * cost + OUTSIDE_MARGIN * worst.to(cost.dtype) * outside

    # Plumbing

    def _read_columns(self, token_ids: Tensor) -> None:
        """Say which columns of the logits the loss reads: the N numeric tokens first."""
        self._keep("columns", token_ids)
        self.columns_needed = int(token_ids.max()) + 1  # the least V that logits must have

    def _keep(self, name: str, tensor: Tensor) -> None:
        """A buffer that moves with ``.to()`` and stays out of checkpoints."""
        self.register_buffer(name, tensor.clone(), persistent=False)

    def _keep_matrix(self, name: str, matrix: Tensor) -> None:
        """A float64 matrix, and its float32 copy for the hot path; :meth:`matrix` gives the one that fits."""
        self._keep(name, matrix.double())
        self._keep(f"{name}_float32", matrix.float())

    def matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        """What :meth:`_keep_matrix` kept, in the dtype of the computation."""
        return self.get_buffer(name if dtype == torch.float64 else f"{name}_float32")

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # `.to(torch.bfloat16)` moves the module but must not round its values: place values and grams stay wide.
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None and buffer.is_floating_point()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = self._buffers[name]
            assert moved is not None
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self

    def _scatter(self, cost: Tensor, targets: Targets) -> Tensor:
        if targets.rows is None:
            return cost.reshape(targets.shape)
        return cost.new_zeros(targets.shape.numel()).index_add(0, targets.rows, cost).reshape(targets.shape)

    def extra_repr(self) -> str:
        """Shown by ``repr(loss)``."""
        return f"{self.vocab!r}"
