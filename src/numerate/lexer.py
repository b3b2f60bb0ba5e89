"""Which tokens of a label sequence are parts of which number; vectorised, by looking at neighbours.

A number is ``[sign] [currency] digits [. digits] [e [sign] digits]``, or the same without the digits before the point. The rules
are those of ``docs/numbers.md``. Nothing here loops over tokens, waits for a GPU, or has a shape that depends on the data.
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

POWER_DIGITS = 3  # an exponent has so many digits at most: 1e12345 is two numbers
_BEFORE, _AFTER = 15, 30  # where the bits of the neighbours begin


class Tokens(NamedTuple):
    """What is known of each token by itself, ``[B, T]`` each; the first of a row is glued to nothing."""

    digit: Tensor  # whether it is a numeric token
    width: Tensor  # its digits, 0 where it has none
    glued: Tensor  # whether the token before it is here as well, with nothing between
    bits: Tensor  # those of numerate.marks: its own, those of the token before it in the text, those of one glued behind it

    @classmethod
    def of(cls, digit: Tensor, width: Tensor, glued: Tensor, flags: Tensor, flags_before: Tensor) -> Tokens:
        """Tokens with ``flags``, and in ``flags_before`` those of the token before in the text, 0 behind a space or border."""
        flags = flags.long()
        flags_after = after(torch.where(glued, flags, 0))
        return cls(digit, width, glued, flags | (flags_before.long() << _BEFORE) | (flags_after << _AFTER))

    def match(self, here: int = 0, *, before: int = 0, after: int = 0, but: int = 0, not_before: int = 0) -> Tensor:
        """Where all of these bits are set here, before and after, and none of ``but`` here and of ``not_before`` before."""
        wanted = here | (before << _BEFORE) | (after << _AFTER)
        return (self.bits & (wanted | but | (not_before << _BEFORE))) == wanted


class Powers(NamedTuple):
    """Powers of ten: ``e-5`` in ``1e-5``; ``[B, T]`` each."""

    sign: Tensor  # 1 or -1 at their digits, 0 elsewhere
    width: Tensor  # digits of the run that a digit token is part of
    marks: Tensor  # e, and a sign between it and the digits


class Parts(NamedTuple):
    """What each token is to its number, ``[B, T]`` each."""

    number: Tensor  # how many numbers have begun here or before, less one
    number_of: Tensor  # which number a token belongs to, -1 if none
    start: Tensor  # the first digit token of a number
    joined: Tensor  # a digit token that goes on with its number, or with its power of ten
    separator: Tensor | None = None  # a point between digits, or a thousands comma
    point: Tensor | None = None  # a point between digits
    leads: Tensor | None = None  # a first digit token directly behind a point: .5
    negates: Tensor | None = None  # makes the next number negative
    sign: Tensor | None = None  # does so, and is a minus and nothing else
    powers: Powers | None = None


def read_runs(tokens: Tokens) -> Parts:
    """Take every run of digits for an integer."""
    joined = tokens.match(DIGITS, before=DIGITS)
    start = tokens.digit & ~joined
    number = _count(start)
    return Parts(number, torch.where(tokens.digit, number, -1), start, joined)


def read_numbers(tokens: Tokens, *, thousands: bool) -> Parts:
    """Read signs, points, powers of ten and, if asked, thousands commas."""
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

    # A point leads unless it follows what ends a word or a number, or another point: end.5 is 5, and so is ...5.
    leading = match(LEADS, but=POINT) | match(LEADS, not_before=CLOSES | DOTTED)
    leads = glued_digit & before(leading)
    # Read from the left, a point begins a fraction, which a further point or comma ends: 1.2.3.4 is 1.2 and 3.4.
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
    reaches = begins | after(lead & glued)  # the same, over a leading point
    over_currency = after(match(CURRENCY) & glued & reaches) & match(SIGN_LAST)
    negates = match(NEGATES) & (reaches | over_currency) & ~_hyphen(tokens)
    sign = negates & match(MINUS)
    number_of = torch.where(inside, number, torch.where(sign | lead, number + 1, -1))
    return Parts(number, number_of, start, joined, separator, point, leads, negates, sign, powers)


def _hyphen(tokens: Tokens) -> Tensor:
    """A minus that is no sign, for it follows a letter, a digit, a closing bracket or a dash, or one of them and a currency."""
    free = tokens.match(not_before=CLOSES | DASHED)
    through_currency = tokens.glued & before(~free & tokens.match(CURRENCY, but=DOTTED))
    return tokens.match(ASKS) & (~free | through_currency)


def _powers(tokens: Tokens, glued_digit: Tensor, run_on: Tensor, point: Tensor, *, needed: bool) -> Powers | None:
    """Find powers of ten: ``e``, a sign or none, and one to three digits, directly behind digits.

    A further point or ``e`` behind its digits, or an ``e`` before the digits it follows, means something else: 1e5e3 is 1,
    5 and 3. None on a CPU where no ``e`` follows a digit, unless it is ``needed``.
    """
    letter = tokens.match(EXPONENT, before=DIGITS)
    if letter.device.type == "cpu" and not torch.compiler.is_compiling() and not needed and not bool(letter.any()):
        return None
    bare = tokens.match(EXPONENT | CLOSES, before=DIGITS)  # without a sign of its own
    sign = tokens.match(SIGN, before=EXPONENT | CLOSES) & before(bare)
    opens = letter | sign
    starts = glued_digit & before(opens)
    negative = starts & tokens.match(before=DASHED)

    # Runs of digits, counted through the batch; the last slot takes all other tokens.
    run = torch.where(tokens.digit, _count(tokens.digit & ~run_on), tokens.width.numel()).flatten()
    facts = torch.stack([tokens.width, starts.long(), negative.long(), (glued_digit & before(point)).long()], -1).flatten(0, 1)
    width, raised, minus, pointed = facts.new_zeros((facts.shape[0] + 1, 4)).index_add(0, run, facts).unbind(-1)
    goes_on, follows_power = (raised + pointed).roll(-1), raised.roll(1)  # the last slot holds neither
    valid = (raised > 0) & (width <= POWER_DIGITS) & (goes_on == 0) & (follows_power == 0)
    power_sign = torch.where(valid, 1 - 2 * minus, 0)[run].view_as(tokens.width)
    closed = opens & after(power_sign != 0)  # e or its sign, directly before the digits
    return Powers(power_sign, width[run].view_as(tokens.width), closed | (bare & after(sign & closed)))


def before(flag: Tensor) -> Tensor:
    """``flag`` of the token before. The last token's goes to the first of the row, so use it where that cannot matter."""
    return flag.roll(1, -1)


def after(flag: Tensor) -> Tensor:
    """``flag`` of the token after. The first token's goes to the last of the row, so use it where that cannot matter."""
    return flag.roll(-1, -1)


def _count(flag: Tensor) -> Tensor:
    """How often ``flag`` was set so far through the batch, less one."""
    return flag.flatten().cumsum(0).view_as(flag) - 1


def _count_since(flag: Tensor, reset: Tensor) -> Tensor:
    """How often ``flag`` was set since ``reset`` was last set."""
    running = flag.cumsum(-1)
    return running - torch.where(reset, running, 0).cummax(-1).values
