"""What settings may be: names of losses, how the numeric term is weighted, types of picture files. Needs no torch."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

Normalize = Literal["numeric", "tokens"]
Scale = Literal["fixed", "match_ce"]

FORMATS = (".png", ".svg", ".pdf")
"""Endings of pictures that can be written."""

_NAME = re.compile(r'^    name = "(\w+)"$', re.MULTILINE)


def loss_names() -> tuple[str, ...]:
    """Return the keys of ``LOSSES``, read from the files of the losses where those are not imported yet, which takes seconds.

    Examples:
        >>> "smmd" in loss_names()
        True
    """
    files = sorted((Path(__file__).parent / "losses").glob("*.py"))
    if "numerate.losses" in sys.modules or not files:  # with losses that were registered elsewhere; or only compiled files
        return tuple(import_module("numerate.losses").LOSSES)
    return tuple(name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8")))
