"""The report as plain data: a table with one row per score, and everything on the page for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from numerate.lab.report.chapters import Chapter, lead
from numerate.lab.report.decisions import decisions_table, sources_rows
from numerate.lab.report.levels import levels_rows, levels_scores
from numerate.lab.report.recommended import recommendation_row
from numerate.lab.report.records import ExperimentRecord
from numerate.lab.report.tables import DataTable


class ReportData(TypedDict):
    """Content of ``report.json``; in the file, infinite numbers are null."""

    experiment: Mapping[str, Any]  # name, created, command, baseline, config, environment
    answer: str  # the result in a sentence
    answers: list[dict[str, Any]]  # per setup: setup, verdict ("better", "worse", "noise" or "untested"), sentences
    recommendations: list[dict[str, Any]]  # per setup: what is recommended for its numbers, and whether this result agrees
    scores: list[dict[str, Any]]  # the rows of to_table
    costs: list[dict[str, Any]]  # per setup and loss: ms_per_step, peak_mib, time_ratio, ..; None if not measured
    decisions: list[dict[str, Any]]  # the rows of decisions_table; empty without decisions
    levels: list[dict[str, Any]]  # the rows of levels_rows; empty for tasks that are no tables
    level_notes: list[str]  # why a constant, gradient boosting or a relative error is missing there
    error_sources: list[dict[str, Any]]  # per setup, loss, split and measure: how much of the error is the decision
    figures: list[dict[str, Any]]  # per setup and figure: its data as columns and rows
    unfinished: list[dict[str, Any]]  # runs without a result: folder, label, seed, steps


def to_table(chapters: Sequence[Chapter]) -> DataTable:
    """Return one row per setup, loss, split and measure, for the headline measure by decision; this is ``report.csv``.

    ``value`` with ``low`` and ``high`` is the score and its 95 % interval. ``difference`` is that from ``baseline``:
    ``difference_of`` says whether of means or of examples won minus lost. ``p_holm`` is ``p`` corrected for ``comparisons``
    comparisons. ``better`` is True or False if the difference is significant, else None. The baseline has no difference.

    The rows of a table with the summary ``typical run`` are the median over seeds, with the lowest and the highest run.
    """
    columns = (
        *("task", "model", "setup", "label", "split", "decision", "measure"),
        *("summary", "higher_is_better", "headline", "seeds", "examples"),
        *("value", "low", "high", "baseline", "difference", "difference_low", "difference_high", "difference_of"),
        *("test", "p", "p_holm", "comparisons", "effect", "better"),
    )
    rows = []
    for chapter in chapters:
        setup = chapter.setup
        for score in chapter.scores:
            measure, gain, compared = score.measure, score.gain, score.comparison
            name = (setup.task, setup.model, setup.title, score.label, score.split, score.decision, measure.name)
            kind = ("median" if measure.median else "mean", measure.higher_is_better, measure == setup.headline)
            size = (score.seeds, score.examples)
            value = (score.interval.estimate, score.interval.low, score.interval.high)
            difference: tuple[Any, ...] = (None,) * 10
            if compared is not None and gain is not None:
                difference = (gain.estimate, gain.low, gain.high, "examples won" if score.by_sign else "means")
                difference += (compared.test, compared.p_value, compared.corrected_p, score.family, score.effect, score.better)
            rows.append((*name, *kind, *size, *value, setup.baseline, *difference))
        if chapter.levels is not None:
            rows += [(*row, setup.baseline, *(None,) * 10) for row in levels_scores(setup, chapter.levels)]
    return DataTable(columns, rows)


def to_decisions(chapters: Sequence[Chapter]) -> DataTable:
    """Return the decisions of all setups; this is ``report_decisions.csv``."""
    return decisions_table([(chapter.setup, chapter.decisions) for chapter in chapters if chapter.decisions is not None])


def to_data(experiment: ExperimentRecord, chapters: Sequence[Chapter]) -> ReportData:
    """Return everything on the page except pictures; this is ``report.json``."""
    table, decided = to_table(chapters), to_decisions(chapters)
    return {
        "experiment": {
            name: getattr(experiment, name) for name in ("name", "created", "command", "baseline", "config", "environment")
        },
        "answer": lead(experiment, chapters),
        "answers": [
            {
                "setup": chapter.setup.title,
                "verdict": chapter.answer.verdict,
                "sentences": [chapter.answer.lead, *chapter.answer.more],
            }
            for chapter in chapters
        ],
        "recommendations": [
            recommendation_row(chapter.setup, chapter.recommendation)
            for chapter in chapters
            if chapter.recommendation is not None
        ],
        "scores": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "costs": [{"setup": chapter.setup.title, **asdict(cost)} for chapter in chapters for cost in chapter.costs],
        "decisions": [dict(zip(decided.columns, row, strict=True)) for row in decided.rows],
        "levels": [
            row for chapter in chapters if chapter.levels is not None for row in levels_rows(chapter.setup, chapter.levels)
        ],
        "level_notes": [note for chapter in chapters if chapter.levels is not None for note in chapter.levels.notes],
        "error_sources": [
            row for chapter in chapters if chapter.decisions is not None for row in sources_rows(chapter.setup, chapter.decisions)
        ],
        "figures": [
            {"setup": chapter.setup.title, "figure": name, "columns": figure.data.columns, "rows": figure.data.rows}
            for chapter in chapters
            for name, figure in chapter.figures.items()
        ],
        "unfinished": [
            {"folder": run.folder.name, "label": run.label, "seed": run.seed, "steps": run.steps} for run in experiment.unfinished
        ],
    }
