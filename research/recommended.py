"""Write the figures that ``numerate.recommended`` quotes to src/numerate/results.json, from the scores.

python research/recommended.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent))

import curves
import pool_tables
import scores
import tables
from figures import typical_error
from keep import GREEDY, SCORES

from numerate.lab.wording.measures import measure

FILE = Path(__file__).parents[1] / "src" / "numerate" / "results.json"
SPLIT = "interpolate"


def figures() -> dict[str, str]:
    """Return every figure by its name."""
    boxes = {size: _score(f"boxes{rows}", "acc_50") for size, rows in (("few", ""), ("many", "_10000"))}
    median, crps = _score("vader", "mean_error", "median"), _score("vader", "CRPS_of_the_ratings")
    clocks = {rule: _score("clocks_10000", "clock_accuracy", rule)["ce"] for rule in (GREEDY, "mode")}
    found = {
        "tables_few": _errors_cut("diamonds_soft.csv.xz", "tables_*[ds].csv.xz"),
        "tables_many": _errors_cut("*_10000.csv.xz"),
        "tables_pool": _pool_cut(),
        "sizes_median": _pretrained_cut("ce"),
        "sizes_soft": _pretrained_cut("soft_a"),
        **{f"raters_median_{label}": median[label] for label in ("ce", "soft")},
        **{f"raters_crps_{label}": crps[label] for label in ("ce", "soft")},
        **{f"clocks_{rule}": clocks[rule] for rule in clocks},
        **{f"clocks_members_{size}": _mode_of_pool("clocks", "clock_accuracy", size) for size in (1, 8)},
        **{f"products_members_{size}": _mode_of_pool("products", "exact", size) for size in (1, 8)},
        **{f"boxes_{size}_{label}": f"{boxes[size][label]} %" for size in boxes for label in ("ce", "soft")},
    }
    for name in ("sums", "products"):
        found |= _against_others(name, _exact(name, "small"))
    found["sums_plain"] = f"{_exact('sums_tokens', 'tiny-3')['ce']} %"
    found["sums_padded"] = f"{_exact('formats_sums', 'tiny-3')['ce padded']} %"
    products = _exact("formats_products", "tiny-3")
    found |= {"products_plain": f"{products['ce']} %", "products_padded": f"{products['ce padded']} %"}
    for name in ("svamp", "gsm8k"):
        found |= _against_others(name, _score(name, "exact"))
    return found


def _errors_cut(*patterns: str) -> str:
    """Return by how much soft labels with the median cut the typical error of greedy cross-entropy, over tables."""
    every = [tables.read(file) for pattern in patterns for file in SCORES.glob(pattern)]
    cut = [100 * (1 - kept.typical(tables.OURS) / kept.typical((tables.BASELINE, GREEDY))) for kept in every]
    return f"{min(cut):.0f} to {max(cut):.0f} %"


def _pool_cut() -> str:
    """Return by how much a pool of eight cuts the mean error of one member, soft labels and the median both, over tables."""
    every = [pool_tables.one_and_eight(SCORES / f"pools_{table}_pools.csv") for table in pool_tables.TABLES]
    cut = [100 * (1 - eight.mean() / one.mean()) for one, eight in every]
    return f"{min(cut):.0f} to {max(cut):.0f} %"


def _mode_of_pool(task: str, metric: str, members: int) -> str:
    """Return how many answers of a pool, its mode, are exact, in per cent."""
    table = pool_tables.read(f"pools_{task}", SCORES)
    assert table is not None
    exact = pool_tables.by_draw(table, metric, label="ce", decision="mode", members=members, split=SPLIT)
    return f"{100 * pool_tables.mean(exact):.1f}"


def _pretrained_cut(label: str) -> str:
    """Return by how much a loss with the median cuts the typical error of greedy cross-entropy, over models and data."""
    every = [kept for file in sorted(SCORES.glob("sizes_*_scores.csv.xz")) for kept in scores.read(file)]
    greedy, decided = ([typical_error(kept, *way) for kept in every] for way in (("ce", GREEDY), (label, "median")))
    cut = [100 * (1 - after / before) for before, after in zip(greedy, decided, strict=True)]
    return f"{min(cut):.0f} to {max(cut):.0f} %"


def _exact(name: str, model: str) -> dict[str, str]:
    """Return the share of exact test answers by loss, in per cent."""
    runs = [run for run in curves.read(SCORES / f"{name}_curves.csv") if run.model == model]
    return {run.label: f"{100 * fmean(each.tested for each in runs if each.label == run.label):.1f}" for run in runs}


def _score(name: str, metric: str, rule: str = GREEDY) -> dict[str, str]:
    """Return a metric by loss, as the tables show it."""
    (kept,) = scores.read(SCORES / f"{name}_scores.csv.xz")
    about = measure(metric)
    return {label: about.number(scores.summary(about, kept.scores[label, rule, SPLIT, metric])) for label in kept.labels}


def _against_others(name: str, shown: dict[str, str]) -> dict[str, str]:
    others = sorted((value for label, value in shown.items() if label != "ce"), key=float)
    return {f"{name}_ce": f"{shown['ce']} %", f"{name}_others": f"{others[0]} to {others[-1]} %"}


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(figures(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
