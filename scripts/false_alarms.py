"""Measure false alarms, power and coverage of the default test, and print the tables of docs/statistics.md.

    python scripts/false_alarms.py            # about four minutes on one core

Scores of two losses are simulated with or without a true difference, S seeds x E examples, and compared as
``numerate.lab.stats.compare`` does. The plain test lacks the terms in g and f of ``numerate.lab.stats.intervals``: its standard
error over seeds is 0 where the seeds' means are equal. Two comparisons of every scenario are checked against ``compare``.
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
BOUNDS = {0.05: 0.06, 0.01: 0.015}  # largest share of false alarms allowed, by level
VALUES = 4_000_000  # simulated at once


@dataclass(frozen=True)
class Scenario:
    """Two losses. Effects are in units of the noise of a single answer."""

    seeds: int
    examples: int
    measure: str  # one of MEASURES
    ease: float  # spread of the examples' difficulty for both losses: the larger, the fewer answers differ
    luck: float  # spread between seeds
    pair: float  # spread of the examples' preference for one of the losses
    shift: float = 0.0  # gain of the first loss on every example

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Simulate ``count`` comparisons: the scores of both losses, ``[count, S, E]`` each."""

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
        """Range of the measure; 0 if unbounded."""
        return 1.0 if self.measure == "right or wrong" else 0.0


MEASURES = ("right or wrong", "normal", "log-normal", "mostly 0", "outliers")


def half_widths(d: Array, p: float, reach: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the half-widths of the intervals of ``d [N, S, E]`` at level ``1 - p``: of the plain test, and of ``compare``."""
    _, seeds, examples = d.shape
    by_seed, by_example = d.mean(2, dtype=np.float64), d.mean(1, dtype=np.float64)
    mean = by_seed.mean(1)
    variance = by_seed.var(1, ddof=1)
    within = d.var(2, ddof=1, dtype=np.float64).mean(1)
    covariance = np.maximum((seeds * by_example.var(1, ddof=1) - within) / (seeds - 1), 0)
    one_example = np.maximum(np.maximum(d.max((1, 2)) - mean, mean - d.min((1, 2))), reach) / examples
    two_examples = 2 * np.abs(by_example - mean[:, None]).max(1) ** 2 / (examples - 1)
    t_seeds, t_examples = -stdtrit(seeds - 1, p / 2), -stdtrit(examples - 1, p / 2)
    plain = np.sqrt(t_seeds**2 * variance / seeds + t_examples**2 * covariance / examples)
    full = np.sqrt(t_seeds**2 * (variance + one_example**2) / seeds + t_examples**2 * (covariance + two_examples) / examples)
    return plain, np.maximum(full, -math.log(p) * reach / examples)


@dataclass
class Shares:
    """Shares of comparisons, of the plain test and of ``compare``."""

    significant: dict[float, tuple[float, float]]  # by level
    covered: tuple[float, float]  # the 95 % interval contains the true difference
    differing: float  # share of answers that differ
    mean: float  # difference


def study(scenario: Scenario, count: int, seed: int) -> Shares:
    """Simulate ``count`` comparisons. The true difference is 0 without a shift, else the mean of many more examples."""
    rng = np.random.default_rng(seed)
    batch = max(1, VALUES // (scenario.seeds * scenario.examples))
    truth = 0.0
    if scenario.shift:
        a, b = replace(scenario, seeds=1, examples=20).draw(50_000, rng)
        truth = float((a - b).mean(dtype=np.float64))
    significant, covered, differing, total = np.zeros((2, 2)), np.zeros(2), 0.0, 0.0
    for start in range(0, count, batch):
        a, b = scenario.draw(min(batch, count - start), rng)
        d = a - b
        mean = d.mean((1, 2), dtype=np.float64)
        total += float(mean.sum())
        differing += float((d != 0).mean((1, 2)).sum())
        for level, p in enumerate(LEVELS):
            for which, half in enumerate(half_widths(d, p, scenario.reach)):
                significant[level, which] += (np.abs(mean) > half * (1 + 1e-9)).sum()
                covered[which] += (np.abs(mean - truth) <= half * (1 + 1e-9)).sum() if p == 0.05 else 0
        if start == 0:
            _check(scenario, a[:2], b[:2])
    shares = {p: (float(row[0]) / count, float(row[1]) / count) for p, row in zip(LEVELS, significant, strict=True)}
    return Shares(shares, (float(covered[0]) / count, float(covered[1]) / count), differing / count, total / count)


def _check(scenario: Scenario, firsts: Array, seconds: Array) -> None:
    """Raise unless ``compare`` gives the half-widths of this script."""
    bounds = (0, 1) if scenario.reach else (-math.inf, math.inf)
    _, half_width = half_widths(firsts - seconds, 0.05, scenario.reach)
    for a, b, half in zip(firsts.astype(np.float64), seconds.astype(np.float64), half_width, strict=True):
        difference = compare(a, b, bounds=bounds).difference
        mean = float((a - b).mean())
        expected = [mean - half, mean + half] if not scenario.reach else [max(mean - half, -1), min(mean + half, 1)]
        if half and not np.allclose([difference.low, difference.high], expected, rtol=1e-3, atol=1e-6 + 1e-3 * half):
            raise AssertionError(f"{scenario}: compare gives {difference}, this script {expected}.")


def null_scenarios(seeds: int) -> Iterator[Scenario]:
    """Yield scenarios without a difference."""
    for examples in EXAMPLES:
        for ease, luck, pair in itertools.product((0, 2, 8, 40), (0, 0.5, 1.5, 3), (0, 2)):
            yield Scenario(seeds, examples, "right or wrong", ease, luck, pair)
        for measure, luck, pair in itertools.product(MEASURES[1:], (0, 1), (0, 1)):
            yield Scenario(seeds, examples, measure, 1, luck, pair)


def false_alarms(count: int) -> list[str]:
    """Tabulate the largest share of false alarms of any scenario, and the mean over all, by number of seeds."""
    rows = ["| seeds | scenarios | plain: p < 0.05 | p < 0.01 | compare: p < 0.05 | p < 0.01 | mean: p < 0.05 | p < 0.01 |"]
    rows += ["|---|---|---|---|---|---|---|---|"]
    for seeds in SEEDS:
        every = list(null_scenarios(seeds))
        shares = [study(scenario, _count(scenario, count), i) for i, scenario in enumerate(every)]
        # The largest of many estimates is biased upwards: the worst scenarios are simulated again, with more comparisons.
        kinds = list(itertools.product((0, 1), LEVELS))
        worst = {i for which, p in kinds for i in _largest([share.significant[p][which] for share in shares], 3)}
        again = {i: study(every[i], 8 * _count(every[i], count), 10_000 + i) for i in sorted(worst)}
        for i in [i for i, share in again.items() if _above_bound(share)]:
            again[i] = study(every[i], 20 * count, 20_000 + i)
            if _above_bound(again[i]):
                print(f"Above the bound: {every[i]} {again[i].significant}")
        cells = [_percent(max(share.significant[p][which] for share in again.values())) for which, p in kinds]
        means = [_percent(float(np.mean([share.significant[p][1] for share in shares]))) for p in LEVELS]
        rows.append(f"| {seeds} | {len(every)} | {' | '.join(cells)} | {' | '.join(means)} |")
    return rows


def small_cases(count: int) -> list[str]:
    """Tabulate false alarms on right and wrong answers with 43 and 100 examples, of which 4 to 8 % differ."""
    rows = ["| seeds | examples | answers that differ | plain: p < 0.05 | p < 0.01 | compare: p < 0.05 | p < 0.01 |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for seeds, examples, ease in itertools.product((2, 3, 5), (43, 100), (6, 12)):
        shares = study(Scenario(seeds, examples, "right or wrong", ease, 0, 0), 4 * count, 1)
        cells = " | ".join(_percent(shares.significant[p][which]) for which, p in itertools.product((0, 1), LEVELS))
        rows.append(f"| {seeds} | {examples} | {_percent(shares.differing)} | {cells} |")
    return rows


def collapse(count: int) -> list[str]:
    """Tabulate false alarms if each seed ends with nearly all answers right or nearly all wrong."""
    rows = ["| seeds | p < 0.05 | p < 0.01 |", "|---|---|---|"]
    for seeds in SEEDS:
        both = [study(Scenario(seeds, examples, "right or wrong", 0, 6, 0), 4 * count, 2) for examples in (43, 300)]
        rows.append(f"| {seeds} | {' | '.join(_percent(max(shares.significant[p][1] for shares in both)) for p in LEVELS)} |")
    return rows


def power(count: int) -> list[str]:
    """Tabulate how often a true difference is significant at 0.05, and how often the interval contains it."""
    rows = ["| seeds | examples | scenario | true difference | power, plain | compare | coverage, plain | compare |"]
    rows += ["|---|---|---|---|---|---|---|---|"]
    kinds = {
        "equal seeds": (1, 0, 0, 0.28),
        "seeds vary": (4, 0.3, 0, 0.28),
        "examples favour one loss": (4, 0.1, 2, 0.28),
        "few answers differ": (80, 0, 0, 0.1),
    }
    for seeds, examples, (kind, (ease, luck, pair, effect)) in itertools.product((2, 3, 5, 8), (43, 100, 300), kinds.items()):
        shift = effect * math.sqrt(1 + ease**2 + pair**2)
        shares = study(Scenario(seeds, examples, "right or wrong", ease, luck, pair, shift), count, 3)
        cells = " | ".join(_percent(share) for share in (*shares.significant[0.05], *shares.covered))
        rows.append(f"| {seeds} | {examples} | {kind} | {100 * shares.mean:.1f} points | {cells} |")
    return rows


def _count(scenario: Scenario, count: int) -> int:
    return count if scenario.examples <= 100 else count // 2 if scenario.examples <= 300 else count // 5


def _above_bound(shares: Shares) -> bool:
    return any(shares.significant[p][1] > BOUNDS[p] for p in LEVELS)


def _largest(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="comparisons per small scenario (default: %(default)s)")
    count: Any = parser.parse_args().count
    for title, table in (
        ("Small cases", small_cases),
        ("Power", power),
        ("Seeds that collapse", collapse),
        ("False alarms, all scenarios", false_alarms),
    ):
        print(f"\n### {title}\n")
        print("\n".join(table(count)), flush=True)


if __name__ == "__main__":
    main()
