"""The frameworks for which rows are written, and why not for others; without torch."""

from __future__ import annotations

from typing import Literal

from numerate.checks import check_choice, choices

Framework = Literal["generic", "axolotl", "distillkit", "tinker"]
"""Frameworks for which rows are written; ``generic`` is for a loop of your own."""

_WITHOUT_FILE = {
    "verl": "asks teacher models that run beside the training",
    "openrlhf": "computes the teacher's distributions while it trains",
    "skyrl": "computes the teacher's distributions while it trains",
    "megatron": "reads teacher distributions only by batch, as a run of the teacher with the same data order has saved them",
}


def check_framework(name: str) -> None:
    """Raise unless rows can be written for a framework; the error says what to do for one that reads no such file."""
    if (reason := _WITHOUT_FILE.get(name.lower().replace("-lm", ""))) is not None:
        raise ValueError(
            f"for={name!r} reads no file of soft targets: it {reason}. Expected soft labels in a trainer of the Hugging Face "
            "family, by nm.attach(trainer, soft=0.05), before it; or drawn answers with hard labels, the same on average, from "
            "input_ids and labels of --for generic --loss soft_jitter."
        )
    check_choice("for", name, choices(Framework))
