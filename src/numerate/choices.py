"""Valid values of settings: names of losses, weighting of the numeric term, image formats. Does not import torch."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

Normalize = Literal["numeric", "tokens"]
Scale = Literal["fixed", "match_ce"]

FORMATS = (".png", ".svg", ".pdf")
"""File endings of images that can be written."""

_NAME = re.compile(r'^    name = "(\w+)"$', re.MULTILINE)


def loss_names() -> tuple[str, ...]:
    """Return the keys of ``LOSSES``; read from the source files if they are not imported, which takes seconds.

    Examples:
        >>> "smmd" in loss_names()
        True
    """
    imported = "numerate.losses" in sys.modules
    files = [] if imported else sorted((Path(__file__).parent / "losses").glob("*.py"))
    if not files:  # imported, with losses registered elsewhere; or there is no source
        return tuple(import_module("numerate.losses").LOSSES)
    return tuple(name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8")))
