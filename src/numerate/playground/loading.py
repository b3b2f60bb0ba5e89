"""One lock for everything that loads with transformers: two threads that import it at once may see half of it."""

from __future__ import annotations

from importlib.util import find_spec
from threading import RLock

LOADING = RLock()


def check_installed(what: str) -> None:
    """Raise unless transformers is installed; ``what`` needs it."""
    if find_spec("transformers") is None:
        raise ValueError(f"{what} needs transformers, which is not installed: run pip install 'numerate[train]'.")
