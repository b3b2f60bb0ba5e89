"""Made-up records of comparisons, as files or in memory, and a parser of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from numerate.distribution.exact import Floats
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import Decided
from numerate.lab.report.analysis import Score, Setup, scores, setups
from numerate.lab.report.records import Predictions, RunRecord, read_run


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def lines(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def strict(text: str) -> Any:
    """Read JSON, which has no infinity and no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def write_experiment(folder: Path, **more: Any) -> None:
    write(folder / "experiment.json", {"name": "test", "baseline": "ce", "config": {}, "environment": {"device": "cpu"}, **more})


def write_cell(cell: Path, config: Mapping[str, Any], rows: Sequence[Any], headline: str, **result: Any) -> None:
    """Write a finished run of the model tiny; its label is its loss unless the settings say otherwise."""
    write(cell / "config.json", {"model": "tiny", "label": config["loss"], **config})
    lines(cell / "predictions.jsonl", rows)
    write(cell / "result.json", {"splits": {}, "headline": headline, "cost": {"ms_per_step": 20.0}, **result})


def rewrite(folder: Path, change: Callable[[str, dict[str, Any]], Any], cells: str = "*") -> Path:
    """Change every record of some runs: ``change(label, row)``."""
    for file in folder.glob(f"cells/{cells}/predictions.jsonl"):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            change(file.parent.name.split("-")[0], row)
        lines(file, rows)
    return folder


def reconfigure(folder: Path, file: str = "config.json", cells: str = "*", **settings: Any) -> None:
    """Change the settings, or the results, of some runs."""
    for path in folder.glob(f"cells/{cells}/{file}"):
        write(path, json.loads(path.read_text(encoding="utf-8")) | settings)


def setup_of(folder: Path) -> Setup:
    (setup,) = setups(read_run(folder))
    return setup


def headline_of(setup: Setup) -> list[Score]:
    return [score for score in scores(setup) if score.measure == setup.headline]


def setup_in_memory(
    pairs: Sequence[tuple[str, str]],
    measures: Callable[[str, str, int, int], dict[str, Floats]],
    golds: Sequence[str],
    *,
    headline: str,
    seeds: int = 4,
    splits: Sequence[str] = ("interpolate",),
    model: str = "tiny",
    task: str = "regression",
    config: Callable[[str], dict[str, Any]] = lambda label: {},
    fallback: Mapping[str, Floats] | None = None,
    covers: Floats | None = None,
) -> Setup:
    """Return a setup of pairs of loss and decision; ``measures`` are those of a loss, decision, seed and split."""
    none, texts = np.zeros(len(golds)), tuple(golds)
    cells: dict[str, dict[int, RunRecord]] = {}
    for label in dict.fromkeys(label for label, _ in pairs):
        for seed in range(seeds):
            parts = {}
            for at, split in enumerate(splits):
                mine = {rule: measures(label, rule, seed, at) for name, rule in pairs if name == label}
                other = dict.fromkeys(mine[GREEDY], none) if fallback is None else fallback
                inside = none if covers is None else covers
                times = {"greedy": none, "search": none}
                decided = Decided(0.9, mine, other, {}, inside, none, none, none, times) if len(mine) > 1 else None
                same = (texts, texts, texts, texts, texts)
                parts[split] = Predictions(tuple(range(len(texts))), *same, mine[GREEDY], None, decided, fallback=fallback or {})
            cells.setdefault(label, {})[seed] = RunRecord(Path(), config(label), label, seed, headline, {}, [], parts)
    return Setup(model, task, f"{task} ({model})", "ce", cells)


class ReportPage(HTMLParser):
    """Elements of a page, each with its attributes and the tags around it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.text = file.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "img", "input", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def all(self, tag: str, within: str = "html") -> list[dict[str, str]]:
        """Return the attributes of every element with this tag."""
        return [given for name, given, around in self.elements if name == tag and (within in around or within == tag)]

    def values(self, *names: str) -> list[str]:
        """Return the values of attributes, of all elements."""
        return [given[name] for _, given, _ in self.elements for name in names if name in given]

    @property
    def downloads(self) -> dict[str, str]:
        """The tables that the page offers: name and address."""
        return {given["download"]: given["href"] for given in self.all("a") if "download" in given}
