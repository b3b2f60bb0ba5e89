"""The report as plain data: a table with one row per score, and everything on the page for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

from numerate.lab.evaluation.decisions import GREEDY, SAMPLED
from numerate.lab.report.analysis import Score
from numerate.lab.report.chapters import Chapter, first_screen
from numerate.lab.report.figures.drawing import FigurePlan
from numerate.lab.report.levels import levels_rows, levels_scores
from numerate.lab.report.member_scores import member_rows
from numerate.lab.report.records import ExperimentRecord
from numerate.lab.report.tables import DataTable


class ReportData(TypedDict):
    """Content of ``report.json``; in the file, infinite numbers are null."""

    experiment: Mapping[str, Any]  # name, created, command, baseline, config, environment
    answer: str  # the result in a sentence
    key_figures: list[dict[str, Any]]  # title, text, note and better of each
    summaries: list[dict[str, Any]]  # per setup: its first screen, as text, and the pairs before and after
    answers: list[dict[str, Any]]  # per setup: setup, verdict ("better", "worse", "noise" or "untested") on losses, sentences
    recommendations: list[dict[str, Any]]  # per setup: what is recommended for its numbers, and whether this result agrees
    scores: list[dict[str, Any]]  # the rows of to_table
    costs: list[dict[str, Any]]  # per setup and loss: ms_per_step, peak_mib, time_ratio, ..; None if not measured
    decisions: list[dict[str, Any]]  # the rows of to_decisions; empty without decisions
    formats: list[dict[str, Any]]  # per setup, loss and format: the difference from plain text with the same loss and decision
    members: list[dict[str, Any]]  # per setup, loss, split, number of members and decision: the difference from one member, cost
    levels: list[dict[str, Any]]  # the rows of levels_rows; empty for tasks that are no tables
    level_notes: list[str]  # why a baseline or a relative error is missing there
    error_sources: list[dict[str, Any]]  # per setup, loss, split and metric: how much of the error is the decision
    figures: list[dict[str, Any]]  # per setup and figure: its data as columns and rows
    unfinished: list[dict[str, Any]]  # runs without a result: folder, label, seed, steps


def to_table(chapters: Sequence[Chapter]) -> DataTable:
    """Return one row per setup, loss, split and metric, for the headline metric by decision; this is ``report.csv``.

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
            difference: tuple[Any, ...] = (None,) * 10
            if compared is not None and gain is not None:
                difference = (*gain.numbers, "examples won" if score.by_sign else "means")
                difference += (compared.test, compared.p_value, compared.corrected_p, score.family, score.effect, score.better)
            rows.append((*name, *kind, *size, *score.interval.numbers, setup.baseline, *difference))
        if chapter.levels is not None:
            rows += [(*row, setup.baseline, *(None,) * 10) for row in levels_scores(setup, chapter.levels)]
    return DataTable(columns, rows)


def to_decisions(chapters: Sequence[Chapter]) -> DataTable:
    """Return one row per setup, loss, split, metric and decision; this is ``report_decisions.csv``.

    ``mean`` is over ``examples`` examples, that of an error without an upper limit in a typical run (the median over seeds);
    ``left_out`` have no finite score under some decision. ``low`` to ``high`` is the interval of the ``summary``: the mean or,
    where a few answers dominate the mean of a run, the median. ``difference`` is that from greedy
    answers of the same weights: of means or, with medians, the share of examples with a larger score minus that with a smaller
    one. ``change`` is that of the summary, as a share of the greedy one.
    ``seconds`` are per example, for the search those beyond greedy decoding. ``coverage`` is that of the interval of ``level``,
    ``calibrated_coverage`` that of conformal intervals, fitted on the other half of the examples.
    ``against`` is the difference from ``baseline`` with the same decision, ``against_change`` its share of the baseline's score.
    ``helps`` is True or False if that is significantly better or worse, else None.
    """
    columns = (
        *("task", "model", "setup", "label", "split", "measure", "decision", "seeds", "examples", "left_out"),
        *("summary", "mean", "low", "high", "median"),
        *("difference", "difference_low", "difference_high", "change", "p", "p_holm", "better"),
        *("seconds", "level", "coverage", "calibrated_coverage", "crps", "searched"),
        *("baseline", "against", "against_low", "against_high", "against_change", "against_p", "against_p_holm", "helps"),
    )
    rows = []
    for chapter in (chapter for chapter in chapters if chapter.decisions is not None):
        assert chapter.decisions is not None
        setup = chapter.setup
        for score in chapter.decisions.scores:
            worth = chapter.decisions.cost(score.label, score.split).worth
            name = (setup.task, setup.model, setup.title, score.label, score.split, score.measure.name, score.decision)
            size = (score.seeds, score.examples, score.left_out)
            summary = "median" if score.measure.median else "mean"
            value = (summary, score.mean, score.interval.low, score.interval.high, score.median)
            ms = {GREEDY: worth.greedy_ms, SAMPLED: worth.samples_ms}.get(score.decision) or worth.search_ms
            shares = (worth.level, worth.coverage, worth.calibrated, worth.crps, worth.searched)
            against = (setup.baseline, *_changed(score.contrast))
            rows.append((*name, *size, *value, *_changed(score), ms / 1000, *shares, *against))
    return DataTable(columns, rows)


def _changed(score: Score | None) -> tuple[Any, ...]:
    """Return a difference with its interval, share, p-values and verdict."""
    if score is None or (found := score.comparison) is None:
        return (None,) * 7
    return (*found.difference.numbers, score.change, found.p_value, found.corrected_p, score.better)


def _recommendation(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield what is recommended and whether the comparison agrees, with all other pairs compared with the recommended one."""
    if (check := chapter.recommendation) is None:
        return
    rows = []
    for score in check.scores:
        row: dict[str, Any] = {"label": score.label, "decision": score.decision, "split": score.split, "better": score.better}
        if (gain := score.gain) is not None and (tested := score.comparison) is not None:
            row |= {"difference": gain.estimate, "difference_low": gain.low, "difference_high": gain.high}
            row |= {"p": tested.p_value, "p_holm": tested.corrected_p, "seeds": tested.seeds}
        rows.append(row)
    known = {name: getattr(check.recommendation, name) for name in ("kind", "loss", "format", "decision", "reason", "results")}
    yield {"setup": chapter.setup.title, **known, "agreement": check.agreement, "sentence": check.sentence, "others": rows}


def _summary(chapter: Chapter) -> dict[str, Any]:
    """Return the first screen of a setup as plain data."""
    found = chapter.summary
    told = {name: getattr(found, name) for name in ("verdict", "sentence", "note", "baselines")}
    pairs = {name: None if score is None else _pair(score) for name, score in (("before", found.before), ("after", found.after))}
    figures = [asdict(figure) for figure in found.figures]
    return {"setup": chapter.setup.title, **told, "measure": found.measure.name, **pairs, "figures": figures}


def _pair(score: Score) -> dict[str, Any]:
    tested = score.comparison
    p = None if tested is None else tested.final_p
    return {"label": score.label, "decision": score.decision, "value": score.interval.estimate, "change": score.change, "p": p}


def _formats(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield the scores of each loss in each format, compared with plain text under the same loss and decision."""
    if (found := chapter.formats) is None:
        return
    names = ("difference", "difference_low", "difference_high", "change", "p", "p_holm", "better")
    for (loss, format), label in found.labels.items():
        for score in (score for score in found.scores if score.label == label):
            row = {"setup": chapter.setup.title, "loss": loss, "format": format, "split": score.split, "decision": score.decision}
            yield row | {"value": score.interval.estimate, **dict(zip(names, _changed(score), strict=True))}


def _sources(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield where the error of each loss comes from."""
    for cost in () if chapter.decisions is None else chapter.decisions.costs:
        for sources in cost.sources.values():
            parts = {part: getattr(sources, part) for part in ("decision", "spread", "surprise")}
            yield {"setup": chapter.setup.title, "label": cost.label, "split": cost.split, **asdict(sources), **parts}


def to_data(experiment: ExperimentRecord, chapters: Sequence[Chapter], across: Sequence[FigurePlan] = ()) -> ReportData:
    """Return everything on the page except pictures; this is ``report.json``. ``across`` are figures that compare setups."""
    first = first_screen(chapters)
    plans = [(chapter.setup.title, plan) for chapter in chapters for plan in chapter.figures.values()]
    plans += [(plan.title, plan) for plan in across]
    return {
        "experiment": {
            name: getattr(experiment, name) for name in ("name", "created", "command", "baseline", "config", "environment")
        },
        "answer": first.sentence,
        "key_figures": [asdict(figure) for figure in first.figures],
        "summaries": [_summary(chapter) for chapter in chapters],
        "answers": [
            {"setup": chapter.setup.title, "verdict": chapter.answer.verdict, "sentences": [*chapter.answer.sentences]}
            for chapter in chapters
        ],
        "recommendations": [row for chapter in chapters for row in _recommendation(chapter)],
        "scores": to_table(chapters).where(),
        "costs": [{"setup": chapter.setup.title, **asdict(cost)} for chapter in chapters for cost in chapter.costs],
        "decisions": to_decisions(chapters).where(),
        "formats": [row for chapter in chapters for row in _formats(chapter)],
        "members": [
            row for chapter in chapters if chapter.members is not None for row in member_rows(chapter.setup, chapter.members)
        ],
        "levels": [
            row for chapter in chapters if chapter.levels is not None for row in levels_rows(chapter.setup, chapter.levels)
        ],
        "level_notes": [note for chapter in chapters if chapter.levels is not None for note in chapter.levels.notes],
        "error_sources": [row for chapter in chapters for row in _sources(chapter)],
        "figures": [
            {"setup": title, "figure": plan.name, "columns": plan.data.columns, "rows": plan.data.rows} for title, plan in plans
        ],
        "unfinished": [
            {"folder": run.folder.name, "label": run.label, "seed": run.seed, "steps": run.steps} for run in experiment.unfinished
        ],
    }
