"""The tab "one digit": value and gradient of every loss on two distributions over ten digits."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor

from numerate.losses import LOSSES, NumericLoss
from numerate.objective import NumericObjective
from numerate.playground.request import Share, TabRequest
from numerate.vocab import NumericVocab

LEAST = 1e-6  # the probability of a bar at 0
_SAME = 1e-9  # relative difference below which two values are equal
_CROSS_ENTROPY = "Only the probability of the target; where the rest lies makes no difference."

Bars = Annotated[list[Share], Field(min_length=10, max_length=10)]


class DigitRequest(TabRequest):
    """Two distributions over the digits, and the target.

    The first view is the figure of the papers: equal probability on the target, the rest near it or far from it.
    """

    target: Annotated[int, Field(ge=0, le=9)] = 5
    left: Bars = [0, 0, 0, 0, 0.45, 0.4, 0.15, 0, 0, 0]  # noqa: RUF012 - pydantic copies defaults
    right: Bars = [0.45, 0, 0, 0, 0, 0.4, 0, 0, 0, 0.15]  # noqa: RUF012

    @field_validator("left", "right")
    @classmethod
    def _some_mass(cls, bars: list[float]) -> list[float]:
        if sum(bars) <= 0:
            raise ValueError("all bars are 0; expected at least one above 0")
        return bars


def compute(request: DigitRequest) -> dict[str, object]:
    """Return value and gradient of every loss for both distributions."""
    p = torch.stack([probabilities(request.left), probabilities(request.right)])  # [2, 10]
    rows: list[dict[str, object]] = []
    for name, cls in {"cross-entropy": None, **LOSSES}.items():
        row: dict[str, object] = {"name": name, "sees": _CROSS_ENTROPY if cls is None else sees(cls)}
        try:
            values, gradients = _values_and_gradients(cls, p, request.target)
            row["left"], row["right"] = (
                {"value": value, "gradient": gradient} for value, gradient in zip(values, gradients, strict=True)
            )
        except (ValueError, TypeError) as error:  # a loss that needs more than ten digits
            row["reason"] = str(error)
        rows.append(row)
    left, right = p.tolist()
    return {"target": request.target, "left": left, "right": right, "losses": rows, "sentence": _difference(rows)}


def probabilities(bars: list[float]) -> Tensor:
    """Return bars as a distribution ``[10]`` with at least :data:`LEAST` on every digit."""
    p = torch.tensor(bars, dtype=torch.float64)
    p = (p / p.sum()).clamp_min(LEAST)
    return p / p.sum()


def sees(cls: type[NumericLoss]) -> str:
    """Return what a loss depends on, as a sentence: its attribute ``sees``, or the first line of its docstring."""
    own: str = vars(cls).get("sees", "")  # not inherited
    return own or (cls.__doc__ or cls.__name__).strip().splitlines()[0].partition(";")[0].rstrip(".") + "."


@cache
def digits() -> NumericVocab:
    """Return the vocabulary of the ten digits."""
    return NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)


@lru_cache(maxsize=64)
def _built(cls: type[NumericLoss]) -> NumericLoss:
    return cls(digits())


def _values_and_gradients(cls: type[NumericLoss] | None, p: Tensor, target: int) -> tuple[list[float], list[list[float]]]:
    """Return the loss of each row of ``p [2, 10]`` and its gradient with respect to the logits; ``cls=None`` is cross-entropy."""
    logits = p.log()[:, None].requires_grad_()  # [2, 1, 10]
    labels = torch.full((2, 1), target)
    if cls is None:
        objective = NumericObjective(None)
        costs = torch.stack([objective(logits[side], labels[side]).loss for side in (0, 1)])
    else:
        costs = _built(cls)(logits, labels, reduction="none")[:, 0]  # type: ignore[arg-type]  # classes are hashable
    (gradient,) = torch.autograd.grad(costs.sum(), logits)
    return costs.tolist(), gradient[:, 0].tolist()


def _difference(rows: list[dict[str, object]]) -> str:
    """Return a sentence with the losses that are equal for both distributions."""
    values = {str(row["name"]): (row["left"]["value"], row["right"]["value"]) for row in rows if "reason" not in row}  # type: ignore[index]
    same = [name for name, (left, right) in values.items() if abs(left - right) <= _SAME * max(abs(left), abs(right))]
    if not same:
        return "Every loss distinguishes A and B."
    if len(same) == len(values):
        return "No loss distinguishes A and B."
    others = len(values) - len(same)
    return f"A and B have the same {' and '.join(same)}; the other {others} losses distinguish them."
