"""Settings of a run's model and of the rows that it reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from numerate.lab.data.settings import Settings
from numerate.lab.data.task_format import format_text
from numerate.lab.models.names import Adapter

PLAIN = "plain"
"""The format that changes nothing."""

LabelPath = Literal["drawn", "fixed", "jitter"]
"""What a row with soft labels follows: an answer drawn from its distribution, the label, or a drawn answer with hard targets."""


class ModelSettings(Settings):
    """Which model, what of it is trained, and in which precision."""

    model: str = Field("tiny", description="tiny, tiny-3, tiny-vlm, small, smollm2, a folder, a GGUF file, or a Hub id.")
    adapter: Adapter = Field("none", description="lora or qlora train an adapter instead of all weights.")
    rank: int = Field(16, ge=1, description="Rank of the adapter.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    max_length: int = Field(
        1024,
        ge=8,
        description="Maximum tokens per example. Long texts of a table's row are cut to fit; other longer examples are skipped.",
    )
    bf16: bool = Field(False, description="Compute in bfloat16.")
    format: str = Field(
        PLAIN,
        description="How numbers are written: plain, padded, reversed, spaced, grouped, exponent, or several joined by +. Padded "
        "numbers have the width of those of the training rows; padded:6 and padded:5.2 set the most digits and decimals.",
    )

    @field_validator("format")
    @classmethod
    def _in_order(cls, value: str) -> str:
        return format_text(value)
