"""Numbers of a label sequence, read from its characters by a plain state machine: the ground truth of NumberSpans.

Examples:
    >>> texts = {**{str(d): d for d in range(10)}, ".": 10, "-": 11}
    >>> vocab = NumericVocab.from_texts(texts, vocab_size=12)
    >>> [str(number.value) for number in numbers_reference([11, 1, 2, 10, 5, -100, 7], vocab)]
    ['-25/2', '7']
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from numerate.marks import CLOSERS, CURRENCIES, DASHES
from numerate.numeric_tokens import NumericToken
from numerate.vocab import NumericVocab

_DASH, _CURRENCY = f"[{re.escape(DASHES)}]", f"[{re.escape(CURRENCIES)}]"
_ENDED = rf"[\w\ufffd{re.escape(CLOSERS)}]"  # a letter, a digit or a closing bracket: no number begins after it
_DIGITS = re.compile(r"[0-9]+")
_NO_SIGN = re.compile(rf"(?:{_ENDED}|{_DASH})(?:\\?{_CURRENCY})?\Z")
_NO_LEAD = re.compile(rf"(?:{_ENDED}|\.)\Z")
_PREFIX = re.compile(rf"({_DASH})\\?{_CURRENCY}?\.?\Z")
_POWER = re.compile(rf"[eE]([+{re.escape(DASHES)}]?)([0-9]+)")
_BEHIND_POWER = re.compile(rf"[0-9][eE][+{re.escape(DASHES)}]?\Z")
_ABSENT = "\0"  # a token that is not part of any number, or a border between documents


@dataclass(frozen=True)
class Number:
    """One number of a label sequence; the lists run over its digit tokens from left to right."""

    positions: list[int]
    tokens: list[NumericToken]
    exponents: list[int]  # the place of a token's last digit is 10**exponent
    fraction: list[bool]  # whether the token is after the point
    power: list[bool]  # whether the token is part of a power of ten, where it has the exponent it would have in an integer
    marks: list[int]  # positions of its point, commas, e and the sign after the e
    sign_at: int | None  # position of its minus, if that is a separate token
    negative: bool

    @property
    def leading(self) -> int:
        """Exponent of its first digit."""
        return self.exponents[0] + self.tokens[0].width - 1

    @property
    def last(self) -> int:
        """Exponent of its last digit, without those of a power of ten."""
        return self.exponents[self.power.count(False) - 1]

    def right(self, j: int) -> int:
        """Return how many digits are to the right of the j-th token, within the number or within its power of ten."""
        return self.exponents[j] - (0 if self.power[j] else self.last)

    @property
    def value(self) -> Fraction:
        """Its exact value."""
        parts = zip(self.tokens, self.exponents, self.power, strict=True)
        size = sum((Fraction(t.value) * Fraction(10) ** e for t, e, power in parts if not power), Fraction(0))
        return -size if self.negative else size

    def amount(self, j: int, token: NumericToken) -> float:
        """Return what ``token`` would add in the place of the j-th token, in units of the number's leading place.

        Before the point it counts by its value: 6 in place of 45 is 6. After it, digits line up on the left: 6 in place
        of 678 is 0.6. In a power of ten it adds nothing.
        """
        if self.power[j]:
            return 0.0
        shift = self.tokens[j].width - token.width if self.fraction[j] else 0
        return token.value * 10.0 ** (self.exponents[j] - self.leading + shift)


def numbers_reference(
    labels: Sequence[int],
    vocab: NumericVocab,
    *,
    position_ids: Sequence[int] | None = None,
    numbers: str = "values",
    thousands: bool = False,
    ignore_index: int = -100,
) -> list[Number]:
    """Read the numbers of one label sequence from left to right.

    A number is a run of digits. With ``numbers="values"`` it may have a sign, a point with digits after it (and none before
    it), and a power of ten. With ``thousands``, a comma between one to three digits and exactly three digits joins them.
    """
    tokens, pieces = _pieces(labels, vocab, position_ids, ignore_index)
    text = "".join(pieces)
    token_at = [position for position, piece in enumerate(pieces) for _ in piece]
    results: list[Number] = []
    start = 0
    while start < len(text):
        if not _digits(text, start):
            start += 1
            continue
        numeral = _Numeral(start, _digits(text, start))
        if numbers == "values":
            _read_sign_and_point(numeral, text, thousands)
            _read_power(numeral, text)
        results.append(_number(numeral, text, tokens, pieces, token_at))
        start = numeral.end
    return results


@dataclass
class _Numeral:
    """A number as it is read from the text; positions are those of characters."""

    start: int  # of its first digit
    whole: str  # digits before the point
    part: str = ""  # digits after it
    power: str = ""  # digits of its power of ten
    shift: int = 0  # the power of ten
    negative: bool = False
    sign: int | None = None
    end: int = field(init=False)
    marks: list[int] = field(default_factory=list)  # point, commas, e and the sign after the e

    def __post_init__(self) -> None:
        self.end = self.start + len(self.whole)


def _digits(text: str, start: int) -> str:
    """Return the run of digits that begins at this character."""
    run = _DIGITS.match(text, start)
    return run[0] if run else ""


def _read_sign_and_point(numeral: _Numeral, text: str, thousands: bool) -> None:
    """Read the sign and the leading point before the digits, the groups of thousands and the point after them."""
    before = text[: numeral.start]
    leads = before.endswith(".") and _NO_LEAD.search(before[:-1]) is None
    if sign := _PREFIX.search(before):
        numeral.sign = sign.start()
        numeral.negative = (leads or not before.endswith(".")) and _NO_SIGN.search(before[: sign.start()]) is None
    if leads:
        numeral.part, numeral.whole, numeral.marks = numeral.whole, "", [numeral.start - 1]
        return
    group = numeral.whole
    while (
        thousands and len(group) <= 3 and text[numeral.end : numeral.end + 1] == "," and len(_digits(text, numeral.end + 1)) == 3
    ):
        group = _digits(text, numeral.end + 1)
        numeral.marks.append(numeral.end)
        numeral.whole, numeral.end = numeral.whole + group, numeral.end + 4
    if text[numeral.end : numeral.end + 1] == "." and (part := _digits(text, numeral.end + 1)):
        numeral.marks.append(numeral.end)
        numeral.part, numeral.end = part, numeral.end + 1 + len(part)


def _read_power(numeral: _Numeral, text: str) -> None:
    """Read a power of ten, of three digits at most, after the digits."""
    raised = _POWER.match(text, numeral.end)
    last_run = text[: numeral.end].rstrip("0123456789")
    if not raised or len(raised[2]) > 3 or _BEHIND_POWER.search(last_run) or _goes_on(text[raised.end() :]):
        return
    numeral.power, numeral.shift = raised[2], -int(raised[2]) if raised[1] and raised[1] != "+" else int(raised[2])
    numeral.marks += range(numeral.end, raised.start(2))
    numeral.end = raised.end()


def _number(numeral: _Numeral, text: str, tokens: dict[int, NumericToken], pieces: list[str], token_at: list[int]) -> Number:
    """Return the number of a numeral, by the tokens that spell it."""
    whole, part, power = len(numeral.whole), len(numeral.part), len(numeral.power)
    places = [*range(whole - 1, -part - 1, -1), *range(power - 1, -1, -1)]
    digits = [k for k in range(numeral.start, numeral.end) if text[k].isdigit() and k not in numeral.marks]
    ends = [j for j, k in enumerate(digits) if token_at[k] != token_at[min(k + 1, len(text) - 1)]]
    ends = sorted({*ends, len(digits) - 1})  # the last digit of each token
    in_power = [j >= whole + part for j in ends]
    positions = [token_at[digits[j]] for j in ends]
    sign_at = token_at[numeral.sign] if numeral.negative and numeral.sign is not None else None
    return Number(
        positions=positions,
        tokens=[tokens[position] for position in positions],
        exponents=[places[j] + (0 if raised else numeral.shift) for j, raised in zip(ends, in_power, strict=True)],
        fraction=[whole <= j < whole + part for j in ends],
        power=in_power,
        marks=sorted({token_at[k] for k in numeral.marks if pieces[token_at[k]].strip(" \0") in _MARKS}),
        sign_at=sign_at if sign_at is not None and pieces[sign_at].strip(" \0") in DASHES else None,
        negative=numeral.negative,
    )


_MARKS = frozenset([".", ",", "+", *DASHES, *"eE", *(letter + sign for letter in "eE" for sign in f"+{DASHES}")])


def _goes_on(text: str) -> bool:
    """Return whether the text after the digits of an apparent power of ten shows that it is not one."""
    return re.match(r"\.[0-9]", text) is not None or _POWER.match(text) is not None


def _pieces(
    labels: Sequence[int], vocab: NumericVocab, position_ids: Sequence[int] | None, ignore_index: int
) -> tuple[dict[int, NumericToken], list[str]]:
    """Return the numeric tokens by position, and the text of every token: ``x`` for one that ends in a letter or bracket."""
    by_id = {token.token_id: token for token in vocab.tokens}
    marks = dict(vocab.marks)
    closing = set(vocab.closing_ids)
    tokens: dict[int, NumericToken] = {}
    pieces: list[str] = []
    for position, label in enumerate(labels):
        if label != ignore_index and label in by_id:
            tokens[position] = by_id[label]
            width, text = tokens[position].width, tokens[position].text
            piece = f"{int(tokens[position].value):0{width}d}" if vocab.composes else "0"
            piece = f" {piece}" if text.startswith(" ") or not vocab.composes else piece
        elif label != ignore_index and label in marks:
            piece = re.sub(r"[0-9]", "x", marks[label])
        else:
            piece = "x" if label != ignore_index and label in closing else _ABSENT
        pieces.append(_ABSENT + piece if position_ids is not None and position_ids[position] == 0 else piece)
    return tokens, pieces
