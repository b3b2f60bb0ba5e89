"""Controls for the settings of a loss: sliders for numbers and menus for choices, read from the signature of its class.

A setting without effect on the loss of a single token (a weight of other places, a seed) has no control.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from typing_extensions import Unpack

from numerate.losses import NumericLoss
from numerate.playground.digit import digits
from numerate.plotting import certain_costs

Value = float | str
# Minimum, maximum and step by setting; others range from a tenth of their default to four times it.
RANGES: dict[str, tuple[float, float, float]] = {
    "sigma": (0.1, 10, 0.1),
    "alpha": (0, 2, 0.01),
    "beta": (0, 3, 0.05),
    "squash": (1.5, 30, 0.5),
    "tau": (0.1, 10, 0.1),
    "eta": (0, 1, 0.01),
    "emd_weight": (0, 3, 0.05),
}
_STEPS = 100


@dataclass(frozen=True)
class Slider:
    """A numeric setting; ``start`` is the slider's position at the default."""

    low: float
    high: float
    step: float
    start: float
    default: str

    def check(self, loss: str, setting: str, value: Value) -> None:
        """Raise if ``value`` is out of range."""
        if isinstance(value, str) or not self.low <= value <= self.high:
            raise ValueError(f"{setting}={value!r} of {loss}: expected a number from {self.low:g} to {self.high:g}.")

    def tried(self) -> tuple[Value, ...]:
        """Return values to try for an effect."""
        return self.low, self.high


@dataclass(frozen=True)
class Menu:
    """A setting with named choices."""

    options: tuple[str, ...]
    default: str

    def check(self, loss: str, setting: str, value: Value) -> None:
        """Raise unless ``value`` is one of the options."""
        if value not in self.options:
            raise ValueError(f"{setting}={value!r} of {loss}: expected one of {', '.join(self.options)}.")

    def tried(self) -> tuple[Value, ...]:
        """Return values to try for an effect."""
        return self.options


Control = Slider | Menu


@lru_cache(maxsize=64)
def controls(cls: type[NumericLoss]) -> dict[str, Control]:
    """Return the controls of a loss's own settings."""
    usual = _cost(cls, {})
    shown: dict[str, Control] = {}
    for name, control in _readable(cls):
        costs = {value: _cost(cls, {name: value}) for value in control.tried()}
        possible = {value: cost for value, cost in costs.items() if cost is not None}
        if any(usual is not None and not torch.equal(cost, usual) for cost in possible.values()):
            shown[name] = control if isinstance(control, Slider) else Menu(tuple(map(str, possible)), control.default)
    return shown


def _readable(cls: type[NumericLoss]) -> Iterator[tuple[str, Control]]:
    """Yield a control for each setting that is a number or a choice by its type hint and not shared by all losses."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    hints = get_type_hints(vars(owner)["__init__"], localns={"Unpack": Unpack})
    for name, default in cls.settings().items():
        if name in NumericLoss.settings() or name not in hints:
            continue
        kinds = get_args(hints[name]) or (hints[name],)
        kinds = (hints[name],) if get_origin(hints[name]) is Literal else kinds
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        if float in kinds:
            yield name, _slider(cls, name, default)
        elif words:
            if NoneType in kinds and default is None:
                words = ["none", *words]
            yield name, Menu(tuple(words), "none" if default is None else str(default))


def _slider(cls: type[NumericLoss], name: str, default: Any) -> Slider:
    number = default if isinstance(default, float | int) and not isinstance(default, bool) else None
    least, most = (number / 10, number * 4) if number else (0.0, 1.0)
    low, high, step = RANGES.get(name, (least, most, (most - least) / _STEPS))
    chosen = number if number is not None else getattr(cls(digits()), name, None)  # a loss may compute its default
    if not isinstance(chosen, float | int):
        return Slider(low, high, step, (low + high) / 2, "default")
    return Slider(low, high, step, min(high, max(low, chosen)), f"{chosen:.3g}")


def arguments(settings: dict[str, Value]) -> dict[str, Any]:
    """Return settings as arguments of a loss."""
    return {name: None if value == "none" else value for name, value in settings.items()}


def _cost(cls: type[NumericLoss], settings: dict[str, Value]) -> Tensor | None:
    """Return the loss of every digit for the target 3; None if the settings are invalid."""
    try:
        loss = cls(digits(), **arguments(settings))
    except (ValueError, TypeError):
        return None
    return certain_costs(loss, 3) if type(loss) is cls else None  # NTL becomes another loss by its kind
