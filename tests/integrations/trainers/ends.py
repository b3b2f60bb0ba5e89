"""Where the numbers of examples end, read from their text, and the probability of digits there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def ends_of(labels: Tensor, texts: Sequence[str]) -> Tensor:
    """Return the mask ``[B, T]`` of first labels after a number; each of ``texts`` is one character, and a token id its index."""
    ends = torch.zeros_like(labels, dtype=torch.bool)
    for row, ids in enumerate(labels.tolist()):
        text = "".join("_" if i == -100 else texts[i] if i < len(texts) else "#" for i in ids)
        for match in _NUMBER.finditer(text):
            if match.end() < len(text) and text[match.end()] != "_":
                ends[row, match.end()] = True
    return ends


def overrun_of(logits: Tensor, labels: Tensor, texts: Sequence[str]) -> float:
    """Return the mean probability of digits at the ends of aligned labels."""
    digits = [i for i, text in enumerate(texts) if text.isdigit()]
    return float(logits.detach().double().softmax(-1)[..., digits].sum(-1)[ends_of(labels, texts)].mean())
