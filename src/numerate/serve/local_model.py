"""A model of this machine to serve: asked, decided and calibrated as ``numerate predict`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from numerate.checks import check_number
from numerate.lab.models.questions import ANY_PROMPT
from numerate.lab.prediction.answering import find_source, parse_rule
from numerate.lab.prediction.calibration import AUTO, WIDTH, calibrated_answering, find_known
from numerate.lab.prediction.predict import intervals_note
from numerate.serve.server import Answer, AskedQuestion, ServedModel


def local_model(
    model: str | Path,
    *,
    name: str | None = None,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    decide: str = "median",
    interval: float = 0.9,
    calibrate: str | Path = AUTO,
    width: int | None = WIDTH,
    batch_size: int = 64,
    say: Callable[[str], object] = lambda text: None,
) -> ServedModel:
    """Load a model, or a run of ``numerate train``; code that comes with a model is never run.

    The arguments are those of :func:`numerate.lab.predict`, and the ``name`` by which requests call the model: by default, the
    last part of ``model``.
    """
    parse_rule(decide)
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    source = find_source(str(model), target, prompt, format)
    if not source.trained and target is None and prompt is None:
        source = find_source(str(model), None, ANY_PROMPT, format)
    known = find_known(source, str(calibrate), level, width)
    say(intervals_note(known))
    answering, fit = calibrated_answering(source, decide, level, known, width, batch_size)
    calibration = None if known is None or fit is None else {"table": known.content, **fit.to_dict()}

    def answer(questions: list[AskedQuestion]) -> Sequence[Answer]:
        return answering.predict([one.row for one in questions], [one.seed for one in questions])

    name = name or Path(model).resolve().name
    return ServedModel(name, source.questions, decide, level, answer, calibration=calibration, weights=source.weights)
