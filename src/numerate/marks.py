"""Flags for how the text of a token affects the numbers around it: signs, points, currencies, exponents.

Tokenizers merge these characters in many ways (``-``, `` -``, ``(-``, ``-$``, ``$.``, ``e``, ``e-``). The flags describe how a
token ends, and whether its meaning depends on the previous token: ``-`` is a sign in ``(-5``, but not in ``3-5``.
"""

from __future__ import annotations

import re

DASHES = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"  # hyphens, figure and en dash, minus sign, small and full-width hyphen
CURRENCIES = "$\u20ac\u00a3\u00a5"  # dollar, euro, pound, yen
CLOSERS = ")]}%\u2030\u00b0\u2032\u2033"  # brackets, per cent, per mille, degree, minute, second

# Tokens that can be part of a number, or affect the number directly after them.
POINT = 1  # "." or " ."
COMMA = 2  # ","
MINUS = 4  # only a minus sign: "-", " -", or another dash
NEGATES = 8  # ends in a minus sign, or in one and a currency or point: "-", "(-", "-$", "-."
ASKS = 16  # whether it is a sign depends on the previous token: "-", "-$", "$-", but not "(-"
CURRENCY = 32  # a currency, or a currency and a point: "$", " $", "$."
LEADS = 64  # ends in a point that can start a number: ".", "(.", "-.", "$."
EXPONENT = 128  # "e", "E", or one of them with a sign: "e-", "E+"
SIGN = 256  # only a plus or a minus: "+", "-"
SIGN_LAST = 8192  # negates, and a currency may follow: "-", "(-", but not "-$" and "-."
# Properties of the token before one of those.
CLOSES = 512  # ends in a letter, a digit, a closing bracket, a percent or degree sign
DASHED = 1024  # ends in a dash, or in a currency after a dash or after what CLOSES: "--", "x-", "-$", "US$"
DOTTED = 2048  # ends in a point
SPACED = 4096  # starts with a space, so it is separate from the previous token
DIGITS = 16384  # one of the numeric tokens
# Not of a text, but of a vocabulary whose format is spaced.
GAP = 32768  # only a space

PARTS = POINT | COMMA | MINUS | NEGATES | CURRENCY | LEADS | EXPONENT | SIGN | DIGITS | GAP

_LONG = 64  # characters; patterns match fewer
_ENDS = frozenset(f"{DASHES}{CURRENCIES}.,+\\")
_CURRENCY = re.compile(rf" ?\\?[{re.escape(CURRENCIES)}]\.?")
_LAST_CURRENCY = re.compile(rf"\\?[{re.escape(CURRENCIES)}]\Z")
_EXPONENT = re.compile(rf"[eE][+{re.escape(DASHES)}]?")
_SIGNED = re.compile(rf"(.*)[{re.escape(DASHES)}]\\?[{re.escape(CURRENCIES)}]?\.?", re.DOTALL)


def closes(character: str) -> bool:
    """Return whether ``character`` ends a word, a number or a bracket, so that a minus after it is not a sign."""
    return character.isalnum() or character in CLOSERS or character in "_\ufffd"  # \ufffd: part of a letter split over tokens


def flags_of(text: str) -> int:
    """Return the flags of a token's text; a leading space is written as a space.

    Examples:
        >>> flags_of("x-") == DASHED, flags_of("(-") == NEGATES | SIGN_LAST | DASHED, flags_of("7") == CLOSES
        (True, True, True)
    """
    if not text:
        return 0
    if len(text) > _LONG:  # only start and end matter
        text = text[0] + text[1 - _LONG :]
    last = text[-1]
    flags = SPACED if text[0] == " " else 0
    flags |= CLOSES if closes(last) else DASHED if _stops_sign(text) else DOTTED if last == "." else 0
    if _EXPONENT.fullmatch(text):
        return flags | EXPONENT
    if last not in _ENDS:
        return flags
    if text.removeprefix(" ") == ".":
        flags |= POINT | LEADS
    elif last == "." and not closes(text[-2]) and text[-2] != ".":
        flags |= LEADS
    if text == ",":
        flags |= COMMA
    if text == "+":
        flags |= SIGN
    if _CURRENCY.fullmatch(text):
        flags |= CURRENCY
    if match := _SIGNED.fullmatch(text):
        before = _LAST_CURRENCY.sub("", match[1])  # for "$-" the token before the currency decides
        if not _stops_sign(match[1]):
            flags |= NEGATES | (0 if before else ASKS) | (SIGN_LAST if last in f"{DASHES}\\" else 0)
        if text.removeprefix(" ") == last:
            flags |= MINUS | SIGN
    return flags


def _stops_sign(text: str) -> bool:
    """Return whether a minus after this text is a hyphen, a range or a dash: after ``x``, ``5``, ``)``, ``-`` and ``5$``."""
    before = _LAST_CURRENCY.sub("", text)
    return before != "" and (closes(before[-1]) or before[-1] in DASHES)
