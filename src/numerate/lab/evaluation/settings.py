"""Settings of a run's answers: how they are written, and which rules decide further ones from the model's distribution."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from numerate.lab.data.settings import Settings


class DecisionSettings(Settings):
    """How a model answers and which rules decide."""

    eval_batch_size: int = Field(128, ge=1, description="Test examples per batch.")
    max_new_tokens: int | None = Field(None, ge=1, description="Maximum tokens per answer. None: 1.5 x the gold answer, plus 4.")
    samples: int = Field(0, ge=0, description="Answers to sample per test example, for metrics of the distribution.")
    decide: tuple[str, ...] = Field(
        (), description="Rules that decide an answer from the model's distribution, beside greedy: median, mean, relative, .."
    )
    interval: float = Field(0.9, gt=0, lt=1, description="With decide: level of the interval whose coverage is measured.")
    decide_width: int | None = Field(
        16, ge=1, description="With decide: beam width, prefixes of an answer kept per step. None: no limit."
    )

    @property
    def answering(self) -> dict[str, Any]:
        """Return them as the options of :func:`numerate.lab.evaluation.evaluate.evaluate_all`."""
        names = ("max_new_tokens", "samples", "decide", "interval", "decide_width")
        return {"batch_size": self.eval_batch_size, **{name: getattr(self, name) for name in names}}
