"""Numbers in label ids: which tokens belong to which number, with sign, point and place value.

``readable`` turns a format into rules, ``spaced`` takes spaces out of numbers, ``lexer`` finds the parts of each number,
``places`` computes their place values, ``number_spans`` holds the result, and ``segments`` sums over the tokens of each number.
"""

from numerate.spans.number_spans import NumberSpans, check_position_ids, find_numbers, find_numbers_among
from numerate.spans.places import EXACT_DIGITS, MOST_PADDING, power_of_ten
from numerate.spans.readable import PLAIN, Numbers, Rules
from numerate.spans.segments import put_by, sum_by, sum_segments

__all__ = [
    "EXACT_DIGITS",
    "MOST_PADDING",
    "PLAIN",
    "NumberSpans",
    "Numbers",
    "Rules",
    "check_position_ids",
    "find_numbers",
    "find_numbers_among",
    "power_of_ten",
    "put_by",
    "sum_by",
    "sum_segments",
]
