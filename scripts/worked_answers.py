"""Show as Markdown whether a loss makes the numbers of worked answers better, and the rest of their text no worse.

    numerate compare experiments/svamp.yaml && numerate compare experiments/gsm8k.yaml
    python scripts/worked_answers.py runs/svamp runs/gsm8k                            # each loss against cross-entropy
    python scripts/worked_answers.py runs/svamp --baseline ntil --losses 'ntil results'   # other contrasts

Likelihoods are mean negative log-likelihoods per token of the gold answer, so that less is better. Differences have 95 %
intervals and p-values with Holm's correction, as in the report. Text is "no worse" if the whole interval of its difference lies
below 1 % of the baseline's value.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from numerate.lab.likelihood import NUMBER_NLL, TEXT_NLL
from numerate.lab.report.analysis import Score, Setup, scores, setups
from numerate.lab.report.records import read_run
from numerate.lab.report.wording import counted, minus, p_text, plus

MARGIN = 0.01  # of the baseline's value
SHOWN = ("exact", NUMBER_NLL, TEXT_NLL)
HEADINGS = ("exact, %", "difference, points", "NLL of numbers", "difference", "NLL of the rest", "difference", "text no worse")


def table(folder: Path, baseline: str | None = None, losses: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table for each task, model and split of a comparison."""
    experiment = read_run(folder)
    if baseline is not None:
        experiment = replace(experiment, baseline=baseline)
    for setup in setups(experiment):
        if unknown := {experiment.baseline, *losses} - set(setup.labels):
            raise ValueError(f"{folder} has no runs of {', '.join(sorted(unknown))}: expected some of {', '.join(setup.labels)}.")
        kept = {setup.baseline, *(losses or setup.rivals())}
        found = scores(replace(setup, cells={label: cells for label, cells in setup.cells.items() if label in kept}))
        for split in setup.splits:
            yield from ("", f"**{folder.name}, {split}**: {_size(setup, split)}", "", _row("loss", *HEADINGS))
            yield _row(*["---"] * (1 + len(HEADINGS)))
            chosen = {(score.label, score.measure.name): score for score in found if score.split == split}
            for label in dict.fromkeys(label for label, _ in chosen):
                exact, numbers, text = (chosen[label, name] for name in SHOWN)
                figures = [f"{100 * exact.interval.estimate:.1f}", _difference(exact, 100, 1)]
                for score in (numbers, text):
                    figures += [f"{score.interval.estimate:.4f}", _difference(score, 1, 4)]
                margin = MARGIN * chosen[str(setup.baseline), TEXT_NLL].interval.estimate
                yield _row(label, *figures, "" if text.gain is None else "yes" if text.gain.high < margin else "not shown")


def _size(setup: Setup, split: str) -> str:
    sizes = counted(len(setup.seeds), "seed"), counted(len(setup.examples(split).index), "problem")
    return f"{', '.join(sizes)}, {setup.model}, against {setup.baseline}"


def _difference(score: Score, factor: int, decimals: int) -> str:
    """Return a difference with its interval and corrected p-value; nothing for the baseline."""
    if score.gain is None or score.comparison is None:
        return ""
    gain = score.gain
    low, middle, high = (plus(minus(f"{factor * value:.{decimals}f}")) for value in (gain.low, gain.estimate, gain.high))
    p = score.comparison.p_value if score.comparison.corrected_p is None else score.comparison.corrected_p
    return f"{middle} ({low} to {high}), p {'' if p < 0.001 else '= '}{p_text(p)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables of the folders that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--baseline", help="the loss that the others are compared with; default: that of the comparison")
    parser.add_argument("--losses", default="", help="names, separated by commas; default: all")
    options = parser.parse_args()
    losses = [name.strip() for name in options.losses.split(",") if name.strip()]
    for folder in options.folders:
        print("\n".join(table(folder, options.baseline, losses)))


if __name__ == "__main__":
    main()
