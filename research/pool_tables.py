"""Make the tables of results/pools.md from the scores of part 15 of the plan; those without scores are left out.

    python research/pool_tables.py sizes tables     # pools of 1, 2, 4, 8 members: also tables_10000, padded, pretrained, exact
    python research/pool_tables.py baselines        # the pool of eight against scalar heads, HL-Gauss bins and gradient boosting
    python research/pool_tables.py published clocks # the pool of eight against every loss at its best; also products
    python research/pool_tables.py weights          # equal and fitted weights, averaged quantiles: errors, CRPS, coverage, widths
    python research/pool_tables.py cheaper          # checkpoints of a cyclic schedule, dropout left on, and students
    python research/pool_tables.py disagreement     # which score tells rows unlike those of the training

Figures are means over draws of the training rows. Differences are paired by draw, p-values corrected by Holm's method over the
lines of a table. The scores are those of ``keep.py pools``, ``pool_members.py``, ``cheaper_members.py``, ``disagreement.py`` and
``pool_baselines.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

import curves
import scores
from keep import SCORES
from tables import number, signed

from numerate.lab.stats import holm, paired_t
from numerate.lab.wording.text import p_text

TABLES = ("diamonds", "births", "flights", "rodents", "storms", "demand")
PARTS = {  # comparisons, the metric, and whether more is better
    "tables": ([f"pools_{table}" for table in TABLES], "absolute_error", False),
    "tables_10000": ([f"pools_{table}_10000" for table in TABLES], "absolute_error", False),
    "padded": ([f"pools_{table}{size}_padded" for size in ("", "_10000") for table in TABLES], "absolute_error", False),
    "sixteen": ([f"pools_{table}_16" for table in TABLES], "absolute_error", False),
    "pretrained": (
        [f"pools_{name}" for name in ("sizes_diamonds", "sizes_births", "sizes_esol", "vader")],
        "absolute_error",
        False,
    ),
    "exact": (["pools_sums", "pools_products", "pools_words"], "exact", True),
    "molecules": (["molecules_esol", "molecules_lipophilicity"], "absolute_error", False),
    "clocks": (["pools_clocks"], "clock_accuracy", True),
    "boxes": (["pools_boxes"], "acc_50", True),
}
PUBLISHED = {"clocks": ("clock_accuracy", "exact times"), "products": ("exact", "exact answers")}
HL_GAUSS = {f"pools_{table}{size}": f"tables_{table}{size}_rivals" for table in TABLES for size in ("", "_10000")}
HL_GAUSS |= {"pools_diamonds": "registry_diamonds_rivals"}  # on the rows of tables_diamonds
HL_GAUSS.pop("pools_diamonds_10000")  # other rows

Floats = np.typing.NDArray[np.float64]


def read(name: str, folder: Path) -> pd.DataFrame | None:
    """Return a file of scores; None if it is not there."""
    file = folder / f"{name}_pools.csv"
    return pd.read_csv(file) if file.is_file() else None


def by_draw(table: pd.DataFrame, metric: str, **chosen: Any) -> Mapping[int, float]:
    """Return a metric by draw, of the lines that have these values."""
    rows = table[np.logical_and.reduce([table[name] == value for name, value in chosen.items()])]
    return dict(zip(rows["seed"], rows[metric], strict=True)) if metric in rows else {}


def one_and_eight(file: Path) -> tuple[Floats, Floats]:
    """Return the errors by draw of one member and of a pool of eight, soft labels and the median both."""
    table, way = pd.read_csv(file), {"label": "soft", "decision": "median", "split": "interpolate"}
    one, eight = ([*by_draw(table, "absolute_error", members=size, **way).values()] for size in (1, 8))
    return np.array(one), np.array(eight)


def paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Floats, Floats]:
    """Return the figures of the draws that both have, ``[D, 1]``."""
    both = sorted(mine.keys() & theirs.keys())
    return np.array([[mine[seed]] for seed in both]), np.array([[theirs[seed]] for seed in both])


def compared(pairs: Mapping[Any, tuple[Mapping[int, float], Mapping[int, float]]]) -> dict[Any, float]:
    """Return corrected p-values of pairs of figures by draw; those with fewer than two draws have none."""
    found = {key: paired(*pair) for key, pair in pairs.items()}
    tested = {key: paired_t(*pair, over="seeds") for key, pair in found.items() if len(pair[0]) > 1}
    return holm(tested) if tested else {}


def mean(values: Mapping[int, float]) -> float:
    """Return the mean over draws."""
    return float(np.mean([*values.values()]))


def change(mine: Mapping[int, float], theirs: Mapping[int, float], p: float | None, *, share: bool) -> str:
    """Return a difference with its p-value: points of a share, per cent of an error."""
    a, b = paired(mine, theirs)
    text = f"{signed(100 * (a.mean() - b.mean()), 1)} points" if share else f"{signed(100 * (a.mean() / b.mean() - 1), 1)} %"
    return text if p is None else f"{text} ({p_text(p)})"


def sizes_table(folder: Path, part: str) -> Iterator[str]:
    """Yield a table of pools by their members, each decision of the pool against that of one member."""
    names, metric, share = PARTS[part]
    lines: dict[tuple[str, str, str, str], dict[int, Mapping[int, float]]] = {}
    for name in names:
        if (table := read(name, folder)) is None:
            continue
        table = table[(table["decision"] != "greedy") & (table["split"] == "interpolate")]
        for model, label, decision in table[["model", "label", "decision"]].drop_duplicates().itertuples(index=False, name=None):
            chosen = {"model": model, "label": label, "decision": decision}
            own = {int(size): by_draw(table, metric, members=size, **chosen) for size in sorted(table["members"].unique())}
            lines[name.partition("_")[2], model, label, decision] = {size: found for size, found in own.items() if found}
    lines = {key: own for key, own in lines.items() if len(own) > 1}
    if not lines:
        return
    p = compared({key: (own[max(own)], own[1]) for key, own in lines.items()})
    counts = sorted({size for own in lines.values() for size in own})
    yield from head(
        "", "model", "", "decision", "draws", *(f"{n} member{'s' if n > 1 else ''}" for n in counts), "the most against one"
    )
    for key, own in lines.items():
        cells = [shown(mean(own[size]), share=share) if size in own else "" for size in counts]
        name, model, label, decision = key
        most = own[max(own)]
        changed = change(most, own[1], p.get(key), share=share)
        yield row(name, model, f"`{label}`", decision, str(len(most)), *cells, changed)


def baselines_table(folder: Path) -> Iterator[str]:
    """Yield a table of other models on the same rows, each against the pool of eight with soft labels."""
    found, columns = {}, dict[str, None]()
    for name in (*PARTS["tables"][0], *PARTS["tables_10000"][0]):
        if (table := read(name, folder)) is None:
            continue
        ours = by_draw(table, "absolute_error", label="soft", decision="median", members=8, split="interpolate")
        others = _others(name.removeprefix("pools_"), folder)
        if ours and others:
            found[name.removeprefix("pools_")] = ours, others
            columns |= dict.fromkeys(others)
    p = compared({(name, other): (theirs, ours) for name, (ours, others) in found.items() for other, theirs in others.items()})
    if found:
        yield from head("table", "`soft`, pool of 8, median", *columns)
    for name, (ours, others) in found.items():
        cells = [
            f"{number(mean(others[other]))}, {change(others[other], ours, p.get((name, other)), share=False)}"
            if other in others
            else ""
            for other in columns
        ]
        yield row(name, number(mean(ours)), *cells)


def published_table(folder: Path, task: str) -> Iterator[str]:
    """Yield a table of the pool of eight on a task, the mode, against one model of each published loss on the same rows."""
    metric, what = PUBLISHED[task]
    if (table := read(f"pools_{task}", folder)) is None:
        return
    table = table[(table["split"] == "interpolate") & (table["label"] == "ce")]
    pool = by_draw(table, metric, members=8, decision="mode")
    found = dict(_published_clocks(table, metric, folder) if task == "clocks" else _published_products(folder))
    p = compared({name: (pool, theirs) for name, theirs in found.items()})
    yield from head("against", what, "pool of 8, mode", "difference")
    for name, theirs in found.items():
        exact = shown(mean(theirs), share=True), shown(mean(pool), share=True)
        yield row(name, *exact, change(pool, theirs, p.get(name), share=True))


def _published_clocks(table: pd.DataFrame, metric: str, folder: Path) -> Iterator[tuple[str, Mapping[int, float]]]:
    yield "`ce`, greedy, the first member", by_draw(table, metric, members=1, decision="greedy")
    for kept in scores.read(folder / "clocks_10000_scores.csv.xz"):
        for label in kept.labels:
            for rule in dict.fromkeys(("greedy", kept.best(label, "interpolate", metric)[1])):
                exact = kept.scores[label, rule, "interpolate", metric].mean(1)
                yield f"`{label}`, {rule}", dict(enumerate(exact.tolist()))


def _published_products(folder: Path) -> Iterator[tuple[str, Mapping[int, float]]]:
    runs = curves.read(folder / "products_curves.csv")
    for label in ("ce", "emd", "ntil", "smmd", "number"):  # the others are controls
        yield f"`{label}`, greedy", {run.seed: run.tested for run in runs if run.label == label}


def _others(table: str, folder: Path) -> dict[str, Mapping[int, float]]:
    """Return the errors of other models on a table by draw."""
    found: dict[str, Mapping[int, float]] = {}
    for name in ("heads", "boosting"):
        if (lines := read(name, folder)) is not None:
            for label, size in lines[["label", "members"]].drop_duplicates().itertuples(index=False, name=None):
                own = by_draw(lines, "absolute_error", comparison=table, label=label, members=size)
                found |= {label if size == 1 else f"{label}, mean of {size}": own} if own else {}
    file = folder / f"{HL_GAUSS.get(f'pools_{table}', '')}.csv"
    if file.is_file() and found:
        lines = pd.read_csv(file)
        found["HL-Gauss bins, median"] = by_draw(lines, "mae", baseline="hl_gauss_median")
    return found


def weights_table(folder: Path) -> Iterator[str]:
    """Yield a table of ways to weigh members, each against equal weights."""
    if (table := read("weights", folder)) is None:
        return
    metrics = ("absolute_error", "crps", "covers", "interval", "conformal_covers", "conformal_interval")
    names = ("error of the median", "CRPS", "90 % interval covers", "its width", "conformal interval covers", "its width")
    keys = [*table[["comparison", "label", "members"]].drop_duplicates().itertuples(index=False, name=None)]
    keys.sort(key=lambda key: (TABLES.index(key[0]), key[2], key[1]))
    found = {
        (key, metric): by_draw(table, metric, comparison=key[0], label=key[1], members=key[2])
        for key in keys
        for metric in metrics
    }
    tested = {
        (key, metric): (found[key, metric], found[(key[0], "equal weights", key[2]), metric])
        for key in keys
        for metric in metrics[:2]
        if key[1] != "equal weights"
    }
    p = compared(tested)
    yield from head("table", "members", "weights", *names)
    for key in keys:
        cells = []
        for metric in metrics:
            text = shown(mean(found[key, metric]), share="covers" in metric)
            pair = key, metric
            cells.append(f"{text}, {change(*tested[pair], p.get(pair), share=False)}" if pair in tested else text)
        yield row(key[0], str(key[2]), key[1], *cells)


def cheaper_table(folder: Path) -> Iterator[str]:
    """Yield a table of cheaper members and students, each against one member, and the share of the pool's gain that it keeps."""
    if (table := read("cheaper", folder)) is None:
        return
    for name in (name for name in TABLES if name in set(table["comparison"])):
        own = table[table["comparison"] == name]
        most = int(own.loc[own["label"] == "members", "members"].max())
        keys = [("members", 1), ("members", most)]
        keys += [(label, int(size)) for label, size in own.groupby("label")["members"].max().items() if label != "members"]
        found = {key: by_draw(own, "absolute_error", label=key[0], members=key[1]) for key in keys}
        one, pooled = found[keys[0]], found[keys[1]]
        p = compared({key: (found[key], one) for key in keys[1:]})
        yield f"\n**{name}**, {len(one)} draws\n"
        yield from head(
            "", "models or passes", "error of the median", "against one member", "gain kept", "CRPS", "90 % interval covers"
        )
        for key in keys:
            others = {metric: mean(by_draw(own, metric, label=key[0], members=key[1])) for metric in ("crps", "covers")}
            gain = mean(one) - mean(pooled)
            kept = f"{100 * (mean(one) - mean(found[key])) / gain:.0f} %".replace("-", "−") if key != keys[0] and gain > 0 else ""
            changed = change(found[key], one, p.get(key), share=False) if key != keys[0] else ""
            crps, covers = number(others["crps"]), shown(others["covers"], share=True)
            yield row(key[0], str(key[1]), number(mean(found[key])), changed, kept, crps, covers)


def disagreement_table(folder: Path) -> Iterator[str]:
    """Yield a table of the area under the ROC curve of each score, mean and least over draws."""
    if (table := read("disagreement", folder)) is None:
        return
    parts = table["label"].str.split(": ", expand=True)
    table = table.assign(kind=parts[0], score=parts[1])
    scores = ("between", "share", "interval")
    yield from head("table", "rows unlike", *(f"`{score}`" for score in scores))
    for name in (name for name in TABLES if name in set(table["comparison"])):
        for kind in dict.fromkeys(table["kind"]):
            own = [by_draw(table, "auroc", comparison=name, kind=kind, score=score) for score in scores]
            if all(own):
                yield row(name, kind, *(f"{mean(values):.2f}, least {min(values.values()):.2f}" for values in own))


def shown(value: float, *, share: bool) -> str:
    """Return a figure: a share in per cent."""
    return f"{100 * value:.1f} %" if share else number(value)


def head(*columns: str) -> Iterator[str]:
    """Yield the head of a table."""
    yield row(*columns)
    yield row(*("---" for _ in columns))


def row(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


_CHOICES: dict[str, tuple[Callable[[Path, str], Iterator[str]], Sequence[str]]] = {
    "sizes": (sizes_table, tuple(PARTS)),
    "published": (published_table, tuple(PUBLISHED)),
}
_TABLES: dict[str, Callable[[Path], Iterator[str]]] = {
    "baselines": baselines_table,
    "weights": weights_table,
    "cheaper": cheaper_table,
    "disagreement": disagreement_table,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in (*_CHOICES, *_TABLES):
        command = commands.add_parser(name)
        if name in _CHOICES:
            command.add_argument("part", choices=_CHOICES[name][1])
        command.add_argument("--scores", type=Path, default=SCORES, help="default: research/scores")
        command.add_argument("--title", help="a heading, if there is a table")
    given = parser.parse_args(arguments)
    name, folder = given.command, given.scores
    lines: Sequence[str] = [*(_CHOICES[name][0](folder, given.part) if name in _CHOICES else _TABLES[name](folder))]
    if lines and given.title:
        lines = [f"## {given.title}\n", *lines]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
