"""Integrations with ``transformers``, ``trl``, ``lightning`` and your own training loop, each imported on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_INTEGRATIONS = ("lightning", "loop", "transformers", "trl")


def __getattr__(name: str) -> ModuleType:
    if name not in _INTEGRATIONS:
        raise AttributeError(f"numerate.integrations has no {name!r}: expected one of {', '.join(_INTEGRATIONS)}.")
    return import_module(f"{__name__}.{name}")
