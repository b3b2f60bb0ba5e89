"""Fit a comparison into a time: choose losses, seeds, steps and test rows by measured speeds. Needs no torch.

The choice is the best that fits by one order of preference, so that more time never gives less:

1. steps without which nothing is learned (100 from scratch, 17 for a pre-trained model), since untrained models tell nothing
2. 200 test rows, then three seeds
3. enough steps (300 from scratch, 50 for a pre-trained model)
4. five seeds, since p-values need them
5. more losses; the baseline and the recommended loss are always there
6. more test rows, all steps, all test rows, then more seeds

An answer always comes: where nothing fits, the least there is, which :func:`quick_look` marks. Only a budget below ``FLOOR``, in
which nothing can be loaded and read, is an error, at once.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, Self

from numerate.lab.files.durations import as_option, in_words, seconds_of

ENOUGH_STEPS, ENOUGH_STEPS_PRETRAINED = 300, 50
LEAST_STEPS, LEAST_TESTS, SOME_TESTS = 10, 20, 200
FLOOR = 30.0  # seconds: to load the packages and the data, and to write a report, takes about as long
FEW_SEEDS, GOOD_SEEDS, MOST_SEEDS = 3, 5, 8
USED = 0.9  # share of the budget that is planned with
_STEP_CHOICES = 20


@dataclass(frozen=True)
class Budget:
    """Seconds that a comparison may take, from ``began`` (of ``time.monotonic``) to its report."""

    seconds: float
    began: float = field(default_factory=lambda: time.monotonic())

    @classmethod
    def of(cls, value: str | float | Budget) -> Budget:
        """Return a budget that begins now, unless it has begun; raise if it is below the floor."""
        budget = value if isinstance(value, Budget) else cls(seconds_of("budget", value))
        if budget.seconds < FLOOR:
            raise ValueError(
                f"budget={value!r} is too short to load and train anything: expected --budget {as_option(FLOOR)} or more."
            )
        return budget

    @property
    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Pace:
    """Measured seconds of a run: before the first step and after the last answer, per step, and per test row."""

    begin: float
    step: float
    answer: float

    @classmethod
    def slowest(cls, paces: Iterable[Pace]) -> Self:
        """Return a pace that is nowhere faster than any of these."""
        known = list(paces)
        return cls(*(max(getattr(pace, name) for pace in known) for name in ("begin", "step", "answer")))


class Choice(NamedTuple):
    """A comparison that might be run: the first ``losses`` of a list, and the number of seeds, steps and test rows per split."""

    losses: int
    seeds: int
    steps: int
    tests: int


@dataclass(frozen=True)
class Options:
    """What there is to choose from, lowest and highest; a setting that the user gave has one value.

    Attributes:
        losses: names, in the order in which they are kept.
        least_losses: how many of them are always kept.
        seeds: fewest and most.
        steps: fewest and most.
        enough_steps: steps that matter more than the number of losses.
        tests: fewest and most test rows per split.
    """

    losses: tuple[str, ...]
    least_losses: int
    seeds: tuple[int, int]
    steps: tuple[int, int]
    enough_steps: int
    tests: tuple[int, int]

    def choices(self) -> Iterator[Choice]:
        """Return every choice, the preferred one first. One that has less of everything comes later."""
        low, high = self.steps
        rungs = {low, high, *(min(max(low, steps), high) for steps in (-(-self.enough_steps // 3), self.enough_steps))}
        rungs |= {rung for k in range(1, _STEP_CHOICES) if low < (rung := _rounded(high * k / _STEP_CHOICES)) < high}
        losses = range(self.least_losses, len(self.losses) + 1)
        seeds = range(self.seeds[0], self.seeds[1] + 1)
        least, most = self.tests
        rows = {least, most, *(min(max(least, count), most) for count in (3 * least, SOME_TESTS)), self._half}
        every = (Choice(*chosen) for chosen in product(losses, seeds, rungs, rows))
        return iter(sorted(every, key=self._preference, reverse=True))

    def _preference(self, choice: Choice) -> tuple[int, ...]:
        losses, seeds, steps, tests = choice
        few, good = min(seeds, FEW_SEEDS), min(seeds, GOOD_SEEDS)
        some, enough = (min(steps, limit) for limit in (-(-self.enough_steps // 3), self.enough_steps))
        return some, min(tests, SOME_TESTS), few, enough, good, losses, min(tests, self._half), steps, tests, seeds

    @property
    def _half(self) -> int:
        """Test rows between the few that are always there and all of them."""
        return (max(self.tests[0], min(SOME_TESTS, self.tests[1])) + self.tests[1]) // 2


def _rounded(steps: float) -> int:
    """Return steps as a person would choose them."""
    unit = 50 if steps >= 500 else 10 if steps >= 50 else 5 if steps >= 20 else 1
    return max(1, round(steps / unit) * unit)


@dataclass(frozen=True)
class Kind:
    """The runs of a loss on a task with a model; they differ in the seed.

    Attributes:
        loss: its name.
        pace: of a run.
        setup: names task and model.
        splits: test rows that each split has; None: as many as are asked for.
        steps: of these runs, if they have their own.
        pictures: seconds to draw the training pictures of a step; the other losses of a seed take them from there.
        pictured: steps after which no picture is new.
    """

    loss: str
    pace: Pace
    setup: str = ""
    splits: tuple[int | None, ...] = (None,)
    steps: int | None = None
    pictures: float = 0.0
    pictured: int = 0

    def tests(self, asked: int) -> int:
        """Return the number of test rows."""
        return sum(asked if rows is None else min(asked, rows) for rows in self.splits)

    def seconds(self, choice: Choice) -> float:
        """Return the time of a run."""
        steps = choice.steps if self.steps is None else self.steps
        return self.pace.begin + steps * self.pace.step + self.tests(choice.tests) * self.pace.answer


@dataclass(frozen=True)
class GridWork:
    """A comparison as work for a machine.

    Attributes:
        kinds: in the order in which they run.
        slots: runs at a time.
        stacked: whether the runs of a seed are trained as one.
        trials: tuning trials of each loss.
        report: seconds of a report without rows, and per row and run.
    """

    kinds: tuple[Kind, ...]
    slots: int = 1
    stacked: bool = False
    trials: int = 0
    report: tuple[float, float] = (0.0, 0.0)

    def seconds(self, choice: Choice, losses: Sequence[str]) -> float:
        """Return the time that a choice takes, from now to the report."""
        mine = self.of(losses[: choice.losses])
        trials = [kind.seconds(choice) for kind in mine for _ in range(self.trials)]
        runs = [seconds for _ in range(choice.seeds) for seconds in self.jobs(choice, losses[: choice.losses])]
        drawn = choice.seeds * sum(min(choice.steps, kind.pictured) * kind.pictures for kind in mine)
        free = [0.0] * self.slots
        return drawn + finished(free, trials) + finished(free, runs) + self.reporting(choice, mine)

    def of(self, losses: Sequence[str]) -> list[Kind]:
        """Return the kinds with these losses."""
        return [kind for kind in self.kinds if kind.loss in losses]

    def jobs(self, choice: Choice, losses: Sequence[str]) -> list[float]:
        """Return the time of each job of a seed."""
        each = [kind.seconds(choice) for kind in self.of(losses)]
        return [sum(each)] if self.stacked else each

    def reporting(self, choice: Choice, kinds: Sequence[Kind]) -> float:
        """Return the time of the report."""
        rows = choice.seeds * sum(kind.tests(choice.tests) for kind in kinds)
        return self.report[0] + self.report[1] * rows


def finished(free: Sequence[float], jobs: Iterable[float]) -> float:
    """Return when the last job ends, if each begins as soon as one of the slots is free; ``free`` is when each slot is.

    Examples:
        >>> finished([0.0, 1.0], [5.0, 2.0, 2.0])
        5.0
    """
    slots = list(free)
    heapq.heapify(slots)
    for seconds in jobs:
        heapq.heappush(slots, heapq.heappop(slots) + seconds)
    return max(slots, default=0.0)


def best_choice(options: Options, work: GridWork, seconds: float) -> tuple[Choice, float]:
    """Return the best choice that takes at most ``seconds``, or the least one if none does, and its time."""
    for choice in options.choices():
        if (needed := work.seconds(choice, options.losses)) <= seconds:
            return choice, needed
    least = Choice(options.least_losses, options.seeds[0], options.steps[0], options.tests[0])
    return least, work.seconds(least, options.losses)


def kept_order(losses: Sequence[str], first: Iterable[str]) -> tuple[str, ...]:
    """Return the losses in the order in which they are kept: those of ``first``, then the others as they are listed."""
    return tuple(dict.fromkeys([*(name for name in first if name in losses), *losses]))


def left_out(options: Options, choice: Choice, asked: Choice) -> list[str]:
    """Return what a choice leaves out of the comparison that was ``asked`` for, in words."""
    words = list(options.losses[choice.losses :])
    if choice.seeds < asked.seeds:
        words.append(f"{asked.seeds - choice.seeds} of {asked.seeds} seeds")
    for name, what in (("steps", "steps"), ("tests", "test rows")):
        mine, all_of_it = getattr(choice, name), getattr(asked, name)
        if mine < all_of_it:
            words.append(f"{all_of_it - mine:,} of {all_of_it:,} {what}")
    return words


def quick_look(options: Options, choice: Choice, late: float = 0.0) -> str:
    """Say that a choice is no more than a quick look, and why; empty if it is more. ``late`` are seconds beyond the budget."""
    few = []
    if choice.seeds < FEW_SEEDS:
        few.append(f"{choice.seeds} seed{'s' * (choice.seeds > 1)}")
    if choice.steps < min(-(-options.enough_steps // 3), options.steps[1]):
        few.append(f"{choice.steps} steps")
    if choice.tests < min(SOME_TESTS, options.tests[1]):
        few.append(f"{choice.tests} test rows")
    if not few:
        return f"What was asked for takes about {in_words(late)} longer than the budget." if late > 0 else ""
    overrun = f" Even that takes about {in_words(late)} longer than the budget." if late > 0 else ""
    told = "It shows that everything works, not which loss helps: for that, take a longer --budget."
    return f"This is a quick look: {', '.join(few)}. {told}{overrun}"
