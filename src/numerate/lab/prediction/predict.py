"""Predict a number for each row of a table with any model: the number, an interval, and the probability that it covers.

Each row becomes a question (:mod:`numerate.lab.models.questions`). The model's distribution over numbers gives the answer that
fits a rule, and an interval (:mod:`numerate.lab.prediction.answering`). Rows are written with both, in batches
(:mod:`numerate.lab.prediction.prediction_file`). A row that fails is written without a number, with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean, median
from typing import Any

from numerate.answers.metrics import METRICS
from numerate.answers.overall import rmse
from numerate.checks import check_number
from numerate.decode.server import CompletionServer
from numerate.distribution import NumberDistribution
from numerate.lab.data.readers import data_file
from numerate.lab.data.regression import Row
from numerate.lab.data.row_reader import check_encoding, delimiter, file_type
from numerate.lab.data.tables import table_file
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.files.progress import Progress
from numerate.lab.models.questions import Table, content_of
from numerate.lab.prediction.answering import Members, Source, find_source, parse_rule
from numerate.lab.prediction.calibration import AUTO, WIDTH, KeptFit, KnownRows, asked_row, calibrated_answering, find_known
from numerate.lab.prediction.prediction_file import DISAGREEMENT, NAMES, UNUSUAL, Ends, Prediction, PredictionFile
from numerate.lab.prediction.served_source import find_served

OWN_INTERVALS = "intervals are the model's own, often too narrow: see --calibrate"
NOT_FLAGGED = "how far the members usually disagree is not known: without calibration rows, no row is flagged as unusual"
FIRST_WRITES = "greedy answers are those of the first member: texts cannot be pooled"


@dataclass(frozen=True)
class Explained:
    """A row of the table with its question, the model's distribution, the prediction, and the true answer if it is known."""

    row: int
    prompt: str
    distribution: NumberDistribution | None
    prediction: Prediction
    truth: Fraction | None
    members: Members = ()  # the distributions of the members of a pool; None for one that finds no number


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
        unusual: the number of rows that are flagged, because the members of a pool disagree more than on 95 % of the rows with
            which the intervals are calibrated; None for one model, and without such rows.
    """

    path: Path
    rows: int
    new_rows: int
    seconds: float
    problems: Counter[str]
    figures: Mapping[str, float]
    explained: Sequence[Explained]
    notes: Sequence[str]
    unusual: int | None = None


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
    url: str | None = None,
    chat: bool = False,
    tokenizer: str | None = None,
    api_key_variable: str | None = None,
    timeout: float = 300.0,
    concurrency: int = 8,
    progress: Progress = lambda *_: None,
    say: Callable[[str], object] = lambda text: None,
) -> Predicted:
    """Predict a number for each row of a table, and write the rows with it.

    The same call continues after an interruption. A file with other settings or other rows is left as it is.

    Args:
        model: the folder of a run of ``numerate train``, or a model as in :func:`numerate.lab.models.loading.load_model`; with
            ``url``, its name at the server.
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
            Rows on which the members of a pool disagree more than on 95 % of these rows are flagged.
            ``"auto"``: held-out rows if there are enough.
        width: beam width: prefixes of a number that are kept per row and step; None for all.
        batch_size: rows at a time.
        limit: predict only the first ``limit`` rows.
        explain: return the distributions of the first ``explain`` rows.
        skip_bad: leave out rows of the file that cannot be read.
        encoding: of a text file, and of the one to calibrate on unless that is in UTF-8. None: UTF-8, UTF-16 or cp1252,
            whichever it is.
        sheet: of an Excel workbook. None: the only one.
        overwrite: replace a file that is there.
        trust_remote_code: run Python code that comes with the model.
        url: a server that has the model, such as ``http://localhost:8000/v1``: ``numerate serve``, which returns what this
            function finds in its place, or any other with OpenAI's API, see :func:`numerate.decode.served_distribution`.
        chat: ask the server in chats.
        tokenizer: of the model of a server, for an exact search: a folder or a Hub id.
        api_key_variable: environment variable with the key for the server.
        timeout: seconds for a response of the server.
        concurrency: requests to the server at a time.
        progress: called with a stage, the number of rows done, and of all.
        say: called with messages about the work.
    """
    parse_rule(decide)
    check_encoding(encoding)
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    if url is None:
        source = find_source(str(model), target, prompt, format, trust_remote_code=trust_remote_code)
    else:
        reach: dict[str, Any] = {"timeout": timeout, "concurrency": concurrency, "api_key_variable": api_key_variable}
        server = CompletionServer(url, str(model), chat=chat, **reach)
        source = find_served(server, target, prompt, format, tokenizer=tokenizer)
    out = Path(out)
    data = Path(data_file(data, out.parent))
    if data.resolve() == out.resolve():
        raise ValueError(f"out={str(out)!r} is the file with the data: expected another name.")
    known = find_known(source, str(calibrate), level, width, skip_bad=skip_bad, encoding=encoding)
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
    further = {"encoding": encoding, "sheet": sheet, "url": url, "chat": chat or None, "tokenizer": tokenizer}
    settings |= {name: value for name, value in further.items() if value is not None}
    table = Table.scan(data, source.questions, limit=limit, skip_bad=skip_bad, encoding=encoding, sheet=sheet)
    flags = source.members > 1 and known is not None and not (isinstance(known, KeptFit) and known.fit.usual is None)
    added = (*NAMES[:-1], *[DISAGREEMENT] * (source.members > 1), *[UNUSUAL] * flags, NAMES[-1])
    file = PredictionFile(out, table.columns, delimiter(data, encoding) if file_type(data) == ".csv" else ",", added)
    file.claim(settings, overwrite=overwrite)
    first, begin, explained, cut = file.rows, time.perf_counter(), list[Explained](), set[int]()
    if first:
        state = "already finished" if first >= table.rows else "continuing"
        say(f"{state}: {min(first, table.rows):,} of {table.rows:,} rows are done")
    if first < table.rows or explain:
        say(intervals_note(known))
        if source.members > 1:
            say(f"the {source.members} members of the model are pooled")
            for message in [FIRST_WRITES] * (decide == GREEDY) + [NOT_FLAGGED] * (not flags):
                say(message)
        answering, _ = calibrated_answering(source, decide, level, known, width, batch_size, progress)

        def answered(values: Sequence[Mapping[str, Any]], start: int) -> list[Prediction]:
            rows = [asked_row(source.questions, row, data.parent) for row in values]
            cut.update(index for index, row in enumerate(rows, start) if isinstance(row, Row) and answering.is_cut(row))
            results = answering.predict(rows)
            for index, (row, ((found, members, _), prediction)) in enumerate(zip(rows, results, strict=True), start):
                if index < explain:
                    text, distribution = (
                        row.prompt if isinstance(row, Row) else "",
                        found if isinstance(found, NumberDistribution) else None,
                    )
                    explained.append(Explained(index, text, distribution, prediction, table.answer(index), members))
            if not start and len(results) > 1 and all(isinstance(one.found, str) for one, _ in results):
                raise ValueError(f"none of the first {len(results)} rows has a prediction: {results[0][0].found}")
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
        unusual=file.unusual if flags else None,
    )


def intervals_note(known: KnownRows | KeptFit | None) -> str:
    """Return what intervals are calibrated on."""
    return OWN_INTERVALS if known is None else f"intervals are calibrated on {known.count:,} {known.name}"


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
        spread, squared = rmse([METRICS["absolute_error"](truth, center) for truth, _ in answered]), rmse(errors)
        relative = median(METRICS["relative_error"](truth, value) for truth, value in answered)
        figures = {"mae": fmean(errors), "rmse": squared, "median_relative_error": relative}
        figures |= {"r2": 1 - (squared / spread) * (squared / spread)} if spread else {}
    return figures | {"coverage": fmean(covers), "rows": len(pairs), "missing": len(pairs) - len(answered)} if pairs else {}
