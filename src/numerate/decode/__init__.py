"""Numbers out of a model: the decided number, an interval, or the distribution over all numbers that it may answer.

Names other than the grammars are imported on first use: some need ``transformers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numerate.checks import on_first_use, public_dir
from numerate.decode.format_grammar import FormatGrammar, format_grammar
from numerate.decode.grammar import NumberGrammar, TextGrammar

if TYPE_CHECKING:
    from numerate.decode.decided import DecidedOutput, DecideNumbers
    from numerate.decode.model import distribution, member_distributions
    from numerate.decode.number_and_interval import interval, number
    from numerate.decode.processor import NumbersOnly, numbers_only
    from numerate.decode.served import served_distribution
    from numerate.decode.server import CompletionServer

__all__ = [
    "CompletionServer",
    "DecideNumbers",
    "DecidedOutput",
    "FormatGrammar",
    "NumberGrammar",
    "NumbersOnly",
    "TextGrammar",
    "distribution",
    "format_grammar",
    "interval",
    "member_distributions",
    "number",
    "numbers_only",
    "served_distribution",
]
__dir__ = public_dir(globals())
__getattr__ = on_first_use(
    globals(),
    {
        "decided": ("DecideNumbers", "DecidedOutput"),
        "model": ("distribution", "member_distributions"),
        "number_and_interval": ("interval", "number"),
        "processor": ("NumbersOnly", "numbers_only"),
        "served": ("served_distribution",),
        "server": ("CompletionServer",),
    },
)
