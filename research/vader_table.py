"""Write VADER's lexicon as a table of words and ratings, and score a comparison on it against every rating.

    pip install vaderSentiment                            # its lexicon: 7,519 words, ten people's ratings from -4 to 4 each
    python research/vader_table.py vader.csv
    numerate compare research/configs/vader.yaml
    python research/vader_table.py vader.csv --score runs/vader
    python research/scores.py losses research/scores/vader_scores.csv.xz --metrics CRPS_of_the_ratings --baseline soft

The report of the comparison measures answers against the mean of the ratings. ``--score`` measures each model's distribution
against the ratings themselves, and keeps the scores as ``keep.py`` does: the mean CRPS of the ten, the share of
them in the distribution's 90 % interval, and the error of each decision against their mean.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from keep import SCORES, digits, keep_scores, recorded_scores

from numerate import NumberDistribution
from numerate.lab.data import Regression
from numerate.lab.evaluation.decisions import recorded_distribution

ERROR = "absolute_error"
LEVEL = 0.9
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


def score(table: Path, folder: Path, out: Path) -> None:
    """Keep the scores of a comparison's distributions against all ratings, and those of its answers against their mean."""
    task = Regression.from_files(table, target="rating", average="mean")
    ratings = {row.prompt: [float(rating) for rating in row.ratings] for rows in (task.rows or {}).values() for row in rows}
    asked = {}

    def scores_of(record: Mapping[str, Any]) -> dict[str, str]:
        asked[record["prompt"]] = given = ratings[record["prompt"]]
        return against_ratings(record, given)

    keep_scores(folder, out, scores_of)
    for name, value in without_a_model([*asked.values()]).items():
        print(f"CRPS of the ratings, {name}: {value:.3f}")


def without_a_model(words: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the CRPS of forecasts that know what people said."""
    own = [NumberDistribution.from_samples(ratings) for ratings in words]
    return {
        "of a forecast that is the word's own ratings": mean(
            found.crps(rating) for found, ratings in zip(own, words, strict=True) for rating in ratings
        ),
        "of one that is certain of their mean": mean(abs(rating - mean(ratings)) for ratings in words for rating in ratings),
    }


def against_ratings(record: Mapping[str, Any], ratings: Sequence[float]) -> dict[str, str]:
    """Return the scores of a record, by measure; an answer that holds no number has none."""
    errors = {name.replace("absolute", "mean"): value for name, value in recorded_scores(record, [ERROR]).items()}
    found = recorded_distribution(record)
    if found is None:
        return errors
    low, high = found.interval(LEVEL)
    scores = {
        "CRPS_of_the_ratings": mean(found.crps(rating) for rating in ratings),
        "CRPS_of_their_mean": found.crps(record["gold"]),
        "ratings_in_the_90_%_interval": mean(low <= rating <= high for rating in ratings),
    }
    return {name: digits(value) for name, value in scores.items()} | errors


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="CSV file to write; with --score, to read")
    parser.add_argument("--lexicon", type=Path, help=f"{LEXICON}; default: that of the installed package")
    parser.add_argument("--score", type=Path, metavar="FOLDER", help="folder of a finished comparison")
    parser.add_argument("--out", type=Path, default=SCORES, help="folder of the scores; default: research/scores")
    arguments = parser.parse_args()
    if arguments.score is not None:
        score(arguments.table, arguments.score, arguments.out)
        return
    ratings = words(arguments.lexicon or lexicon())
    write_table(ratings, arguments.table)
    print(f"{len(ratings):,} words in {arguments.table}")


if __name__ == "__main__":
    main()
