"""Write VADER's lexicon as a table of words and ratings, and score a comparison on it against every rating.

    pip install vaderSentiment                            # its lexicon: 7,519 words, ten people's ratings from -4 to 4 each
    python scripts/vader_table.py vader.csv
    numerate compare experiments/vader.yaml
    python scripts/vader_table.py vader.csv --score runs/vader

The report of the comparison measures answers against the mean of the ratings. ``--score`` also gives the CRPS of each model's
distribution against the ratings themselves: the mean over the ten of them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev

LEXICON = "vader_lexicon.txt"  # word, mean, standard deviation, [ratings]; separated by tabs


def lexicon() -> Path:
    """Return the lexicon of the installed package."""
    spec = find_spec("vaderSentiment")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the lexicon is in the package vaderSentiment: run pip install vaderSentiment, or name it with --lexicon."
        )
    return Path(spec.origin).parent / LEXICON


def words(path: Path) -> dict[str, list[int]]:
    """Return the ratings of each word; a word that stands twice keeps its first ones."""
    ratings: dict[str, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            word, _, _, listed = line.split("\t")
            ratings.setdefault(word, json.loads(listed))
    return ratings


def write_table(ratings: dict[str, list[int]], path: Path) -> None:
    """Write a CSV file with the columns word and rating."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("word", "rating"))
        writer.writerows((word, json.dumps(listed)) for word, listed in ratings.items())


def score(table: Path, folder: Path) -> None:
    """Print, by loss, CRPS against all ratings and against their mean: the mean over seeds, and its standard error."""
    from numerate.lab.decisions import recorded_distribution
    from numerate.lab.records import read_jsonl
    from numerate.lab.tasks import Regression

    task = Regression.from_files(table, target="rating", average="mean")
    ratings = {row.prompt: row.ratings for rows in (task.rows or {}).values() for row in rows}
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name in json.loads((folder / "experiment.json").read_text(encoding="utf-8"))["cells"]:
        cell = folder / "cells" / name
        label = json.loads((cell / "config.json").read_text(encoding="utf-8"))["label"]
        records = read_jsonl(cell / "predictions.jsonl")
        found = [(record, recorded_distribution(record)) for record in records]
        known = [(record, distribution) for record, distribution in found if distribution is not None]
        against = [mean(distribution.crps(rating) for rating in ratings[record["prompt"]]) for record, distribution in known]
        scores[label, "CRPS against the ratings"].append(mean(against))
        scores[label, "CRPS against their mean"].append(mean(d.crps(record["gold"]) for record, d in known))
        scores[label, "share with a distribution"].append(len(known) / len(records))
    for (label, measure), values in scores.items():
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        print(f"{label:24} {measure:28} {mean(values):.4f} +- {error:.4f} ({len(values)} seeds)")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="CSV file to write; with --score, to read")
    parser.add_argument("--lexicon", type=Path, help=f"{LEXICON}; default: that of the installed package")
    parser.add_argument("--score", type=Path, metavar="FOLDER", help="folder of a finished comparison")
    arguments = parser.parse_args()
    if arguments.score is not None:
        score(arguments.table, arguments.score)
        return
    ratings = words(arguments.lexicon or lexicon())
    write_table(ratings, arguments.table)
    print(f"{len(ratings):,} words in {arguments.table}")


if __name__ == "__main__":
    main()
