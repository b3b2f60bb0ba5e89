"""Times as people write and read them: ``90s``, ``5m``, about 4 min. Needs no torch."""

from __future__ import annotations

import math
import re

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.ASCII)


def seconds_of(name: str, value: str | float) -> float:
    """Return the seconds of a setting: a number, or a text such as ``300``, ``90s``, ``5m`` or ``1h``.

    Examples:
        >>> seconds_of("budget", "5m"), seconds_of("budget", "1.5 h"), seconds_of("budget", 300)
        (300.0, 5400.0, 300.0)
        >>> seconds_of("budget", "5 apples")
        Traceback (most recent call last):
        ...
        ValueError: budget='5 apples' is not a time: expected seconds, or a number with s, m or h, such as 300, 90s, 5m or 1h.
    """
    expected = "expected seconds, or a number with s, m or h, such as 300, 90s, 5m or 1h."
    seconds = math.nan
    if isinstance(value, str):
        found = _TIME.fullmatch(value.strip().lower())
        if found and found[2] in _UNITS:
            seconds = float(found[1]) * _UNITS[found[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if math.isnan(seconds):
        raise ValueError(f"{name}={value!r} is not a time: {expected}")
    if not 1 <= seconds < math.inf:
        raise ValueError(f"{name}={value!r} is out of range: {expected[:-1]}, at least one second.")
    return seconds


def in_words(seconds: float) -> str:
    """Return a time in one or two units, rounded to what one wants to know.

    Examples:
        >>> [in_words(seconds) for seconds in (0.2, 44, 95, 300, 3600, 8000)]
        ['1 s', '44 s', '1 min 35 s', '5 min', '1 h', '2 h 13 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    large, small, names = (*divmod(whole, 60), ("min", "s")) if whole < 3600 else (*divmod(round(whole / 60), 60), ("h", "min"))
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


def roughly(seconds: float) -> str:
    """Return an estimate without the digits that it does not have.

    Examples:
        >>> [roughly(seconds) for seconds in (3, 44, 95, 222, 1000, 8000)]
        ['5 s', '45 s', '1 min 40 s', '4 min', '17 min', '2 h 15 min']
    """
    for most, unit in ((60, 5), (120, 10), (3600, 60), (math.inf, 900)):
        if seconds < most:
            return in_words(max(1, round(seconds / unit)) * unit)
    raise AssertionError(seconds)


def as_option(seconds: float) -> str:
    """Return a time as an option takes it, rounded up.

    Examples:
        >>> as_option(43.2), as_option(421), as_option(5000)
        ('44s', '8m', '84m')
    """
    return f"{math.ceil(seconds)}s" if seconds < 120 else f"{math.ceil(seconds / 60)}m"
