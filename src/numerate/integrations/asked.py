"""What is asked of ``attach``: from names, widths and columns to an objective and soft labels. Independent of any trainer."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numerate.checks import check_choice, check_number
from numerate.formats import NumberFormat, as_format
from numerate.integrations.first_rows import FirstRows, numeric_rows
from numerate.losses import LOSSES, NumericLoss
from numerate.objective import NumericObjective
from numerate.objective.no_loss import NoLoss
from numerate.targets import Bell, DrawnDataset, Ratings, SoftCollator, SoftNumbers, Target, suitable_width
from numerate.targets.drawn import EpochDataset
from numerate.targets.drawn_collator import DrawnCollator, NumberedDataset
from numerate.targets.notation import Notation
from numerate.targets.soft_numbers import PathKind, Where
from numerate.targets.tokenised_rows import TokenColumn
from numerate.targets.windows import BARRIER
from numerate.vocab import NumericVocab

_PROBED = 16  # rows that are drawn to find whether their tokens can be replaced
_WHERE = {"answer": "the last number of each answer", "all": "every number", "marked": "the marked numbers"}


class Prepared(NamedTuple):
    """What was asked for, built for a data set."""

    objective: NumericObjective
    soft: SoftNumbers | None  # None: dataset and collator are as they were
    summary: str  # a line for the user; empty with ``check=False``
    dataset: Any
    collator: Any


@dataclass(frozen=True)
class Asked:
    """The arguments of ``attach``, checked as far as possible without a tokenizer and rows."""

    loss: str | NumericLoss | NumericObjective | None = None
    soft: float | bool | Target | SoftNumbers | None = None
    weight: float | None = None
    numbers: Where | re.Pattern[str] | None = None
    tokenizer: Any = None
    seed: int | None = None
    path: PathKind = "drawn"
    check: bool = True
    format: NumberFormat | str | None = None

    def __post_init__(self) -> None:
        if self.loss is None and not self.is_soft:
            raise ValueError(
                "neither a loss nor soft labels were asked for: expected a loss, such as 'smmd', SMMDLoss(vocab) or "
                "NumericObjective(...), or soft=0.05 if labels may be off by 5 %, soft=True to choose the width by the labels, "
                "soft=nm.Ratings('column') for several people's ratings, soft=nm.Bell(width=3), or both."
            )
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, tuple(LOSSES))
        elif not (self.loss is None or isinstance(self.loss, NumericLoss | NumericObjective)):
            raise TypeError(
                f"loss is a {type(self.loss).__name__}: expected a name of numerate.LOSSES, a numeric loss such as "
                "SMMDLoss(vocab), a NumericObjective, or None with soft=..."
            )
        if self.weight is not None and (self.loss is None or isinstance(self.loss, NumericObjective)):
            owner = "no loss" if self.loss is None else "a NumericObjective, which has its own weight"
            raise ValueError(
                f"weight={self.weight!r} with {owner}: expected it with a loss, such as attach(trainer, 'smmd', weight=0.3)."
            )
        if isinstance(self.soft, SoftNumbers) and self.numbers is not None:
            raise ValueError(
                f"numbers={self.numbers!r} with SoftNumbers, which chooses them by `where`: expected one of the two."
            )
        if self.is_soft and isinstance(self.soft, int | float) and not isinstance(self.soft, bool):
            hint = f"Pass soft=nm.Bell(width={self.soft!r}) for a width in the unit of the labels."
            check_number("soft", self.soft, least=0.0, most=1.0, hint=hint)
        elif self.is_soft and self.soft is not True and not callable(self.soft):
            raise TypeError(
                f"soft={self.soft!r:.80} is a {type(self.soft).__name__}: expected a share such as 0.05, True, a target such as "
                "nm.Bell(width=3) or nm.Ratings('column'), or SoftNumbers(tokenizer, target)."
            )
        if self.format is not None:
            self._check_format(as_format(self.format))

    def _check_format(self, format: NumberFormat) -> None:
        """Raise if what was asked for has another format of its own."""
        for name, (own, maker) in self._own_formats().items():
            if own != format:
                raise ValueError(
                    f"format={self.format!r}, and {name} has numbers in {own!r}: expected the same; pass format=... to {maker} "
                    "too."
                )

    def _own_formats(self) -> dict[str, tuple[NumberFormat, str]]:
        """Return the formats of soft labels and of a loss that were made before, and what made each."""
        found: dict[str, tuple[NumberFormat, str]] = {}
        if isinstance(self.soft, SoftNumbers):
            found["soft"] = self.soft.format, "SoftNumbers"
        loss = self.loss.numeric_loss if isinstance(self.loss, NumericObjective) else self.loss
        if isinstance(loss, NumericLoss):
            found["loss"] = as_format(loss.vocab.format or "plain"), "NumericVocab.from_tokenizer"
        return found

    @property
    def _rows_format(self) -> NumberFormat:
        """The format of the numbers in the rows: as given, or that of the soft labels, or of the loss."""
        own = [format for format, _ in self._own_formats().values()]
        return as_format(self.format) if self.format is not None else own[0] if own else NumberFormat()

    @property
    def is_soft(self) -> bool:
        """Whether soft labels are asked for."""
        return self.soft is not None and self.soft is not False

    @property
    def draws(self) -> bool:
        """Whether rows are changed: by soft labels, or by the mask of the numbers that a loss is to count."""
        return self.is_soft or self.numbers is not None

    def prepared(self, dataset: Any, collator: Any, sequence: TokenColumn, seed: int, processor: Any = None) -> Prepared:
        """Build what was asked for, for rows by index and the collator that makes batches of them.

        A loss alone takes any dataset. ``seed`` is that of the draws, unless one was given; ``processor`` is a tokenizer, or has
        one.
        """
        if self.draws and not hasattr(dataset, "__len__"):
            raise ValueError(
                f"the training data are a {type(dataset).__name__}: expected rows by index, with a length, in which numbers "
                "can be drawn anew in each epoch; give the trainer its data before attach, and read a stream into a "
                "datasets.Dataset."
            )
        if self.draws and isinstance(dataset, EpochDataset):
            raise ValueError("the training data are a DrawnDataset, and soft labels are asked for too: expected one of the two.")
        if isinstance(self.soft, SoftNumbers):
            sequence = self.soft.sequence
        rows = FirstRows.of(dataset, collator, sequence) if self.check or self.draws else FirstRows([])
        objective, soft = self.built(lambda: tokenizer_of(self.tokenizer, processor, collator), rows, sequence)
        summary = self.summary(objective, soft, rows) if self.check else ""
        if soft is None:
            return Prepared(objective, None, summary, dataset, collator)
        options: Any = {"seed": seed if self.seed is None else self.seed, "path": self.path}
        if rows.collated:
            numbered = NumberedDataset(dataset, soft, **options)
            return Prepared(
                objective, soft, summary, numbered, DrawnCollator(collator, numbered, column=soft.column, sequence=soft.sequence)
            )
        if not isinstance(collator, SoftCollator):
            collator = SoftCollator(collator, sequence=soft.sequence)
        return Prepared(objective, soft, summary, DrawnDataset(dataset, soft, **options), collator)

    def built(
        self, tokenizer: Callable[[], Any], rows: FirstRows, sequence: TokenColumn = "input_ids"
    ) -> tuple[NumericObjective, SoftNumbers | None]:
        """Return the objective, and what makes soft labels and masks; None if nothing does.

        ``tokenizer`` is called if it is needed.
        """
        objective = self._objective(tokenizer)
        if not self.draws or isinstance(self.soft, SoftNumbers):
            return objective, self.soft if isinstance(self.soft, SoftNumbers) else None
        target: Any = self.soft
        options: dict[str, Any] = {"where": self.numbers or "answer", "sequence": sequence, "format": self._rows_format}
        options["mask"] = self.numbers is not None and not isinstance(objective.numeric_loss, NoLoss)
        exact = SoftNumbers(tokenizer(), Bell(width=0), **options)
        if not self.is_soft:
            return objective, exact
        if target is True:
            settings: dict[str, Any] = {**suitable_width(_labels(exact, rows))}
            target = Bell(**settings)
        elif isinstance(target, int | float):
            target = Bell(relative=target)
        return objective, SoftNumbers(tokenizer(), target, **options)

    def _objective(self, tokenizer: Callable[[], Any]) -> NumericObjective:
        if isinstance(self.loss, NumericObjective):
            return self.loss
        weight: dict[str, Any] = {} if self.weight is None else {"weight": self.weight}
        if isinstance(self.loss, NumericLoss):
            return NumericObjective(self.loss, **weight)
        vocab = NumericVocab.from_tokenizer(tokenizer(), format=self._rows_format)
        return NumericObjective(None, vocab=vocab) if self.loss is None else NumericObjective(LOSSES[self.loss](vocab), **weight)

    def summary(self, objective: NumericObjective, soft: SoftNumbers | None, rows: FirstRows) -> str:
        """Say what will be trained, and how many of the first rows have a number; raise if none has."""
        loss = objective.numeric_loss
        with_loss = not isinstance(loss, NoLoss)
        parts = [f"{loss.name} with weight {objective.weight:g}"] if with_loss else []
        if soft is None:
            found = numeric_rows(loss.vocab, rows) if with_loss else None
        else:
            found = sum(bool(soft.numbers(row)) for row in rows.rows)
            first = f"soft labels ({_described(soft.target)})" if self.is_soft else parts.pop() if parts else "cross-entropy"
            parts.insert(0, f"{first} on {_place(soft)}")
        parts = parts or ["cross-entropy"]
        if found is None:
            return parts[0]
        if not found and rows.rows:
            what = "labels hold no numeric token"
            if soft is not None:
                what = f"{_place(soft)} was asked for, and the first text is {soft.text(rows.rows[0]).strip(BARRIER)!r:.80}"
            raise ValueError(
                f"no number in {rows}: {what}. Expected numbers in the trained text, where labels are not -100; choose "
                "others with `numbers`, look at `labels` and at the tokenizer, or pass check=False if numbers come later."
            )
        if soft is not None:
            _check_replaceable(soft, rows)
        parts[0] += f": {found:,} of {rows}" if rows.rows else ": no rows to look at"
        return "; ".join(parts)


def _labels(exact: SoftNumbers, rows: FirstRows) -> list[float]:
    """Return the numbers of the first rows; raise for what a width cannot be chosen for."""
    for name, value in (rows.rows[0] if rows.rows else {}).items():
        listed = value.tolist() if hasattr(value, "tolist") else value
        ids = rows.rows[0][exact.sequence]
        several = isinstance(listed, list) and 1 < len(listed) != len(ids) and all(isinstance(x, int | float) for x in listed)
        if several and not name.endswith(("_ids", "_mask", "_masks", "_weights", "_lengths", "labels")):
            raise ValueError(
                f"soft=True, and the column {name!r} holds lists of numbers such as {listed!r:.60}: expected "
                f"soft=nm.Ratings({name!r}) if they are several people's ratings, or a width, such as soft=0.05, if they are not."
            )
    written = [text for row in rows.rows for text in exact.numbers(row)]
    found = np.array([float(Notation.of(text).value) for text in written])
    if not found.size:
        raise ValueError(
            f"soft=True, and there is no number in {rows}: expected labels to choose a width by; pass one, such as soft=0.05."
        )
    return found[np.isfinite(found)].tolist()  # type: ignore[no-any-return]


def _check_replaceable(soft: SoftNumbers, rows: FirstRows) -> None:
    """Raise if rows have no column of labels, or if none of their numbers can be replaced by others."""
    probe = copy.copy(soft)
    probe.seen = probe.left_hard = 0
    probe._warned = {"none", "hard"}
    for row in rows.rows[:_PROBED]:
        if soft.column is not None and soft.column not in row:
            raise ValueError(
                f"the rows have no column {soft.column!r}, only {', '.join(map(repr, row))}: expected the one that "
                f"{type(soft.target).__name__} names; packing leaves columns out: set packing=False."
            )
        probe(row, rng=np.random.default_rng(0))
    if probe.seen and probe.left_hard == probe.seen:
        raise ValueError(
            f"none of the {probe.seen} numbers in the first rows can be replaced: rows end with their number and without an end "
            "token, or tokens hold digits of two numbers. Expected an end token in each row; or, if rows end with complete "
            "numbers, soft=SoftNumbers(tokenizer, target, end_token=tokenizer.eos_token_id)."
        )


def _place(soft: SoftNumbers) -> str:
    return f"matches of {soft.where.pattern!r}" if isinstance(soft.where, re.Pattern) else _WHERE[soft.where]


def _described(target: Any) -> str:
    """Describe a target in a few words."""
    if isinstance(target, Bell):
        return f"bell, {100 * float(target.relative):g} %" if target.relative is not None else f"bell, width {target.width}"
    if isinstance(target, Ratings) and target.column is not None:
        return f"ratings of column {target.column!r}"
    return str(getattr(target, "__name__", type(target).__name__))


def tokenizer_of(*owners: Any) -> Any:
    """Return the first tokenizer among tokenizers, processors and collators."""
    for owner in owners:
        for found in (owner, getattr(owner, "tokenizer", None), getattr(getattr(owner, "processor", None), "tokenizer", None)):
            if hasattr(found, "get_vocab"):
                return found
    raise ValueError(
        "the trainer has no processing_class, and its collator no tokenizer: expected the tokenizer that made the rows; pass "
        "attach(..., tokenizer=tokenizer)."
    )
