"""Place values: from the parts of each number to the exponent of each token's last digit.

With C the running count of digits, a token's exponent is C at the end of the integer part (a point counts no digit) minus
C at the token: one formula for both sides of the point. A power of ten shifts it: the place of 5 in ``1.5e-3`` is 10⁻⁴.

In a reversed number, where the digits after the point come first, it is C before the token minus C at the point, or at the start
of a number without one: the place of 5 in ``5.21`` is 10⁻¹.
"""

from __future__ import annotations

import torch
from torch import Tensor

from numerate.spans.lexer import NumberParts, Tokens, after
from numerate.spans.segments import extreme_by, sum_by

EXACT_DIGITS = 15  # decimal numbers of this many digits round-trip through float64
MOST_PADDING = 15  # zeros before a number that are not counted: a wrong one costs 10^15 leading places, which must fit float32
_POWERS = torch.tensor([float(f"1e{k}") for k in range(-330, 309)], dtype=torch.float64)


def power_of_ten(exponent: Tensor) -> Tensor:
    """Return ``10**exponent`` in float64, at most 1e308, correctly rounded (``torch.pow`` is not)."""
    return _POWERS.to(exponent.device)[(exponent + 330).clamp(0, _POWERS.shape[0] - 1)]


def top_digit(values: Tensor) -> Tensor:
    """Return the exponent of the first nonzero digit of integers, 0 for 0."""
    return values.abs().clamp_min(1).log10().floor().long()


def find_places(
    parts: NumberParts,
    tokens: Tokens,
    token_values: Tensor,
    *,
    last_first: bool = False,
    fewest: tuple[int, int] | None = None,
) -> dict[str, Tensor]:
    """Compute the fields of :class:`~numerate.NumberSpans` for the place of each token and the sign of its number.

    ``last_first`` and ``fewest`` are those of :class:`~numerate.spans.readable.Rules`.
    """
    digit, number_of, powers = tokens.digit, parts.number_of, parts.powers
    none = torch.zeros_like(digit)
    is_power = none if powers is None else powers.sign != 0
    has_place = digit if powers is None else digit & ~is_power
    width = tokens.width if powers is None else torch.where(has_place, tokens.width, 0)
    running = width.cumsum(-1)
    continues = parts.joined if parts.separator is None else parts.joined | parts.separator
    # Facts about a number. One token of the number writes each; several write its power of ten, which is a sum.
    facts = {
        "end": torch.where(has_place & ~after(continues), running, 0),
        "start": torch.where(parts.start, running - width, 0),
    }
    owner = number_of
    if parts.point is not None and parts.leads is not None and parts.negates is not None:
        owner = torch.where(parts.negates, parts.number + 1, number_of)
        # The running count before the point, plus one: 0 means no point.
        facts["point"] = torch.where(parts.point | parts.leads, running + torch.where(parts.point, 1, 1 - width), 0)
        facts["negative"] = parts.negates.long()
    if powers is not None:
        power_width = torch.where(is_power, tokens.width, 0)
        power_right = after(power_width) + after(after(power_width))  # a power of ten has at most three digits
        facts["power"] = powers.sign * token_values.where(is_power, 0.0).long() * 10**power_right
    facts = _share(facts, owner, number_of)

    member = number_of >= 0
    unit = facts["start" if last_first else "end"]  # running count at the units
    is_fraction = negative = none
    if "point" in facts:
        has_point = facts["point"] > 0
        unit = torch.where(has_point, facts["point"] - 1, unit)
        is_fraction = has_place & has_point & (running <= unit if last_first else running > unit)
        negative = member & (facts["negative"] > 0)
    if last_first:
        exponent, leading, last = running - width - unit, facts["end"] - unit - 1, facts["start"] - unit
    else:
        exponent, leading, last = unit - running, unit - facts["start"] - 1, unit - facts["end"]
    if fewest is not None:
        digits = torch.where(has_place, token_values, 0.0)
        leading, last = _without_padding(number_of, exponent, digits, leading, last, fewest)
    if powers is not None:
        exponent = torch.where(is_power, power_right, exponent + facts["power"])
        leading = torch.where(is_power, powers.width - 1, leading + facts["power"])
        last = torch.where(is_power, 0, last + facts["power"])
    return {
        "is_sign": none if parts.sign is None else parts.sign,
        "is_fraction": is_fraction,
        "is_power": is_power,
        "exponent": torch.where(digit, exponent, 0),
        "leading": torch.where(member, leading, 0),
        "last": torch.where(member, last, 0),
        "negative": negative,
    }


def _share(facts: dict[str, Tensor], owner: Tensor, number_of: Tensor) -> dict[str, Tensor]:
    """Sum each fact over the tokens of its ``owner`` number, and return the sums at every token of that number."""
    stacked = torch.stack(list(facts.values()), -1).flatten(0, 1)  # [B·T, facts]
    sums = sum_by(owner.flatten(), stacked, owner.numel())[number_of.flatten().clamp_min(0)]
    columns = sums.view(*number_of.shape, len(facts)).unbind(-1)
    return {name: columns[i] for i, name in enumerate(facts)}


def _without_padding(
    number_of: Tensor, exponent: Tensor, values: Tensor, leading: Tensor, last: Tensor, fewest: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return ``leading`` and ``last`` of numbers without zeros at either end, but with the ``fewest`` digits and decimals."""
    group = torch.where(values != 0, number_of, -1).flatten()
    powers = torch.full((EXACT_DIGITS - 1,), 10.0, dtype=torch.float64, device=exponent.device).cumprod(0)  # exact
    zeros = (torch.remainder(values[..., None], powers) == 0).sum(-1)  # at the end of a token
    first = extreme_by(group, (exponent + top_digit(values)).flatten(), "amax")
    final = extreme_by(group, (exponent + zeros).flatten(), "amin")
    owner, (digits, decimals) = number_of.clamp_min(0), fewest
    top = torch.maximum(first[owner].clamp_min(digits - 1), leading - MOST_PADDING)
    return torch.minimum(leading, top), torch.maximum(last, final[owner].clamp_max(-decimals))
