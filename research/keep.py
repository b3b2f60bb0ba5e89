"""Keep what the runs of a comparison wrote in one small file of research/scores.

    numerate compare research/configs/clocks.yaml --tune 5
    python research/keep.py scores runs/clocks               # clocks_scores.csv.xz: for scores.py
    python research/keep.py answers runs/tables_flights      # tables_flights.csv.xz, and lines of settings.csv: for tables.py
    python research/keep.py curves runs/sums                 # sums_curves.csv: for curves.py
    python research/keep.py pools runs/pools_births          # pools_births_pools.csv: for pool_tables.py

``scores`` has a line for each model, loss, seed and test example, with the metrics of the greedy answer and, under names such as
``median absolute_error``, those of each decision; an empty field is an answer without a number. ``answers`` has the label, the
greedy answer and the decided ones. ``curves`` has the exact validation answers by step, and the exact test answers as the step
``test``; the runs need ``validate_every``. ``pools`` has a line for each run of several members, decision and number of members,
with means over its test examples, the seconds of its training, and the milliseconds of an answer. Tuning trials are left out.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from numerate.lab.evaluation.missing import FALLBACK, with_fallback

SCORES = Path(__file__).parent / "scores"
GREEDY, TEST = "greedy", "test"
READ = ("split", "index", "gold", "answer", FALLBACK, "measures", "decisions", "crps", "covers", "interval", "pools", "seconds")
"""The fields of a prediction that are read here."""
SETTINGS = ("train_examples", "steps", "learning_rate", "weight", "width")

Record = dict[str, Any]
RunKey = tuple[str, str, int]  # model, label and seed
Scoring = Callable[[Mapping[str, Any]], Mapping[str, str]]  # the scores of a record, as they are kept


@dataclass(frozen=True)
class Run:
    """The folder of a finished run, and its configuration."""

    folder: Path
    config: Record

    def lines(self, name: str) -> list[Record]:
        """Return the records of one of its files."""
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    @property
    def settings(self) -> Record:
        """What a loss was trained with."""
        soft = {key: value for key, value in (self.config.get("soft") or {}).items() if key in ("relative", "width") and value}
        width = " ".join(f"{key} {value:g}" for key, value in soft.items())
        return {name: self.config.get(name) for name in SETTINGS[:-1]} | {"width": width}


def finished(folder: Path) -> list[Run]:
    """Return the runs of a comparison by model, loss and seed; those that it lists, or without a list all that are there."""
    if missing := [name for name in ("cells", "experiment.json") if not (folder / name).exists()]:
        raise SystemExit(f"{folder} has no {missing[0]}: expected a folder written by `numerate compare`.")
    listed = json.loads((folder / "experiment.json").read_text(encoding="utf-8")).get("cells")
    cells = sorted((folder / "cells").iterdir()) if listed is None else [folder / "cells" / name for name in listed]
    done = [cell for cell in cells if (cell / "result.json").is_file()]
    runs = [Run(cell, json.loads((cell / "config.json").read_text(encoding="utf-8"))) for cell in done]
    runs = [run for run in runs if not run.config.get("validation")]
    return sorted(runs, key=lambda run: run_key(run.config))


def run_key(settings: Mapping[str, Any]) -> RunKey:
    """Return what tells a run from the others of a comparison, from its configuration or a kept line."""
    return str(settings["model"]), str(settings["label"]), int(settings["seed"])


def complete(folder: Path) -> list[Run]:
    """Return the finished runs of a comparison whose losses have the same seeds."""
    runs = finished(folder)
    check_seeds(folder, {run_key(run.config) for run in runs})
    return runs


def check_seeds(where: Path, runs: set[RunKey]) -> None:
    """Raise if the losses of a model have different seeds."""
    for model in sorted({model for model, _, _ in runs}):
        seeds: dict[str, set[int]] = {}
        for _, label, seed in sorted(run for run in runs if run[0] == model):
            seeds.setdefault(label, set()).add(seed)
        if len({frozenset(found) for found in seeds.values()}) > 1:
            counts = ", ".join(f"{label} {len(found)}" for label, found in seeds.items())
            raise ValueError(f"{where} is not finished: expected the same seeds of every loss of {model}, but has {counts}.")


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file, compressed if its name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    packed = {"method": "xz", "preset": 9} if file.suffix == ".xz" else None
    pd.DataFrame(rows, dtype=object).to_csv(file, index=False, lineterminator="\n", compression=packed)


def read(file: Path) -> list[Record]:
    """Return the lines of a file that :func:`write` wrote, as text; none if there is no such file."""
    lines: list[Record] = []
    if file.is_file():
        lines += pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records")
    return lines


def recorded_scores(record: Mapping[str, Any], metrics: Sequence[str] = ()) -> dict[str, str]:
    """Return the metrics in a record, those of the greedy answer and of each decision."""
    scores = {GREEDY: record["measures"]} | {rule: found["measures"] for rule, found in (record.get("decisions") or {}).items()}
    return {
        name if rule == GREEDY else f"{rule} {name}": digits(value)
        for rule, found in scores.items()
        for name, value in found.items()
        if not metrics or name in metrics
    }


def digits(value: float | None) -> str:
    """Return a score as it is kept; nothing if there is no answer."""
    return "" if value is None or math.isinf(value) else f"{value:.5g}"


def keep_scores(folder: Path, out: Path = SCORES, score: Scoring = recorded_scores) -> None:
    """Keep the scores that ``score`` gives each record, beside those of other runs that the file has."""
    file, runs = out / f"{folder.name}_scores.csv.xz", finished(folder)
    rows, here = read(file), {run_key(run.config) for run in runs}
    check_seeds(folder, here | {run_key(line) for line in rows})
    rows = [line for line in rows if run_key(line) not in here]
    for run in runs:
        about = {name: run.config[name] for name in ("model", "label", "seed")}
        for record in run.lines("predictions.jsonl"):
            rows.append(about | {"split": record["split"], "row": record["index"]} | run.settings | dict(score(record)))
    write(file, sorted(rows, key=run_key))


def keep_answers(folder: Path, out: Path = SCORES) -> None:
    """Keep the answers of a comparison on a table, and replace its lines in the table of settings."""
    rows, settings = [], {}
    for run in complete(folder):
        label, fallback = run.config["label"], json.loads((run.folder / "result.json").read_text())["label_median"]
        rates = {key: f"{run.config[key]:g}" for key in ("learning_rate", "weight")}
        settings[label] = {"comparison": folder.name, "label": label} | run.settings | rates
        for record in run.lines("predictions.jsonl"):
            decided = {rule: f"{float(found['answer']):.5g}" for rule, found in record["decisions"].items()}
            about = {"label": label, "seed": run.config["seed"], "row": record["index"]}
            rows.append(about | {"gold": record["gold"], "fallback": fallback, GREEDY: record["answer"]} | decided)
    write(out / f"{folder.name}.csv.xz", rows)
    file = out / "settings.csv"
    lines = [line for line in read(file) if line["comparison"] != folder.name] + [*settings.values()]
    write(file, sorted(lines, key=lambda line: (line["comparison"], line["label"])))


def keep_pools(folder: Path, out: Path = SCORES) -> None:
    """Keep the means of every decision from one member and from pools, beside those of other runs that the file has."""
    file, runs = out / f"{folder.name}_pools.csv", finished(folder)
    here = {run_key(run.config) for run in runs}
    rows = [line for line in read(file) if run_key(line) not in here]
    for run in runs:
        result = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
        records, seconds = run.lines("predictions.jsonl"), result.get("cost", {}).get("train_seconds", math.nan)
        about = {name: run.config[name] for name in ("model", "label", "seed")} | run.settings
        for split in dict.fromkeys(record["split"] for record in records):
            for found in pooled_means([record for record in records if record["split"] == split], run.config.get("members", 1)):
                rows.append(about | {"split": split} | found | {"train_seconds": digits(seconds)})
    write(file, sorted(rows, key=lambda row: (*run_key(row), row["split"], row["decision"], int(row["members"]))))


def pooled_means(records: Sequence[Record], members: int) -> Iterator[Record]:
    """Yield the means of greedy answers of the first member, and of each decision from pools of the first members."""
    greedy = [with_fallback(record, record["measures"]) for record in records]
    yield {"members": 1, "decision": GREEDY, "rows": len(records)} | means(greedy)
    for size in [*map(int, records[0].get("pools") or {}), members]:
        parts = [record if size == members else record["pools"][str(size)] for record in records]
        whole = [{name: part.get(name) for name in ("crps", "covers")} | {"interval": width_of(part)} for part in parts]
        times = [{"milliseconds": 1000 * record["seconds"]["search"]} for record in records] if size == members else []
        for rule in parts[0].get("decisions") or ():
            scored = [
                with_fallback(record, part["decisions"][rule]["measures"]) for record, part in zip(records, parts, strict=True)
            ]
            yield {"members": size, "decision": rule, "rows": len(records)} | means(scored) | means(whole) | means(times)


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean of each figure that all rows have."""
    whole = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return {name: digits(fmean(map(float, values))) for name, values in whole.items() if None not in values}


def width_of(part: Mapping[str, Any]) -> float | None:
    """Return the width of an interval; None if there is none, or if it goes around a circle."""
    low, high = map(float, part.get("interval") or (1, 0))
    return high - low if high >= low else None


def keep_curves(folder: Path, out: Path = SCORES) -> None:
    """Keep the validation curves of a comparison, and the test scores."""
    rows = []
    for run in complete(folder):
        points = [(point["step"], point["validation/exact"]) for point in run.lines("curve.jsonl") if "validation/exact" in point]
        if not points:
            raise SystemExit(f"{run.folder} has no validation in its curve: run the comparison with validate_every.")
        records = [record for record in run.lines("predictions.jsonl") if record["split"] == "interpolate"]
        about = {name: run.config[name] for name in ("model", "label", "seed")}
        points.append((TEST, fmean(record["measures"]["exact"] for record in records)))
        rows += [about | {"step": step, "exact": exact} for step, exact in points]
    write(out / f"{folder.name}_curves.csv", rows)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scores", "answers", "curves", "pools"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metrics", default="", help="of scores: names, separated by commas; default: all")
    parser.add_argument("--out", type=Path, default=SCORES, help="default: research/scores")
    given = parser.parse_args(arguments)
    if given.what == "scores":
        chosen = [name for name in given.metrics.split(",") if name]
        keep_scores(given.folder, given.out, partial(recorded_scores, metrics=chosen))
    else:
        {"answers": keep_answers, "curves": keep_curves, "pools": keep_pools}[given.what](given.folder, given.out)


if __name__ == "__main__":
    main()
