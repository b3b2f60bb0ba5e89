"""Find losses whose results are the same, and say so: equal rows in a table look like a mistake otherwise."""

from __future__ import annotations

from numerate.lab.report.analysis import Setup
from numerate.lab.report.wording import counted, listed


def identical(setup: Setup) -> list[tuple[str, ...]]:
    """Return the groups of losses that gave the same answer to every example, with every seed and every decision."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for label, cells in setup.cells.items():
        groups.setdefault(tuple((seed, _answers(setup, label, seed)) for seed in sorted(cells)), []).append(label)
    return [tuple(labels) for labels in groups.values() if len(labels) > 1]


def identical_sentence(setup: Setup) -> str:
    """Return which losses are identical; empty if none are."""
    examples = sum(len(setup.examples(split).index) for split in setup.splits)
    said = [
        f"The results of {listed(labels)} are identical: the same answers to all {counted(examples, 'example')} with every seed."
        for labels in identical(setup)
    ]
    return " ".join(said)


def _answers(setup: Setup, label: str, seed: int) -> tuple[object, ...]:
    """Return everything that was answered: the answer or, without one, the output; and the scores of other decisions."""
    found: list[object] = []
    for split in setup.splits:
        part = setup.cells[label][seed].splits[split]
        found += [output if answer is None else answer for answer, output in zip(part.answers, part.outputs, strict=True)]
        if part.decided is not None:
            found += [part.medians, part.intervals]
            found += [tuple(scores[name]) for scores in part.decided.measures.values() for name in sorted(scores)]
    return tuple(found)
