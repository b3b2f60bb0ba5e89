"""Keep garbage collections short: a Trainer runs several, and each would scan everything that transformers imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def frozen_imports() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
