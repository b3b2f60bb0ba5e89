"""Calibrate predictions on rows with known answers: intervals, and how far the members of a pool usually disagree."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.answers.extract import EXTRACTORS
from numerate.calibration import Conformal
from numerate.checks import one_line
from numerate.distribution import NumberDistribution
from numerate.lab.data.regression import Regression, Row
from numerate.lab.data.row_reader import BadData, is_utf8
from numerate.lab.data.tables import table_file
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import write_json
from numerate.lab.models.questions import Questions, Table, content_of
from numerate.lab.prediction.answering import Answering, Deciding, Source, find_source
from numerate.lab.prediction.served_source import ServedSource

if TYPE_CHECKING:
    from typing_extensions import Self

AUTO, HELD_OUT, NONE = "auto", "held-out", "none"
"""What intervals are calibrated on: the test rows of the training table if it is there, these rows, or nothing."""

CALIBRATION = "calibration.json"
"""File beside the weights with intervals that were fitted on those rows, so that the table is not needed."""

WIDTH = 16  # of the search
USUAL = 0.95  # the share of the rows on which members disagree less than where they disagree unusually

TEST_ROWS = "test rows of the training table"
_KEPT_LEVEL = 0.9  # a fit serves all levels for which there are enough rows
MOST_HELD_OUT = 200  # rows: the fit then covers between 86 and 94 % where 90 % is asked for


@dataclass(frozen=True)
class Fit:
    """What was fitted on rows with known answers."""

    intervals: Conformal  # with guaranteed coverage
    # The disagreement of a pool's members that is not exceeded on 95 % of the rows; None for one model.
    usual: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON-compatible values; the inverse is :meth:`from_dict`."""
        return self.intervals.to_dict() | ({} if self.usual is None else {"disagreement": self.usual})

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`."""
        return cls(Conformal.from_dict(kept), float(kept["disagreement"]) if "disagreement" in kept else None)


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
    """What was fitted on rows of the training table, and a hash of its file."""

    fit: Fit
    content: str
    name: str = TEST_ROWS

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.fit.intervals.rows


def find_known(
    source: Source,
    calibrate: str,
    level: float,
    width: int | None = WIDTH,
    *,
    skip_bad: bool = False,
    encoding: str | None = None,  # of the rows to predict, and of a file with known answers that is not in UTF-8
) -> KnownRows | KeptFit | None:
    """Return what to calibrate with; None if there is nothing and ``calibrate`` does not insist."""
    if calibrate not in (AUTO, HELD_OUT, NONE):
        path = Path(calibrate)
        return _known_rows(source, path, skip_bad=skip_bad, encoding=None if is_utf8(path) else encoding)
    if calibrate != NONE and (kept := _kept_fit(source, level, width)) is not None:
        return kept
    try:
        return None if calibrate == NONE else _held_out_rows(source, level)
    except ValueError:
        if calibrate == HELD_OUT:
            raise
        return None


def _known_rows(source: Source, path: Path, **how: Any) -> KnownRows:
    content, table = content_of(path), Table.scan(path, source.questions, **how)
    pairs = []
    for start, values in table.batches(0, table.rows, 1000):
        for index, row in enumerate(values, start):
            question, truth = asked_row(source.questions, row, path.parent), table.answer(index)
            if isinstance(question, Row) and truth is not None:
                pairs.append((question, truth))
    if not pairs:
        raise ValueError(f"calibrate={str(path)!r} has no row with a known {source.questions.answer!r}: expected some.")
    return KnownRows([row for row, _ in pairs], [truth for _, truth in pairs], f"rows of {path}", content)


def _held_out_rows(source: Source, level: float) -> KnownRows:
    """Return rows of the training table that were kept for the test; raise if the table is not there, or they are too few."""
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
    """Return the fit beside the weights, or that of a server; None if it is not there, of another search, or of too few rows."""
    if isinstance(source, ServedSource):
        return _served_fit(source, level)
    file = source.folder / CALIBRATION
    if not file.is_file() or source.questions.template is not None:
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        found = KeptFit(Fit.from_dict(kept), kept["table"])
        same = (kept["target"], kept["width"]) == (source.questions.task.target, width)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say how intervals were calibrated ({error}): delete it, or restore it.") from None
    return found if same and found.count >= _needed(level) else None


def _served_fit(source: ServedSource, level: float) -> KeptFit | None:
    """Return the fit of a server; None if it has none, or of too few rows."""
    kept = source.calibration
    if kept is None:
        return None
    try:
        found = KeptFit(Fit.from_dict(kept), str(kept["table"]), "rows at the server")
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(
            f"{source.server.base_url} does not say how intervals were calibrated ({one_line(error)}): expected a server of this "
            "version of numerate; --calibrate none does not need it."
        ) from None
    return found if found.count >= _needed(level) else None


def _needed(level: float) -> int:
    """Return the fewest rows with which a level can be guaranteed."""
    return math.ceil(level / (1 - level) - 1e-9)


def calibrated(answering: Deciding, known: KnownRows, level: float, batch_size: int, progress: Progress) -> Fit:
    """Return conformal intervals of a level, from rows whose answers are known; none below 0 if no answer is.

    For a pool, also how far its members usually disagree.
    """
    from numerate.calibration import conformal

    pairs: list[tuple[NumberDistribution, Fraction]] = []
    disagreements: list[float] = []
    total = len(known.rows)
    for start in range(0, total, batch_size):
        progress("calibrate", start, total, {})
        found = answering.search_members(known.rows[start : start + batch_size])
        for (one, _, away), truth in zip(found, known.truths[start : start + batch_size], strict=True):
            if isinstance(one, NumberDistribution):
                pairs.append((one, truth))
                disagreements += [] if away is None else [away]
    progress("calibrate", total, total, {})
    lowest = 0 if min(known.truths) >= 0 else None
    intervals = conformal([one for one, _ in pairs], [truth for _, truth in pairs], level, lowest=lowest)
    return Fit(intervals, usual(disagreements) if disagreements else None)


def calibrated_answering(
    source: Source,
    decide: str,
    level: float,
    known: KnownRows | KeptFit | None,
    width: int | None = WIDTH,
    batch_size: int = 64,
    progress: Progress = lambda *_: None,
) -> tuple[Deciding, Fit | None]:
    """Return the model of a source with intervals that are calibrated on what is known, and the fit; its own without."""
    answering = source.answering(decide, lambda found: found.interval(level), width, batch_size)
    if known is None:
        return answering, None
    fit = known.fit if isinstance(known, KeptFit) else calibrated(answering, known, level, batch_size, progress)
    answering.interval, answering.usual = lambda found: fit.intervals.interval(found, level), fit.usual
    return answering, fit


def usual(disagreements: Sequence[float]) -> float:
    """Return the smallest of these that is not exceeded by more than 5 % of them.

    Examples:
        >>> usual([*range(1, 201)]), usual([3.0, 1.0, 2.0])
        (190, 3.0)
    """
    return sorted(disagreements)[math.ceil(USUAL * len(disagreements) - 1e-9) - 1]


def asked_row(questions: Questions, values: Mapping[str, Any], folder: Path) -> Row | str:
    """Return the question about a row, or why there is none."""
    try:
        return questions.ask(values, folder)
    except BadData as bad:
        return one_line(bad)
