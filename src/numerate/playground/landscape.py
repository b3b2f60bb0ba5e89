"""The tab "loss curves": the loss of each answer, by its value, with the settings of each loss as controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from numerate.checks import check_choice
from numerate.losses import LOSSES, NumericLoss
from numerate.playground.request import TabRequest
from numerate.playground.settings import Value, arguments, controls
from numerate.plotting import certain_costs
from numerate.vocab import NumericVocab

SIZES: dict[str, int] = {"0-9": 10, "0-99": 100, "0-999": 1000}  # numbers with their own token
_MOST_ANSWERS = 100
_MOST_CELLS = 25
_DROP = 1e-6  # the smallest decrease that counts, relative to the maximum

Name = Annotated[str, Field(max_length=40)]


class LandscapeRequest(TabRequest):
    """The losses to plot with their settings, the target, and the width of the predictions."""

    tokens: Literal["0-9", "0-99", "0-999"] = "0-9"
    target: Annotated[int, Field(ge=0, le=999)] = 0
    width: Annotated[float, Field(ge=0, le=300)] = 0.0
    scale: Literal["value", "share"] = "value"
    losses: Annotated[list[Name], Field(max_length=64)] = ["smmd", "emd", "ntil"]  # noqa: RUF012 - pydantic copies defaults
    settings: Annotated[dict[Name, Annotated[dict[Name, float | Name], Field(max_length=20)]], Field(max_length=64)] = {}  # noqa: RUF012


def compute(request: LandscapeRequest) -> dict[str, object]:
    """Return the loss of each answer, where it decreases with distance, and the grams."""
    size = SIZES[request.tokens]
    if request.target >= size:
        raise ValueError(f"target={request.target} has no token: expected an integer from 0 to {size - 1}.")
    answers = torch.arange(0, size, max(1, size // _MOST_ANSWERS))
    answers = torch.cat([answers, torch.tensor([request.target])]).unique()
    series: list[dict[str, object]] = []
    drawn: dict[str, list[float]] = {}
    grams: list[dict[str, object]] = []
    for name in dict.fromkeys(request.losses):
        check_choice("losses", name, tuple(LOSSES))
        settings = request.settings.get(name, {})
        for setting, value in settings.items():
            check_choice(f"settings of {name}", setting, tuple(controls(LOSSES[name])))  # type: ignore[arg-type]
            controls(LOSSES[name])[setting].check(name, setting, value)  # type: ignore[arg-type]
        try:
            loss = _built(LOSSES[name], request.tokens, tuple(settings.items()))  # type: ignore[arg-type]
            costs = certain_costs(loss, *_positions(loss, request.target, answers), width=request.width)
        except (ValueError, TypeError) as error:
            series.append({"name": name, "reason": str(error)})
            continue
        drawn[name] = costs.tolist()
        shown = costs / costs.max().clamp_min(1e-300) if request.scale == "share" else costs
        series.append({"name": name, "values": shown.tolist()})
        if isinstance(gram := getattr(loss, "gram", None), Tensor):
            grams.append({"name": name, **_cells(gram)})
    return {
        "x": answers.tolist(),
        "series": series,
        "sentences": shapes(request.target, answers.tolist(), drawn),
        "grams": grams,
        "names": list(LOSSES),
        "controls": {
            name: {setting: asdict(control) for setting, control in controls(LOSSES[name]).items()}  # type: ignore[arg-type]
            for name in request.losses
        },
    }


def shapes(target: int, answers: Sequence[int], costs: Mapping[str, Sequence[float]]) -> list[str]:
    """Return sentences: where a farther answer on the same side costs less than a closer one, and which losses are monotone."""
    sentences: list[str] = []
    rising: list[str] = []
    flat: list[str] = []
    for name, values in costs.items():
        at = dict(zip(answers, values, strict=True))
        least = _DROP * max(map(abs, values))
        fall, near, far = _largest_fall(target, at)
        if fall > least:
            sentences.append(
                f"{name} is not monotone: for target {target}, the answer {far} costs {at[far]:.4g}, "
                f"less than {near} ({at[near]:.4g})."
            )
        else:
            steps = [(at[answers[i + 1]] - at[answers[i]]) * (1 if answers[i] >= target else -1) for i in range(len(answers) - 1)]
            (rising if min(steps) > least else flat).append(name)
    if rising:
        sentences.append(f"Strictly increasing with the distance from {target}: {', '.join(rising)}.")
    if flat:
        sentences.append(f"Never decreasing with the distance from {target}, but flat in places: {', '.join(flat)}.")
    return sentences


def _largest_fall(target: int, at: Mapping[int, float]) -> tuple[float, int, int]:
    """Return the largest decrease from a closer to a farther answer, and both answers."""
    worst = (0.0, target, target)
    for side in (sorted(answer for answer in at if answer >= target), sorted((a for a in at if a <= target), reverse=True)):
        peak = target
        for answer in side:
            peak = answer if at[answer] >= at[peak] else peak
            worst = max(worst, (at[peak] - at[answer], peak, answer))
    return worst


@cache
def _vocab(tokens: str) -> NumericVocab:
    size = SIZES[tokens]
    return NumericVocab.from_texts({str(number): number for number in range(size)}, vocab_size=size)


@lru_cache(maxsize=32)
def _built(cls: type[NumericLoss], tokens: str, settings: tuple[tuple[str, Value], ...]) -> NumericLoss:
    return cls(_vocab(tokens), **arguments(dict(settings)))


def _positions(loss: NumericLoss, target: int, answers: Tensor) -> tuple[int, Tensor]:
    """Return the indices of target and answers in the vocabulary of the loss, which may omit tokens."""
    values = loss.vocab.values
    if len(values) < int(answers[-1]) + 1:
        raise ValueError(f"with these settings it reads only {len(values)} of the tokens: choose tokens 0-9.")
    index = torch.searchsorted(values, answers.double())
    return int(torch.searchsorted(values, float(target))), index


def _cells(gram: Tensor) -> dict[str, object]:
    """Return a gram ``[N, N]`` as rows and labels, subsampled for display."""
    kept = torch.arange(0, gram.shape[0], -(-gram.shape[0] // _MOST_CELLS))
    return {"labels": [str(number) for number in kept.tolist()], "values": gram[kept][:, kept].tolist()}
