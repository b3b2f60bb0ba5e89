"""The time budget of a comparison, and the best losses, seeds, steps and test rows that fit into it. Needs no torch."""

from __future__ import annotations

import heapq
import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from numerate.lab.files.progress import in_words
from numerate.lab.models.names import BUILT

FLOOR = 30.0  # seconds: to load the packages and the data, and to write a report, takes about as long
LEAST_STEPS, LEAST_TESTS, MOST_SEEDS = 10, 20, 8
_SOME_TESTS, _FEW_SEEDS, _GOOD_SEEDS = 200, 3, 5  # p-values need five seeds
_USED = 0.9  # share of the budget that is planned
_REPORT_SECONDS = (6.0, 0.0015)  # of a report, and per row and run
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(|s|sec|m|min|h)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}  # by the first letter


@dataclass(frozen=True)
class Budget:
    """Seconds that a comparison or a run may take, from ``began`` (of ``time.monotonic``) to its end."""

    seconds: float
    began: float = field(default_factory=lambda: time.monotonic())

    @classmethod
    def of(cls, value: str | float | Budget) -> Budget:
        """Return a budget that begins now, unless it has begun.

        Examples:
            >>> Budget.of("5m").seconds, Budget.of("1.5 h").seconds, Budget.of(300).seconds
            (300.0, 5400.0, 300.0)
            >>> Budget.of("5 apples")
            Traceback (most recent call last):
            ...
            ValueError: budget='5 apples' is not a time: expected seconds, or a number with s, m or h, such as 300, 90s, 5m or 1h.
        """
        if isinstance(value, Budget):
            return value
        seconds = math.nan
        if isinstance(value, str) and (found := _TIME.fullmatch(value.strip().lower())):
            seconds = float(found[1]) * _UNITS[found[2][:1]]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        if not math.isfinite(seconds):
            expected = "seconds, or a number with s, m or h, such as 300, 90s, 5m or 1h"
            raise ValueError(f"budget={value!r} is not a time: expected {expected}.")
        if seconds < FLOOR:
            raise ValueError(f"budget={value!r} is too short to load and train anything: expected --budget {FLOOR:.0f}s or more.")
        return cls(seconds)

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Return the seconds that are left to plan with: a tenth of the budget is kept in reserve."""
        return _USED * self.seconds - self.elapsed


class Choice(NamedTuple):
    """A comparison that might be run: the first ``losses`` of a list, and the number of seeds, steps and test rows per split."""

    losses: int
    seeds: int
    steps: int
    tests: int


class Pace(NamedTuple):
    """Measured seconds of a run: before the first step and after the last answer, per step, and per test row."""

    begin: float
    step: float
    answer: float


class Kind(NamedTuple):
    """The runs of a loss on a task with a model, which differ in the seed: their pace, and the rows of each test split."""

    loss: str
    pace: Pace
    splits: Sequence[float] = (math.inf,)
    members: int = 1

    def tests(self, choice: Choice) -> float:
        """Return the number of test rows."""
        return sum(min(choice.tests, there) for there in self.splits)

    def seconds(self, choice: Choice) -> float:
        """Return the time of a run, with all of its members."""
        return self.pace.begin + choice.steps * self.pace.step + self.tests(choice) * self.pace.answer

    def trial(self, choice: Choice) -> float:
        """Return the time of a tuning trial, which has one member."""
        return self.seconds(choice) / self.members


@dataclass(frozen=True)
class GridWork:
    """A comparison as work for a machine."""

    losses: Sequence[str]  # names, in the order in which they are kept
    kinds: Sequence[Kind]  # in the order in which they run
    slots: int = 1  # runs at a time
    stacked: bool = False  # whether the runs of a seed are trained as one
    trials: int = 0  # tuning runs of each kind

    def seconds(self, choice: Choice) -> float:
        """Return the time that a choice takes, from now to the report."""
        each, tried = zip(*((kind.seconds(choice), kind.trial(choice)) for kind in self._kinds(choice)), strict=True)
        jobs = [sum(each)] if self.stacked else each
        return finished(self.slots, tried * self.trials) + finished(self.slots, [*jobs] * choice.seeds) + self.report(choice)

    def report(self, choice: Choice) -> float:
        """Return the time of the report."""
        once, per_row = _REPORT_SECONDS
        return once + per_row * choice.seeds * sum(kind.tests(choice) for kind in self._kinds(choice))

    def _kinds(self, choice: Choice) -> list[Kind]:
        return [kind for kind in self.kinds if kind.loss in self.losses[: choice.losses]]


def enough_steps(models: Iterable[str]) -> int:
    """Return the steps that matter more than further losses; with less than a third of them nothing is learned."""
    return 300 if set(models) <= set(BUILT) else 50


def best_choice(least: Choice, most: Choice, enough: int, seconds: Callable[[Choice], float], limit: float) -> Choice:
    """Return the best choice between two that takes at most ``limit`` seconds; the least if none does.

    Each part grows as far as there is time, in one order, so that more time never gives less.

    ``least`` is always run, ``most`` if there is time; ``enough`` steps are those of :func:`enough_steps`.
    """
    choice = least

    def needed(part: str, size: int) -> float:
        return seconds(choice._replace(**{part: size}))

    for part, goal in (
        ("steps", -(-enough // 3)),  # first, since untrained models show nothing
        ("tests", _SOME_TESTS),
        ("seeds", _FEW_SEEDS),
        ("steps", enough),
        ("seeds", _GOOD_SEEDS),
        *((part, max(most)) for part in ("losses", "steps", "tests", "seeds")),
    ):
        now = getattr(choice, part)
        larger = range(now + 1, min(goal, getattr(most, part)) + 1)
        choice = choice._replace(**{part: now + bisect_right(larger, limit, key=partial(needed, part))})
    return choice


def finished(slots: int, jobs: Iterable[float]) -> float:
    """Return when the last job ends, if each begins as soon as one of the slots is free.

    Examples:
        >>> finished(2, [5.0, 2.0, 2.0, 2.0])
        6.0
    """
    free = [0.0] * slots
    for seconds in jobs:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def left_out(losses: Sequence[str], choice: Choice, asked: Choice) -> str:
    """Say what a choice leaves out of the comparison that was ``asked`` for.

    Examples:
        >>> left_out(["ce", "soft", "ntil"], Choice(2, 3, 300, 500), Choice(3, 3, 600, 500))
        'Left out: ntil, 300 of 600 steps.'
    """
    parts = list(losses[choice.losses :])
    for what, mine, wanted in zip(("seeds", "steps", "test rows"), choice[1:], asked[1:], strict=True):
        if mine < wanted:
            parts.append(f"{wanted - mine:,} of {wanted:,} {what}")
    return f"Left out: {', '.join(parts)}." if parts else "Nothing is left out."


def quick_look(choice: Choice, most: Choice, enough: int, late: float = 0.0) -> str:
    """Say that a choice is no more than a quick look, and why; empty if it is more. ``late`` are seconds beyond the budget."""
    few = []
    if choice.seeds < _FEW_SEEDS:
        few.append(f"{choice.seeds} seed{'s' * (choice.seeds > 1)}")
    if choice.steps < min(-(-enough // 3), most.steps):
        few.append(f"{choice.steps} steps")
    if choice.tests < min(_SOME_TESTS, most.tests):
        few.append(f"{choice.tests} test rows")
    if not few:
        return f"What was asked for takes about {in_words(late)} longer than the budget." if late > 0 else ""
    overrun = f" Even that takes about {in_words(late)} longer than the budget." if late > 0 else ""
    shows = "It shows that everything works, not which loss helps: for that, take a longer --budget."
    return f"This is a quick look: {', '.join(few)}. {shows}{overrun}"
