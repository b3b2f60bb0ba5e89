"""The lexer: assigns the tokens of a label sequence to numbers by comparing neighbours.

A number is ``[sign] [currency] digits [. digits] [e [sign] digits]``; the digits before the point are optional. See
``docs/numbers.md`` for the rules. No function loops over tokens, syncs with a GPU, or has data-dependent shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from numerate.marks import (
    ASKS,
    CLOSES,
    COMMA,
    CURRENCY,
    DASHED,
    DIGITS,
    DOTTED,
    EXPONENT,
    LEADS,
    MINUS,
    NEGATES,
    POINT,
    SIGN,
    SIGN_LAST,
)

POWER_DIGITS = 3  # the most digits of an exponent: 1e12345 is two numbers
_BEFORE, _AFTER = 15, 30  # offsets of the neighbours' bits


class Tokens(NamedTuple):
    """Facts about each token and its neighbours, ``[B, T]`` each; the first token of a row is not glued."""

    digit: Tensor  # whether it is a numeric token
    width: Tensor  # number of digits
    glued: Tensor  # whether it follows the previous token here without a gap
    bits: Tensor  # bits of numerate.marks: its own, those of the token before it in the text, those of the token glued after it

    @classmethod
    def of(cls, digit: Tensor, width: Tensor, glued: Tensor, flags: Tensor, flags_before: Tensor) -> Tokens:
        """Combine the ``flags`` of each token with its neighbours'; ``flags_before`` is 0 after a space or a border."""
        flags = flags.long()
        flags_after = after(torch.where(glued, flags, 0))
        return cls(digit, width, glued, flags | (flags_before.long() << _BEFORE) | (flags_after << _AFTER))

    def match(self, bits: int = 0, *, before: int = 0, after: int = 0, without: int = 0, not_before: int = 0) -> Tensor:
        """Return a mask of tokens with all ``bits``, ``before`` and ``after`` set, and none of ``without`` and ``not_before``."""
        required = bits | (before << _BEFORE) | (after << _AFTER)
        return (self.bits & (required | without | (not_before << _BEFORE))) == required


class Powers(NamedTuple):
    """Powers of ten: ``e-5`` in ``1e-5``; ``[B, T]`` each."""

    sign: Tensor  # 1 or -1 at their digits, 0 elsewhere
    width: Tensor  # digits in the run of the token
    marks: Tensor  # mask of the e, and of a sign between it and the digits


class NumberParts(NamedTuple):
    """The role of each token in its number, ``[B, T]`` each: two indices, then masks."""

    number: Tensor  # index of the last number that starts at or before the token
    number_of: Tensor  # index of the number that the token belongs to, -1 if none
    start: Tensor  # first digit token of a number
    joined: Tensor  # digit token that continues its number, or its power of ten
    separator: Tensor | None = None  # point between digits, or thousands comma
    point: Tensor | None = None  # point between digits
    leads: Tensor | None = None  # first digit token directly after a point: .5
    negates: Tensor | None = None  # makes the next number negative
    sign: Tensor | None = None  # a token that negates and is only a minus
    powers: Powers | None = None


def read_runs(tokens: Tokens) -> NumberParts:
    """Read every run of digits as an integer."""
    joined = tokens.match(DIGITS, before=DIGITS)
    start = tokens.digit & ~joined
    number = _count(start)
    return NumberParts(number, torch.where(tokens.digit, number, -1), start, joined)


def read_numbers(tokens: Tokens, *, thousands: bool) -> NumberParts:
    """Read signs, points, powers of ten and, on request, thousands commas."""
    digit, glued, match = tokens.digit, tokens.glued, tokens.match
    glued_digit = glued & digit
    run_on = match(DIGITS, before=DIGITS)
    separator = point = match(POINT, before=DIGITS, after=DIGITS)
    powers = _powers(tokens, glued_digit, run_on, point, needed=thousands)
    reset = comma = None
    if thousands:  # one to three digits before it, exactly three after it
        assert powers is not None
        short = digit & (powers.sign == 0) & (powers.width <= 3)
        three = glued_digit & (powers.width == 3)
        reset = comma = match(COMMA, before=DIGITS, after=DIGITS) & before(short) & after(three)
        separator = point | comma

    # A point leads a number unless it follows a letter, a digit, a closing mark or a point: end.5 and ...5 are 5.
    leading = match(LEADS, without=POINT) | match(LEADS, not_before=CLOSES | DOTTED)
    leads = glued_digit & before(leading)
    # From left to right, a point starts a fraction, and the next point or comma ends it: 1.2.3.4 is 1.2 and 3.4.
    broken = ~(separator | leads | run_on | (glued_digit & before(separator)))
    points_so_far = _count_since(point | leads, broken if reset is None else broken | reset)
    in_fraction = before((points_so_far & 1) == 1)
    separator, point = separator & ~in_fraction, point & ~in_fraction

    joined = run_on | (glued_digit & before(separator))
    start = digit & ~joined
    inside = digit | separator
    if powers is not None:
        start, inside = start & (powers.sign == 0), inside | powers.marks
    number = _count(start)
    begins = after(start & glued)  # the token before a number
    lead = leading & match(POINT) & begins
    reaches = begins | after(lead & glued)  # the token before a number or before its leading point
    over_currency = after(match(CURRENCY) & glued & reaches) & match(SIGN_LAST)
    negates = match(NEGATES) & (reaches | over_currency) & ~_hyphen(tokens)
    sign = negates & match(MINUS)
    number_of = torch.where(inside, number, torch.where(sign | lead, number + 1, -1))
    return NumberParts(number, number_of, start, joined, separator, point, leads, negates, sign, powers)


def _hyphen(tokens: Tokens) -> Tensor:
    """Find minuses that are not signs: after a letter, digit, closing mark or dash, or one of these and a currency."""
    free = tokens.match(not_before=CLOSES | DASHED)
    through_currency = tokens.glued & before(~free & tokens.match(CURRENCY, without=DOTTED))
    return tokens.match(ASKS) & (~free | through_currency)


def _powers(tokens: Tokens, glued_digit: Tensor, run_on: Tensor, point: Tensor, *, needed: bool) -> Powers | None:
    """Find powers of ten: an ``e`` directly after digits, an optional sign, and one to three digits.

    Not a power if followed by a point or another ``e``, or if the mantissa follows an ``e`` (1e5e3 is 1, 5 and 3).
    Return None on a CPU if no ``e`` follows a digit, unless ``needed``.
    """
    letter = tokens.match(EXPONENT, before=DIGITS)
    if letter.device.type == "cpu" and not torch.compiler.is_compiling() and not needed and not bool(letter.any()):
        return None
    bare = tokens.match(EXPONENT | CLOSES, before=DIGITS)  # without a sign in the same token
    sign = tokens.match(SIGN, before=EXPONENT | CLOSES) & before(bare)
    opens = letter | sign
    starts = glued_digit & before(opens)
    negative = starts & tokens.match(before=DASHED)

    # Runs of digits, numbered through the batch; the last slot collects all other tokens.
    run = torch.where(tokens.digit, _count(tokens.digit & ~run_on), tokens.width.numel()).flatten()
    facts = torch.stack([tokens.width, starts.long(), negative.long(), (glued_digit & before(point)).long()], -1).flatten(0, 1)
    width, raised, minus, pointed = facts.new_zeros((facts.shape[0] + 1, 4)).index_add(0, run, facts).unbind(-1)
    continues, follows_power = (raised + pointed).roll(-1), raised.roll(1)  # the last slot holds neither
    valid = (raised > 0) & (width <= POWER_DIGITS) & (continues == 0) & (follows_power == 0)
    power_sign = torch.where(valid, 1 - 2 * minus, 0)[run].view_as(tokens.width)
    closed = opens & after(power_sign != 0)  # e or its sign, directly before the digits
    return Powers(power_sign, width[run].view_as(tokens.width), closed | (bare & after(sign & closed)))


def before(x: Tensor) -> Tensor:
    """Return ``x`` of the previous token. Rows wrap around: use only where their first token does not matter."""
    return x.roll(1, -1)


def after(x: Tensor) -> Tensor:
    """Return ``x`` of the next token. Rows wrap around: use only where their last token does not matter."""
    return x.roll(-1, -1)


def _count(mask: Tensor) -> Tensor:
    """Count the tokens in ``mask`` up to each token of the batch, minus one."""
    return mask.flatten().cumsum(0).view_as(mask) - 1


def _count_since(mask: Tensor, reset: Tensor) -> Tensor:
    """Count the tokens in ``mask`` since the last token in ``reset``."""
    running = mask.cumsum(-1)
    return running - torch.where(reset, running, 0).cummax(-1).values
