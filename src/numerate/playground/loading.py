"""One lock for everything that imports transformers: concurrent imports may see a partially initialized module."""

from __future__ import annotations

from importlib.util import find_spec
from threading import RLock

LOADING = RLock()


def check_installed(what: str) -> None:
    """Raise if transformers, which ``what`` needs, is not installed."""
    if find_spec("transformers") is None:
        raise ValueError(f"{what} needs transformers, which is not installed: run pip install 'numerate[lab]'.")
