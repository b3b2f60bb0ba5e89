"""Error messages for settings and files: the name, its value, what was expected, and the way out. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from pickle import UnpicklingError
from typing import Any, get_args


def choices(literal: Any) -> tuple[str, ...]:
    """Return the values that a ``Literal[...]`` type allows."""
    return tuple(get_args(literal))


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line; its class name if it has no message."""
    if isinstance(error, UnpicklingError):  # torch's own message advises to load the file all the same
        return "a pickle that is damaged or holds more than tensors, such as code, which is not run"
    return " ".join(str(error).split()) or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'sigma'?"`` for a near miss, else an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise unless ``value``, which may have any type, is one of ``allowed``."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in allowed):
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known: expected one of {listed}.{nearest(value, map(str, allowed))}")


def check_settings(owner: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise for the first of ``settings`` that ``owner`` does not know."""
    known = list(known)
    for name, value in settings.items():
        if name not in known:
            expected = f"expected one of {', '.join(known) or 'none'}.{nearest(name, known)}"
            raise TypeError(f"{name}={value!r} is not a setting of {owner}: {expected}")


def check_integer(name: str, value: Any, expected: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number of any type (also numpy's) as an int; raise unless ``least <= value <= most``.

    ``expected`` describes it: "a whole number >= 1".
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name}={value!r} is out of range: expected {expected}.")
    return number


def check_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None, hint: str = ""
) -> float:
    """Return ``value`` as a float; raise unless it is finite, ``> above`` or ``>= least``, and ``<= most``.

    ``hint`` is a sentence with the way out.
    """
    hint = f" {hint}" if hint else ""
    bound = f"> {above:g}" if above is not None else f">= {least:g}" if least is not None else "finite"
    bound += "" if most is None else f" and <= {most:g}"
    try:
        number = float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor of several numbers
        raise TypeError(f"{name}={value!r} is not a number: expected a number {bound}.{hint}") from None
    ok = abs(number) != float("inf") and number == number
    ok = ok and (above is None or number > above) and (least is None or number >= least) and (most is None or number <= most)
    if not ok:
        raise ValueError(f"{name}={value!r} is out of range: expected a finite number {bound}.{hint}")
    return number


def public_dir(module: Mapping[str, Any]) -> Callable[[], list[str]]:
    """Return the ``__dir__`` of a module with these globals: the names in its ``__all__``, and not what it imports."""
    return lambda: sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})
