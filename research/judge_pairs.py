"""What a small model is worth as a judge: sentence pairs of the STS benchmark on a scale of 0 to 5, against people's scores.

    python research/judge_pairs.py FOLDER --labelled 200 --pairs 100

FOLDER has ``dev.tsv`` and ``test.tsv`` with a score and two sentences per line. Judged without training, and after calibration on
labelled pairs; docs/howto/judge.md has the result for SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from rich.progress import track

from numerate.judge import Judge, Scores, agreement
from numerate.judge.scored import calibrate
from numerate.lab.models.loading import load_model

RUBRIC = "How similar in meaning are the two sentences? 0: completely different topics. 5: they mean the same."
TOGETHER = 10  # pairs in one call of the model


def pairs(file: Path, count: int, seed: int) -> tuple[list[dict[str, str]], list[float]]:
    """Return drawn pairs and their human scores."""
    with file.open(encoding="utf-8") as lines:
        rows = [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    drawn = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))[:count]]
    return [{"first sentence": row[1], "second sentence": row[2]} for row in drawn], [float(row[0]) for row in drawn]


def scores_of(judge: Judge, items: list[dict[str, str]], stage: str) -> Scores:
    """Return the scores of all items."""
    parts = [items[first : first + TOGETHER] for first in range(0, len(items), TOGETHER)]
    return Scores(judge.scale, tuple(one for part in track(parts, stage) for one in judge.scores(part).distributions))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--labelled", type=int, default=200, help="pairs of dev.tsv to calibrate on; default: %(default)s")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of test.tsv; default: %(default)s")
    given = parser.parse_args(arguments)
    loaded = load_model(given.model)
    judge = Judge(RUBRIC, scale="0 to 5", model=loaded.model, tokenizer=loaded.tokenizer, batch_size=TOGETHER, width=8)
    items, human = pairs(given.folder / "test.tsv", given.pairs, seed=1)
    labelled, known = pairs(given.folder / "dev.tsv", given.labelled, seed=0)
    own = scores_of(judge, items, "judge")
    calibration = calibrate(scores_of(judge, labelled, "judge labelled pairs"), known)
    tempered = (None if one is None else one.tempered(calibration.temperature) for one in own.distributions)
    calibrated = Scores(judge.scale, tuple(tempered), calibration)
    print(f"probability of no score: {own.refused.mean():.2f}; error of a constant: {np.abs(human - np.mean(known)).mean():.2f}")
    for name, scores in (("as it is", own), ("calibrated", calibrated)):
        for decision in ("mode", "mean", "median"):
            print(f"\n{name}, {decision}\n{agreement(scores, human, decision=decision)}")
        for level in (0.5, 0.8, 0.9):
            low, high = scores.interval(level).T
            covered = ((low <= human) & (human <= high)).mean()
            print(f"{level:.0%} interval: covers {covered:.2f}, width {(high - low).mean():.1f}")


if __name__ == "__main__":
    main()
