"""Do the members of a pool disagree more on rows unlike those they were trained on? Part 15e of the plan.

    python research/disagreement.py --minutes 9 --processes 14      # research/scores/disagreement_pools.csv

Three ways of being unlike, each on as many rows as test rows: a numeric column beyond its range in the training rows, a category
that is none of theirs, and rows of another table in the same wording. Three scores of a row: ``between``, the part of the spread
that members disagree on; its ``share`` of the whole; and the width of the pool's 90 % ``interval``. The area under the ROC curve
(``auroc``) is the probability that a row that is unlike has the larger score; that of guessing is 0.5.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from pool_members import LEVEL, TABLES, Row, about, command, draws, trained

from numerate.distribution import NumberDistribution, pool, spread
from numerate.lab.data import Example
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import run_examples

NUMERIC = {"diamonds": "carat", "births": "year", "flights": "distance", "rodents": "foot", "storms": "wind", "demand": "temp"}
CATEGORIES = {"diamonds": "cut", "births": "state", "flights": "carrier", "rodents": "species"}
NEW = "Zq"  # a category of no table
KINDS = ("range", "category", "table")


def measured(table: str, config: RunConfig, folder: Path, *, rows: int = 500) -> list[Row]:
    """Return a line for each way of being unlike and each score."""
    members = trained(config, folder)
    like = held_out(members.task, ("interpolate",), rows)["interpolate"]
    usual, found = scores(members.answers(like)), []
    for kind in KINDS:
        others = unlike(kind, table, config, like)
        if not others:
            continue
        strange = scores(members.answers(others))
        for score in usual:
            line = about(table, config, f"{kind}: {score}", config.members)
            found.append(line | {"rows": len(like), "auroc": auroc(strange[score], usual[score])})
    return found


def unlike(kind: str, table: str, config: RunConfig, like: Sequence[Example]) -> list[Example]:
    """Return questions that are unlike the training rows in one way; none if the table has no such column."""
    task: Any = make_task(config)
    cells = [dict(example.meta["cells"]) for example in like]
    if kind == "table":
        other = TABLES[(TABLES.index(table) + 1) % len(TABLES)]
        ((_, config),) = draws([other], [config.seed])
        task = make_task(config)
        return [Example(example.prompt, "0") for example in held_out(task, ("interpolate",), len(like))["interpolate"]]
    if kind == "category":
        if table not in CATEGORIES:
            return []
        changed = [row | {CATEGORIES[table]: NEW} for row in cells]
    else:
        name = NUMERIC[table]
        numbers = [float(example.meta["cells"][name]) for example in run_examples(config, task)]
        low, high, decimals = min(numbers), max(numbers), max(len(str(row[name]).partition(".")[2]) for row in cells)
        beyond = high + (high - low) * np.random.default_rng(config.seed).uniform(0.2, 1.0, len(cells))
        changed = [row | {name: f"{value:.{decimals}f}"} for row, value in zip(cells, beyond, strict=True)]
    return [Example(task.ask(row, Path()).prompt, "0") for row in changed]


def scores(answers: Sequence[Sequence[NumberDistribution]]) -> dict[str, list[float]]:
    """Return the scores of each row."""
    apart = [spread(row) for row in answers]
    ends = [pool(row).interval(LEVEL) for row in answers]
    return {
        "between": [one.between for one in apart],
        "share": [one.between / one.total if one.total else 0.0 for one in apart],
        "interval": [float(high - low) for low, high in ends],
    }


def auroc(strange: Sequence[float], usual: Sequence[float]) -> float:
    """Return the probability that a strange row has the larger score; of equal ones, half.

    Examples:
        >>> auroc([2, 3], [1, 2])
        0.875
    """
    greater = np.subtract.outer(np.array(strange), np.array(usual))
    return float((greater > 0).mean() + (greater == 0).mean() / 2)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    command(measured, "disagreement", __doc__, arguments, TABLES)


if __name__ == "__main__":
    main()
