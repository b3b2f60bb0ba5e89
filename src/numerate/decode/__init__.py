"""Numbers out of a model: the decided number, an interval, or the distribution over all numbers that it may answer.

Names other than the grammars are imported on first use: some need ``transformers``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numerate.checks import public_dir
from numerate.decode.format_grammar import FormatGrammar, format_grammar
from numerate.decode.grammar import NumberGrammar, TextGrammar

if TYPE_CHECKING:
    from numerate.decode.decided import DecidedOutput, DecideNumbers
    from numerate.decode.model import distribution
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
    "number",
    "numbers_only",
    "served_distribution",
]
__dir__ = public_dir(globals())

_HOMES = {
    "CompletionServer": "server",
    "DecideNumbers": "decided",
    "DecidedOutput": "decided",
    "NumbersOnly": "processor",
    "distribution": "model",
    "interval": "number_and_interval",
    "number": "number_and_interval",
    "numbers_only": "processor",
    "served_distribution": "served",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"numerate.decode has no {name!r}: expected one of {', '.join(__all__)}.")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
