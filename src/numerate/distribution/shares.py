"""Shares of a model's probability mass: covered by a distribution, sampled, and elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

from numerate.checks import check_number
from numerate.distribution.exact import TIE

SHARES = ("covered", "drawn", "more_digits", "no_number", "not_searched")

_SLACK = 1e-6  # masses from float32 may add up to slightly more than 1


def check_shares(
    covered: float, drawn: float, more_digits: float, no_number: float, not_searched: float | None
) -> dict[str, float]:
    """Return the shares by name; raise unless they add up to at most 1. ``drawn`` is a part of ``covered``."""
    parts = {"covered": check_number("covered", covered, above=0, most=1 + _SLACK)}
    for name, part in (("more_digits", more_digits), ("no_number", no_number), ("not_searched", not_searched)):
        if part is not None:
            parts[name] = check_number(name, part, least=0, most=1)
    total = math.fsum(parts.values())
    if total > 1 + _SLACK:
        listed = ", ".join(f"{name}={part:g}" for name, part in parts.items() if part)
        raise ValueError(f"{listed} add up to {total:g}: expected at most 1. Pass shares of the model's total mass.")
    rest = 1 - total
    parts.setdefault("not_searched", rest if rest > TIE else 0.0)
    parts["covered"] = min(parts["covered"], 1.0)
    sampled = check_number("drawn", drawn, least=0, most=1 + _SLACK)
    if sampled > parts["covered"] + _SLACK:
        raise ValueError(f"drawn={sampled:g} is more than covered={parts['covered']:g}: expected a part of the covered mass.")
    return parts | {"drawn": min(sampled, parts["covered"])}


def share_lines(shares: Mapping[str, float]) -> list[str]:
    """Return one line with the nonzero shares; none if everything is covered and nothing sampled."""
    if shares["covered"] == 1 and shares["drawn"] == 0:
        return []
    texts = {name: f"{name.replace('_', ' ')} {100 * share:.1f} %" for name, share in shares.items() if share > 0}
    drawn = texts.pop("drawn", "")
    if drawn:
        texts["covered"] += f" ({drawn})"
    return [", ".join(texts.values())]
