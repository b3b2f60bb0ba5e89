"""Integrations with trainers, frameworks for large models and your own training loop, each imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numerate.checks import on_first_use, public_dir

if TYPE_CHECKING:
    from numerate.integrations import (
        axolotl,
        counts,
        lightning,
        llamafactory,
        loop,
        megatron,
        nemo,
        torchtitan,
        transformers,
        trl,
    )

__all__ = [
    "axolotl",
    "counts",
    "lightning",
    "llamafactory",
    "loop",
    "megatron",
    "nemo",
    "swift",
    "torchtitan",
    "transformers",
    "trl",
    "unsloth",
]
__dir__ = public_dir(globals())
__getattr__ = on_first_use(globals(), {})
