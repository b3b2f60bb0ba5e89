"""How often does the default test call equal losses different, how often do intervals hold, and what does the test still see?

    python scripts/false_alarms.py            # about four minutes on one core; prints the tables of docs/statistics.md

Two losses are drawn without a difference (or with one), S seeds x E examples, and compared as ``compare`` of the library
does. "Before" is the test without the terms in g and f of ``numerate.lab.stats.intervals``, whose error over seeds was 0 where
the seeds' means were equal. A few comparisons of every scenario are checked against ``compare`` itself.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from numerate.lab.stats import compare

Array = NDArray[np.float32]
SEEDS, EXAMPLES = (2, 3, 4, 5, 8, 10), (10, 20, 43, 100, 300, 1319)
LEVELS = (0.05, 0.01)
BOUNDS = {0.05: 0.06, 0.01: 0.015}  # of the share of false alarms
VALUES = 4_000_000  # to draw at once


@dataclass(frozen=True)
class Scenario:
    """Two losses. Effects are in units of the noise that an example has with one seed and not with another."""

    seeds: int
    examples: int
    measure: str  # "right or wrong", or a continuous one
    ease: float  # spread of examples that are hard or easy for both: the more, the fewer answers differ
    luck: float  # spread of seeds
    pair: float  # spread of examples that suit one of the losses
    shift: float = 0.0  # what the first loss gains on every example

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """``count`` comparisons, each ``[count, S, E]``."""

        def normal(*shape: int) -> Array:
            return rng.standard_normal((count, *shape), dtype=np.float32)

        ease = self.ease * normal(1, self.examples)

        def loss(shift: float) -> Array:
            score = ease + self.luck * normal(self.seeds, 1) + self.pair * normal(1, self.examples) + shift
            return self._measured(score + normal(self.seeds, self.examples), rng)

        return loss(self.shift), loss(0.0)

    def _measured(self, score: Array, rng: np.random.Generator) -> Array:
        match self.measure:
            case "right or wrong":
                return (score > -0.4).astype(np.float32)
            case "normal":
                return score
            case "log-normal":
                return np.exp(1.5 * score)
            case "mostly 0":
                return np.floor(2 * np.maximum(score - 1, 0))
            case "outliers":
                return np.abs(score) * np.where(rng.random(score.shape, dtype=np.float32) < 0.02, 100, 1).astype(np.float32)
        raise ValueError(f"measure={self.measure!r}: expected one of {MEASURES}.")

    @property
    def reach(self) -> float:
        """The range of the measure; 0 where there is none."""
        return 1.0 if self.measure == "right or wrong" else 0.0


MEASURES = ("right or wrong", "normal", "log-normal", "mostly 0", "outliers")


def half_widths(d: Array, p: float, reach: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the intervals of ``d [N, S, E]`` at level ``1 - p``: as they were before, and as they are."""
    _, seeds, examples = d.shape
    by_seed, by_example = d.mean(2, dtype=np.float64), d.mean(1, dtype=np.float64)
    mean = by_seed.mean(1)
    variance = by_seed.var(1, ddof=1)
    within = d.var(2, ddof=1, dtype=np.float64).mean(1)
    covariance = np.maximum((seeds * by_example.var(1, ddof=1) - within) / (seeds - 1), 0)
    one = np.maximum(np.maximum(d.max((1, 2)) - mean, mean - d.min((1, 2))), reach) / examples
    two = 2 * np.abs(by_example - mean[:, None]).max(1) ** 2 / (examples - 1)
    t_seeds, t_examples = -stdtrit(seeds - 1, p / 2), -stdtrit(examples - 1, p / 2)
    before = np.sqrt(t_seeds**2 * variance / seeds + t_examples**2 * covariance / examples)
    after = np.sqrt(t_seeds**2 * (variance + one**2) / seeds + t_examples**2 * (covariance + two) / examples)
    return before, np.maximum(after, -math.log(p) * reach / examples)


@dataclass
class Found:
    """Shares of comparisons, before and after."""

    alarms: dict[float, tuple[float, float]]  # by level: 0 is left out
    held: tuple[float, float]  # the 95 % interval holds the true difference
    differing: float  # answers that differ
    mean: float


def study(scenario: Scenario, count: int, seed: int) -> Found:
    """Draw ``count`` comparisons; the true difference is 0 where there is no shift, else the mean of many more examples."""
    rng = np.random.default_rng(seed)
    batch = max(1, VALUES // (scenario.seeds * scenario.examples))
    truth = 0.0
    if scenario.shift:
        one, two = replace(scenario, seeds=1, examples=20).draw(50_000, rng)
        truth = float((one - two).mean(dtype=np.float64))
    alarms, held, differing, total = np.zeros((2, 2)), np.zeros(2), 0.0, 0.0
    for start in range(0, count, batch):
        a, b = scenario.draw(min(batch, count - start), rng)
        d = a - b
        mean = d.mean((1, 2), dtype=np.float64)
        total += float(mean.sum())
        differing += float((d != 0).mean((1, 2)).sum())
        for at, p in enumerate(LEVELS):
            for which, half in enumerate(half_widths(d, p, scenario.reach)):
                alarms[at, which] += (np.abs(mean) > half * (1 + 1e-9)).sum()
                held[which] += (np.abs(mean - truth) <= half * (1 + 1e-9)).sum() if p == 0.05 else 0
        if start == 0:
            _check(scenario, a[:2], b[:2])
    shares = {p: (float(alarms[at, 0]) / count, float(alarms[at, 1]) / count) for at, p in enumerate(LEVELS)}
    return Found(shares, (float(held[0]) / count, float(held[1]) / count), differing / count, total / count)


def _check(scenario: Scenario, firsts: Array, seconds: Array) -> None:
    """Raise unless the half-widths of this script are those of ``compare``."""
    bounds = (0, 1) if scenario.reach else (-math.inf, math.inf)
    _, after = half_widths(firsts - seconds, 0.05, scenario.reach)
    for a, b, half in zip(firsts.astype(np.float64), seconds.astype(np.float64), after, strict=True):
        found = compare(a, b, bounds=bounds)
        mean = float((a - b).mean())
        expected = [mean - half, mean + half] if not scenario.reach else [max(mean - half, -1), min(mean + half, 1)]
        if half and not np.allclose([found.difference.low, found.difference.high], expected, rtol=1e-3, atol=1e-6 + 1e-3 * half):
            raise AssertionError(f"{scenario}: compare gives {found.difference}, this script {expected}.")


def null_scenarios(seeds: int) -> Iterator[Scenario]:
    """Losses without a difference."""
    for examples in EXAMPLES:
        for ease, luck, pair in itertools.product((0, 2, 8, 40), (0, 0.5, 1.5, 3), (0, 2)):
            yield Scenario(seeds, examples, "right or wrong", ease, luck, pair)
        for measure, luck, pair in itertools.product(MEASURES[1:], (0, 1), (0, 1)):
            yield Scenario(seeds, examples, measure, 1, luck, pair)


def false_alarms(count: int) -> list[str]:
    """A row for each number of seeds: the largest share of false alarms of any scenario, and the mean of all."""
    rows = ["| seeds | scenarios | before: 5 % | 1 % | after: 5 % | 1 % | mean of all: 5 % | 1 % |"]
    rows += ["|---|---|---|---|---|---|---|---|"]
    for seeds in SEEDS:
        every = list(null_scenarios(seeds))
        found = [study(one, _count(one, count), at) for at, one in enumerate(every)]
        # The largest of so many is large by chance, too: the worst are drawn again, more of them.
        kinds = list(itertools.product((0, 1), LEVELS))
        worst = {at for which, p in kinds for at in _largest([one.alarms[p][which] for one in found], 3)}
        again = [study(every[at], 8 * _count(every[at], count), 10_000 + at) for at in sorted(worst)]
        cells = [_percent(max(one.alarms[p][which] for one in again)) for which, p in kinds]
        for at, one in zip(sorted(worst), again, strict=True):
            if any(one.alarms[p][1] > BOUNDS[p] for p in LEVELS):
                print(f"Above the bound: {every[at]} {one.alarms}")
        means = [_percent(float(np.mean([one.alarms[p][1] for one in found]))) for p in LEVELS]
        rows.append(f"| {seeds} | {len(every)} | {' | '.join(cells)} | {' | '.join(means)} |")
    return rows


def issue(count: int) -> list[str]:
    """The small cases: right or wrong, 43 and 100 examples, 5 to 10 % of the answers differ."""
    rows = ["| seeds | examples | answers that differ | before: p < 0.05 | p < 0.01 | after: p < 0.05 | p < 0.01 |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for seeds, examples, ease in itertools.product((2, 3, 5), (43, 100), (6, 12)):
        found = study(Scenario(seeds, examples, "right or wrong", ease, 0, 0), 4 * count, 1)
        shares = " | ".join(_percent(found.alarms[p][which]) for which, p in itertools.product((0, 1), LEVELS))
        rows.append(f"| {seeds} | {examples} | {_percent(found.differing)} | {shares} |")
    return rows


def collapse(count: int) -> list[str]:
    """Seeds that end with nearly all answers right or nearly all wrong."""
    rows = ["| seeds | p < 0.05 | p < 0.01 |", "|---|---|---|"]
    for seeds in SEEDS:
        found = [study(Scenario(seeds, examples, "right or wrong", 0, 6, 0), 4 * count, 2) for examples in (43, 300)]
        rows.append(f"| {seeds} | {' | '.join(_percent(max(one.alarms[p][1] for one in found)) for p in LEVELS)} |")
    return rows


def power(count: int) -> list[str]:
    """Losses with a difference: how often it is seen at 0.05, before and after, and how often the interval holds it."""
    rows = ["| seeds | examples | scenario | true difference | seen before | seen after | interval held before | after |"]
    rows += ["|---|---|---|---|---|---|---|---|"]
    kinds = {
        "seeds alike": (1, 0, 0, 0.28),
        "seeds spread": (4, 0.3, 0, 0.28),
        "examples that suit one loss": (4, 0.1, 2, 0.28),
        "one way, few": (80, 0, 0, 0.1),
    }
    for seeds, examples, (kind, (ease, luck, pair, effect)) in itertools.product((2, 3, 5, 8), (43, 100, 300), kinds.items()):
        shift = effect * math.sqrt(1 + ease**2 + pair**2)
        found = study(Scenario(seeds, examples, "right or wrong", ease, luck, pair, shift), count, 3)
        figures = " | ".join(_percent(share) for share in (*found.alarms[0.05], *found.held))
        rows.append(f"| {seeds} | {examples} | {kind} | {100 * found.mean:.1f} points | {figures} |")
    return rows


def _count(scenario: Scenario, count: int) -> int:
    return count if scenario.examples <= 100 else count // 2 if scenario.examples <= 300 else count // 5


def _largest(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda at: -values[at])[:count]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="comparisons of a small scenario (default: %(default)s)")
    count: Any = parser.parse_args().count
    for title, table in (
        ("Small cases", issue),
        ("Power", power),
        ("Seeds that collapse", collapse),
        ("False alarms, all scenarios", false_alarms),
    ):
        print(f"\n### {title}\n")
        print("\n".join(table(count)), flush=True)


if __name__ == "__main__":
    main()
