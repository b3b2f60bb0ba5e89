"""How numbers are written: plain, padded, spaced, reversed, grouped, power of ten first; exact both ways.

A tokenizer is fixed, the text that it gets is not. Digits of the same place at the same position, one digit to a token, or the
last digit first change what a model can learn, in any trainer, since only the text changes.
"""

from numerate.checks import public_dir
from numerate.formats.format_rows import FormatRows
from numerate.formats.kinds import KINDS
from numerate.formats.number_format import NumberFormat, as_format
from numerate.formats.patterns import CLOCK, NUMBER

__all__ = ["CLOCK", "KINDS", "NUMBER", "FormatRows", "NumberFormat", "as_format"]
__dir__ = public_dir(globals())
