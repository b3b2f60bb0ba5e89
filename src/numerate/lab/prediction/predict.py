"""Predict a number for each row of a table with any model: the number, an interval, and the probability that it covers.

Each row becomes a question (:mod:`numerate.lab.models.questions`). The model's distribution over numbers gives the answer that
fits a rule, and an interval (:mod:`numerate.lab.prediction.answering`). Rows are written with both, in batches
(:mod:`numerate.lab.prediction.prediction_file`). A row that fails is written without a number, with the reason.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean, median
from typing import Any

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.calibration import Conformal
from numerate.checks import check_number, one_line
from numerate.distribution import NumberDistribution
from numerate.lab.data.readers import data_file
from numerate.lab.data.regression import Regression, Row
from numerate.lab.data.row_reader import BadData, check_encoding, delimiter, file_type
from numerate.lab.data.tables import table_file
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import write_json
from numerate.lab.models.questions import Questions, Table, content_of
from numerate.lab.prediction.answering import Answering, Source, find_source, parse_rule
from numerate.lab.prediction.prediction_file import Ends, Prediction, PredictionFile

AUTO, HELD_OUT, NONE = "auto", "held-out", "none"
"""What intervals are calibrated on: the test rows of the training table if they are at hand, these rows, or nothing."""

CALIBRATION = "calibration.json"
"""File beside the weights with intervals that were fitted on those rows, so that the table is not needed."""

WIDTH = 16  # of the search

TEST_ROWS = "test rows of the training table"
OWN_INTERVALS = "intervals are the model's own, often too narrow: see --calibrate"
_KEPT_LEVEL = 0.9  # a fit serves all levels for which there are enough rows
MOST_HELD_OUT = 200  # rows: the fit then covers between 86 and 94 % where 90 % is asked for


@dataclass(frozen=True)
class Explained:
    """A row of the table with its question, the model's distribution, the prediction, and the true answer if it is known."""

    row: int
    prompt: str
    distribution: NumberDistribution | None
    prediction: Prediction
    truth: Fraction | None


@dataclass(frozen=True)
class Predicted:
    """The result of a call.

    Attributes:
        path: of the predictions.
        rows: in the file.
        new_rows: of this call.
        seconds: of this call, without loading the model and calibrating.
        problems: the number of rows with each problem.
        figures: how good the predictions are, see :func:`score`; empty if no answer is known.
        explained: the first rows.
        notes: about rows and answers that could not be read.
    """

    path: Path
    rows: int
    new_rows: int
    seconds: float
    problems: Counter[str]
    figures: Mapping[str, float]
    explained: Sequence[Explained]
    notes: Sequence[str]


def predict(
    model: str | Path,
    data: Any,
    out: str | Path = "predictions.csv",
    *,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    decide: str = "median",
    interval: float = 0.9,
    calibrate: str | Path = AUTO,
    width: int | None = WIDTH,
    batch_size: int = 64,
    limit: int | None = None,
    explain: int = 0,
    skip_bad: bool = False,
    encoding: str | None = None,
    sheet: str | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
    progress: Progress = lambda *_: None,
    say: Callable[[str], object] = lambda text: None,
) -> Predicted:
    """Predict a number for each row of a table, and write the rows with it.

    The same call continues after an interruption. A file with other settings or other rows is left as it is.

    Args:
        model: the folder of a run of ``numerate train``, or a model as in :func:`numerate.lab.models.loading.load_model`.
        data: a file with a row per number to predict (:mod:`numerate.lab.data.readers` has the formats); or rows from Python,
            which are kept in a file beside ``out``: a pandas frame, or a list of dicts.
        out: the file to write: CSV, TSV or JSONL.
        target: the column to ask for; it may be missing from the file. None: the target of the run.
        prompt: the question instead, with columns in braces: ``"A flat of {area} m2 costs"``.
        format: how a model that was not trained here writes numbers, such as ``"spaced"`` or ``"padded:5.2"``. None: plain, or
            that of the training.
        decide: the rule; see :func:`numerate.lab.prediction.answering.parse_rule`.
        interval: the level of the interval.
        calibrate: rows with known answers, for calibrated intervals
            (:func:`numerate.calibration.conformal`): a file, or ``"held-out"`` for the rows of the training table that were kept
            for the test, on which ``numerate train`` has calibrated the model. ``"none"``: intervals as the model sees them.
            ``"auto"``: held-out rows if there are enough.
        width: beam width: prefixes of a number that are kept per row and step; None for all.
        batch_size: rows at a time.
        limit: predict only the first ``limit`` rows.
        explain: return the distributions of the first ``explain`` rows.
        skip_bad: leave out rows of the file that cannot be read.
        encoding: of a text file. None: UTF-8, UTF-16 or cp1252, whichever it is.
        sheet: of an Excel workbook. None: the only one.
        overwrite: replace a file that is there.
        trust_remote_code: run Python code that comes with the model.
        progress: called with a stage, the number of rows done, and of all.
        say: called with messages about the work.
    """
    parse_rule(decide)
    check_encoding(encoding)
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    source = find_source(str(model), target, prompt, format, trust_remote_code=trust_remote_code)
    out = Path(out)
    data = Path(data_file(data, out.parent))
    if data.resolve() == out.resolve():
        raise ValueError(f"out={str(out)!r} is the file with the data: expected another name.")
    known = find_known(source, str(calibrate), level, width, skip_bad=skip_bad)
    settings = {
        "model": source.name,
        "weights": source.weights,
        "data": content_of(data),
        "target": source.questions.task.target,
        "prompt": source.questions.template,
        **({} if source.questions.format.plain else {"format": source.questions.format.settings}),
        "decide": decide,
        "interval": level,
        "calibrate": None if known is None else known.content,
        "width": width,
        "skip_bad": skip_bad,
    }
    settings |= {name: value for name, value in (("encoding", encoding), ("sheet", sheet)) if value is not None}
    table = Table.scan(data, source.questions, limit=limit, skip_bad=skip_bad, encoding=encoding, sheet=sheet)
    file = PredictionFile(out, table.columns, delimiter(data, encoding) if file_type(data) == ".csv" else ",")
    file.claim(settings, overwrite=overwrite)
    first, begin, explained, cut = file.rows, time.perf_counter(), list[Explained](), set[int]()
    if first:
        state = "already finished" if first >= table.rows else "continuing"
        say(f"{state}: {min(first, table.rows):,} of {table.rows:,} rows are done")
    if first < table.rows or explain:
        say(OWN_INTERVALS if known is None else f"intervals are calibrated on {known.count:,} {known.name}")
        answering = Answering(source, decide, lambda found: found.interval(level), width)
        if known is not None:
            fit = known.fit if isinstance(known, KeptFit) else calibrated(answering, known, level, batch_size, progress)
            answering.interval = lambda found: fit.interval(found, level)

        def answered(values: Sequence[Mapping[str, Any]], start: int) -> list[Prediction]:
            rows = [_asked(source.questions, row, data.parent) for row in values]
            cut.update(index for index, row in enumerate(rows, start) if isinstance(row, Row) and answering.is_cut(row))
            results = answering.predict(rows, start)
            for index, (row, (found, prediction)) in enumerate(zip(rows, results, strict=True), start):
                if index < explain:
                    text, distribution = (
                        row.prompt if isinstance(row, Row) else "",
                        found if isinstance(found, NumberDistribution) else None,
                    )
                    explained.append(Explained(index, text, distribution, prediction, table.answer(index)))
            if not start and len(results) > 1 and all(isinstance(found, str) for found, _ in results):
                raise ValueError(f"none of the first {len(results)} rows has a prediction: {results[0][0]}")
            return [prediction for _, prediction in results]

        begin = time.perf_counter()
        for start, values in table.batches(0, min(first, explain), batch_size):  # written by an earlier call
            answered(values, start)
        progress("predict", first, table.rows, {})
        for start, values in table.batches(first, table.rows, batch_size):
            file.append(values, answered(values, start))
            progress("predict", file.rows, table.rows, {})
    figures = score(table.answers, file.read()) if table.answers else {}
    file.finish(figures)
    return Predicted(
        path=file.path,
        rows=file.rows,
        new_rows=file.rows - first,
        seconds=time.perf_counter() - begin,
        problems=file.problems,
        figures=figures,
        explained=explained,
        notes=[*table.notes, *_cut_notes(cut, source), *(_training_notes(source, settings["data"]) if figures else ())],
    )


def _cut_notes(cut: Collection[int], source: Source) -> list[str]:
    """Return a message on rows of this call whose long texts were cut, if there are any."""
    where = "as in training" if source.trained else "to fit into the model's context"
    rows = "1 row" if len(cut) == 1 else f"{len(cut):,} rows"
    return [f"Long texts are cut in {rows}, such as row {min(cut) + 1:,}, {where}."] if cut else []


def _training_notes(source: Source, content: object) -> list[str]:
    """Return a warning if the rows are those of the training."""
    known = None if source.config is None or source.config.data is None else table_file(Path(source.config.data))
    if known is None or not known.is_file() or content_of(known) != content:
        return []
    return ["Most of these rows are those that the model was trained on: errors on new rows are larger."]


def _asked(questions: Questions, values: Mapping[str, Any], folder: Path) -> Row | str:
    """Return the question about a row, or why there is none."""
    try:
        return questions.ask(values, folder)
    except BadData as bad:
        return one_line(bad)


# Calibrated intervals


@dataclass(frozen=True)
class KnownRows:
    """Questions with known answers, what they are called, and a hash of the file that they come from."""

    rows: Sequence[Row]
    truths: Sequence[Fraction]
    name: str
    content: str

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.rows)


@dataclass(frozen=True)
class KeptFit:
    """Intervals that were fitted on rows of the training table, and a hash of its file."""

    fit: Conformal
    content: str
    name: str = TEST_ROWS

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.fit.rows


def find_known(
    source: Source, calibrate: str, level: float, width: int | None = WIDTH, *, skip_bad: bool = False
) -> KnownRows | KeptFit | None:
    """Return what to calibrate with; None if there is nothing and ``calibrate`` does not insist."""
    if calibrate not in (AUTO, HELD_OUT, NONE):
        return _known_rows(source, Path(calibrate), skip_bad=skip_bad)
    if calibrate != NONE and (kept := _kept_fit(source, level, width)) is not None:
        return kept
    try:
        return None if calibrate == NONE else _held_out_rows(source, level)
    except ValueError:
        if calibrate == HELD_OUT:
            raise
        return None


def _known_rows(source: Source, path: Path, *, skip_bad: bool) -> KnownRows:
    content, table = content_of(path), Table.scan(path, source.questions, skip_bad=skip_bad)
    pairs = []
    for start, values in table.batches(0, table.rows, 1000):
        for index, row in enumerate(values, start):
            question, truth = _asked(source.questions, row, path.parent), table.answer(index)
            if isinstance(question, Row) and truth is not None:
                pairs.append((question, truth))
    if not pairs:
        raise ValueError(f"calibrate={str(path)!r} has no row with a known {source.questions.answer!r}: expected some.")
    return KnownRows([row for row, _ in pairs], [truth for _, truth in pairs], f"rows of {path}", content)


def _held_out_rows(source: Source, level: float) -> KnownRows:
    """Return rows of the training table that were kept for the test; raise if they are not at hand, or too few."""
    config = source.config
    way = "name a file with known answers instead, such as --calibrate validation.csv."
    if config is None or config.task != "regression" or config.data is None:
        raise ValueError(f"calibrate={HELD_OUT!r} needs the run of a table, and model={source.name!r} is none: {way}")
    path = table_file(Path(config.data))
    if not path.is_file():
        raise ValueError(
            f"calibrate={HELD_OUT!r} needs the table of the training, and {path} is not here: call it from the folder of the "
            f"training, or {way}"
        )
    task = Regression.from_files(path, skip_bad=config.skip_bad, **config.task_settings)
    count, needed = task.count("interpolate") or 0, _needed(level)
    if count < needed:
        raise ValueError(
            f"calibrate={HELD_OUT!r} has {count} rows, and interval={level:g} needs {needed}: lower the level, or {way}"
        )
    rows: Sequence[Row] = task.examples("interpolate", min(count, MOST_HELD_OUT)).specs
    truths = [EXTRACTORS["last_number"](row.answer) for row in rows]
    return KnownRows(rows, truths, TEST_ROWS, content_of(path))


def keep_calibration(run: Path, *, trust_remote_code: bool = False, progress: Progress = lambda *_: None) -> None:
    """Calibrate the model of a run on test rows of its table, and keep the fit beside the weights; not if they are too few.

    A fit that is there is kept: a run that was killed after its result has none.
    """
    source = find_source(str(run), trust_remote_code=trust_remote_code)
    if (source.folder / CALIBRATION).is_file():
        return
    try:
        known = _held_out_rows(source, _KEPT_LEVEL)
    except ValueError:  # too few rows: `predict` says that intervals are the model's own
        return
    answering = Answering(source, "median", lambda found: found.interval(_KEPT_LEVEL), WIDTH)
    try:
        fit = calibrated(answering, known, _KEPT_LEVEL, 64, progress)
    except ValueError:  # too few of them have a distribution
        return
    kept = {"target": source.questions.task.target, "table": known.content, "width": WIDTH, **fit.to_dict()}
    write_json(source.folder / CALIBRATION, kept)


def _kept_fit(source: Source, level: float, width: int | None) -> KeptFit | None:
    """Return the fit beside the weights; None if there is none, or it is of other questions, another search or too few rows."""
    file = source.folder / CALIBRATION
    if not file.is_file() or source.questions.template is not None:
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        found = KeptFit(Conformal.from_dict(kept), kept["table"])
        same = (kept["target"], kept["width"]) == (source.questions.task.target, width)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say how intervals were calibrated ({error}): delete it, or restore it.") from None
    return found if same and found.count >= _needed(level) else None


def _needed(level: float) -> int:
    """Return the fewest rows with which a level can be guaranteed."""
    return math.ceil(level / (1 - level) - 1e-9)


def calibrated(answering: Answering, known: KnownRows, level: float, batch_size: int, progress: Progress) -> Conformal:
    """Return conformal intervals of a level, from rows whose answers are known; none below 0 if no answer is."""
    from numerate.calibration import conformal

    pairs: list[tuple[NumberDistribution, Fraction]] = []
    total = len(known.rows)
    for start in range(0, total, batch_size):
        progress("calibrate", start, total, {})
        found = answering.search(known.rows[start : start + batch_size], start)
        truths = known.truths[start : start + batch_size]
        pairs += [(one, truth) for one, truth in zip(found, truths, strict=True) if isinstance(one, NumberDistribution)]
    progress("calibrate", total, total, {})
    lowest = 0 if min(known.truths) >= 0 else None
    return conformal([one for one, _ in pairs], [truth for _, truth in pairs], level, lowest=lowest)


# How good the predictions are


def score(truths: Iterable[Fraction | None], predictions: Iterable[Ends]) -> dict[str, float]:
    """Return the metrics of predictions where the answer is known.

        mae, rmse                 mean absolute error, and root of the mean squared error
        median_relative_error     median of |x - y| / |y|
        r2                        1 - sum of (x - y)^2 / sum of (y - mean of y)^2
        coverage                  share of truths within the interval; a row without an interval counts as missed
        rows, missing             rows with a known truth, and those of them without a prediction, which are in coverage alone

    Examples:
        >>> from decimal import Decimal
        >>> first, second = (Decimal(11), Decimal(9), Decimal(12)), (Decimal(20), Decimal(21), Decimal(30))
        >>> figures = score([Fraction(10), Fraction(20)], [first, second])
        >>> figures["mae"], figures["r2"], figures["coverage"], figures["rows"]
        (0.5, 0.98, 0.5, 2)
    """
    pairs = [(truth, ends) for truth, ends in zip(truths, predictions, strict=False) if truth is not None]
    covers = [low is not None and high is not None and low <= truth <= high for truth, (_, low, high) in pairs]
    answered = [(truth, value) for truth, (value, _, _) in pairs if value is not None]
    figures: dict[str, float] = {}
    if answered:
        errors = [METRICS["absolute_error"](truth, value) for truth, value in answered]
        center = sum(truth for truth, _ in answered) / len(answered)
        spread = math.fsum(METRICS["absolute_error"](truth, center) ** 2 for truth, _ in answered)
        squares = math.fsum(error**2 for error in errors)
        relative = median(METRICS["relative_error"](truth, value) for truth, value in answered)
        figures = {"mae": fmean(errors), "rmse": math.sqrt(squares / len(errors)), "median_relative_error": relative}
        figures |= {"r2": 1 - squares / spread} if spread else {}
    return figures | {"coverage": fmean(covers), "rows": len(pairs), "missing": len(pairs) - len(answered)} if pairs else {}
