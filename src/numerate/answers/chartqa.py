r"""Relaxed accuracy (ChartQA): a number may be off by 5 %, any other text must be equal.

With x the number of the answer and y the gold number:

    numerate   |x - y| <= |y| / 20, exactly; for y = 0 only 0 is correct. A number may have a sign, thousands commas, a
               currency sign, a power of ten, a denominator and a final full stop (``numerals.number``). If only one of the two
               has a percent sign, the sign may mean a hundredth or be ignored: 62% is 62 and 0.62. Other texts must be equal,
               ignoring case and space.
    chartqa    |x - y| / |y| <= 0.05 in floating point; "62%" is 0.62 on either side. If either is not a number (1,200 and $5
               are not) or y = 0, the texts must be equal, ignoring case. Code of pix2struct, for the ChartQA paper's rule.
    qwen_vl    the same with answer and gold exchanged: relative to x, and texts are compared if x = 0. Code of Qwen-VL.
    lm_eval    |x - y| / max(|y|, 1e-10) <= 0.05. If a text has a digit, its commas, dollar signs and final punctuation are
               removed; otherwise its quotes are. A percent sign on either side may mean a hundredth or be ignored. A gold of one
               letter is compared with the first character. Code of lm-evaluation-harness, from mistral-evals.

The published rules are reproduced exactly, floating point included, so that scores are comparable: 1.05 is not within 5 % of 1
there, as 1.05 - 1 is 0.05000000000000004. By all rules the years 1990 and 2020 are equal.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from numerate.answers.numerals import number
from numerate.checks import check_choice, choices

ChartRule = Literal["numerate", "chartqa", "qwen_vl", "lm_eval"]


def relaxed_accuracy(gold: str, answer: str, rule: ChartRule = "numerate") -> float:
    """Return 1 if the answer is correct by ``rule``, else 0; see the top of this module for the rules.

    Examples:
        >>> relaxed_accuracy("100", "$105."), relaxed_accuracy("100", "106"), relaxed_accuracy("Kenya", "kenya")
        (1.0, 0.0, 1.0)
        >>> relaxed_accuracy("1,200", "1200"), relaxed_accuracy("1,200", "1200", rule="chartqa")
        (1.0, 0.0)
        >>> relaxed_accuracy("100", "95.2", rule="chartqa"), relaxed_accuracy("100", "95.2", rule="qwen_vl")
        (1.0, 0.0)
    """
    check_choice("rule", rule, choices(ChartRule))
    return float(_RULES[rule](gold, answer))


def _numerate(gold: str, answer: str) -> bool:
    gold_quantity, answer_quantity = _quantity(gold), _quantity(answer)
    if gold_quantity is None or answer_quantity is None:
        return " ".join(gold.split()).casefold() == " ".join(answer.split()).casefold()
    (y, y_percent), (x, x_percent) = gold_quantity, answer_quantity
    pairs = [(y, x)]
    if y_percent and not x_percent:
        pairs.append((y / 100, x))
    if x_percent and not y_percent:
        pairs.append((y, x / 100))
    return any(abs(x - y) * 20 <= abs(y) for y, x in pairs)


def _quantity(text: str) -> tuple[Fraction, bool] | None:
    """Return the number of a text without its percent sign, and whether it had one."""
    text = text.strip().removesuffix(".").rstrip()
    is_percent = text.endswith(("%", "％"))
    value = number(text[:-1] if is_percent else text)
    return None if value is None else (value, is_percent)


def _chartqa(gold: str, answer: str) -> bool:
    x, y = _hundredths(answer), _hundredths(gold)
    if x is not None and y:
        return abs(x - y) / abs(y) <= 0.05
    return answer.lower() == gold.lower()


def _qwen_vl(gold: str, answer: str) -> bool:
    return _chartqa(gold=answer.strip(), answer=gold)


def _hundredths(text: str) -> float | None:
    value = _float(text.rstrip("%"))
    return value / 100 if value is not None and text.endswith("%") else value


def _lm_eval(gold: str, answer: str) -> bool:
    gold, answer = _cleaned(gold), _cleaned(answer)
    y, x = _float(gold.strip().rstrip("%")), _float(answer.strip().rstrip("%"))
    if x is not None and y is not None:
        y_percent, x_percent = gold.strip().endswith("%"), answer.strip().endswith("%")
        pairs = [(y, x), (y, x / 100 if x_percent else x), (y / 100 if y_percent else y, x)]
        return any(abs(b - a) / max(abs(a), 1e-10) <= 0.05 for a, b in pairs)
    if len(gold) == 1 and gold.isalpha() and answer:
        return answer[0].lower() == gold.lower()
    return answer.lower() == gold.lower()


def _cleaned(text: str) -> str:
    if any(map(str.isdigit, text)):
        end = len(text)
        while end and text[end - 1] != "%" and (text[end - 1] in string.punctuation or text[end - 1].isspace()):
            end -= 1
        return text[:end].replace(",", "").replace("$", "")
    quoted = any(text.startswith(quote) and text.endswith(quote) for quote in "\"'")
    return text[1:-1] if quoted else text


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_RULES: dict[ChartRule, Callable[[str, str], bool]] = {
    "numerate": _numerate,
    "chartqa": _chartqa,
    "qwen_vl": _qwen_vl,
    "lm_eval": _lm_eval,
}
