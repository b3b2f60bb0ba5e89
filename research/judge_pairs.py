"""What a model is worth as a judge: sentence pairs of the STS benchmark on a scale of 0 to 5, against people's scores.

    python research/judge_pairs.py FOLDER --model FILE.gguf

FOLDER has ``dev.tsv`` and ``test.tsv`` with a score and two sentences per line. Judged without training, and after calibration on
labelled pairs of dev.tsv; the coverage of intervals is the mean over many draws of these. docs/howto/judge.md has the results.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from numerate.judge import Judge, Scores, agreement
from numerate.judge.scored import calibrate
from numerate.lab.models.loading import load_model

RUBRIC = "How similar in meaning are the two sentences? 0: completely different topics. 5: they mean the same."
TOGETHER = 10  # pairs in one call of the model


def pairs(file: Path, count: int | None, seed: int) -> tuple[list[dict[str, str]], list[float]]:
    """Return drawn pairs and their human scores."""
    with file.open(encoding="utf-8") as lines:
        rows = [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    drawn = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))[:count]]
    return [{"first sentence": row[1], "second sentence": row[2]} for row in drawn], [float(row[0]) for row in drawn]


def scores_of(judge: Judge, items: list[dict[str, str]], stage: str) -> Scores:
    """Return the scores of all items."""
    parts = [items[first : first + TOGETHER] for first in range(0, len(items), TOGETHER)]
    return Scores(judge.scale, tuple(one for part in track(parts, stage) for one in judge.scores(part).distributions))


def calibrated(own: Scores, labelled: Scores, known: list[float]) -> Scores:
    """Return a judge's scores after calibration on labelled pairs."""
    found = calibrate(labelled, known)
    return Scores(own.scale, tuple(None if one is None else one.tempered(found.temperature) for one in own.distributions), found)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--labelled", type=int, default=200, help="pairs to calibrate on; default: %(default)s")
    parser.add_argument("--draws", type=int, default=100, help="draws of the labelled pairs, for coverage; default: %(default)s")
    parser.add_argument("--pairs", type=int, help="pairs of dev.tsv and of test.tsv that are judged; default: all")
    given = parser.parse_args(arguments)
    loaded = load_model(given.model).to("cuda" if torch.cuda.is_available() else "cpu")
    judge = Judge(RUBRIC, scale="0 to 5", model=loaded.model, tokenizer=loaded.tokenizer, batch_size=TOGETHER, width=8)
    items, human = pairs(given.folder / "test.tsv", given.pairs, seed=1)
    own = scores_of(judge, items, "judge")
    more, known = pairs(given.folder / "dev.tsv", given.pairs, seed=0)
    labelled = scores_of(judge, more, "judge labelled pairs")

    def taught(draw: int) -> Scores:
        drawn = np.random.default_rng(draw).permutation(len(more))[: given.labelled]
        return calibrated(own, Scores(own.scale, tuple(labelled.distributions[i] for i in drawn)), [known[i] for i in drawn])

    print(f"probability of no score: {own.refused.mean():.2f}; error of a constant: {np.abs(human - np.mean(known)).mean():.2f}")
    every = [taught(draw) for draw in track(range(given.draws), "calibrate")]
    for name, scores in (("as it is", own), (f"calibrated on {given.labelled} pairs", every[0])):
        for decision in ("mode", "mean", "median"):
            print(f"\n{name}, {decision}\n{agreement(scores, human, decision=decision)}")
    for level in (0.5, 0.8, 0.9):
        for name, several in (("as it is", [own]), ("calibrated", every)):
            ends = np.array([scores.interval(level) for scores in several])
            covered = ((ends[..., 0] <= human) & (human <= ends[..., 1])).mean(1)
            width = (ends[..., 1] - ends[..., 0]).mean()
            print(f"{level:.0%} interval, {name}: covers {covered.mean():.3f} (SD {covered.std():.3f}), width {width:.1f}")


if __name__ == "__main__":
    main()
