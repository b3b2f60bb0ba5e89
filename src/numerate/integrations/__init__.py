"""Plugs for ``transformers``, ``trl``, ``lightning`` and loops of your own. Each is imported when it is first named."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_PLUGS = ("lightning", "loop", "transformers", "trl")


def __getattr__(name: str) -> ModuleType:
    if name not in _PLUGS:
        raise AttributeError(f"numerate.integrations has no {name!r}: expected one of {', '.join(_PLUGS)}.")
    return import_module(f"{__name__}.{name}")
