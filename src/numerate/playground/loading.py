"""One lock for everything that imports transformers: concurrent imports may see a partially initialized module."""

from __future__ import annotations

from threading import RLock

LOADING = RLock()
