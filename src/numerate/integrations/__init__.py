"""Integrations with ``transformers``, ``trl``, ``lightning`` and your own training loop, each imported on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from numerate.checks import public_dir

if TYPE_CHECKING:
    from numerate.integrations import lightning, loop, transformers, trl

__all__ = ["lightning", "loop", "transformers", "trl"]
__dir__ = public_dir(globals())


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"numerate.integrations has no {name!r}: expected one of {', '.join(__all__)}.")
    return import_module(f"{__name__}.{name}")
