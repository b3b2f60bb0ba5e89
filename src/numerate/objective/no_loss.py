"""NoLoss: the null numeric loss, for an objective that is cross-entropy alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from numerate.labels import IGNORE_INDEX
from numerate.losses.base import NumericLoss, check_vocab, columns_needed
from numerate.losses.target_tokens import Targets
from numerate.vocab import NumericVocab


class NoLoss(NumericLoss):
    """The loss of ``NumericObjective(None)``: reads no rows and is 0. ``vocab`` is used for logging only."""

    name = "none"
    vocab: NumericVocab | None  # type: ignore[assignment]

    def __init__(self, vocab: NumericVocab | None = None) -> None:
        nn.Module.__init__(self)
        self.vocab = None if vocab is None else check_vocab(vocab)
        self.outside, self.places, self.thousands, self.ignore_index = "ignore", "uniform", False, IGNORE_INDEX
        for name in ("columns", "widths"):
            self.keep(name, torch.zeros(0, dtype=torch.int64))
        for name in ("values", "worst"):
            self.keep(name, torch.zeros(0, dtype=torch.float64))
        self.column_ids = torch.zeros(0, dtype=torch.int64)
        self.columns_needed = 0
        if vocab is not None:
            self.columns_needed = columns_needed(vocab, vocab.token_ids)
            # torch.compile cannot trace the first use of what numbers are read with.
            _ = vocab.index_table, vocab.flag_table, vocab.widths, vocab.number_values

    def targets(self, labels: Tensor, **_: Any) -> Targets:
        """Return no rows."""
        rows = labels.new_zeros(0)
        return Targets(rows, rows, None, None, labels.shape)

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """Return an empty cost, connected to the logits."""
        return z.sum(-1)

    def log_mass(self, z: Tensor, rest: Tensor | None) -> Tensor:
        """Return an empty log-probability."""
        return z.sum(-1).double()

    def extra_repr(self) -> str:
        """Shown by ``repr(loss)``."""
        return "" if self.vocab is None else f"{self.vocab!r}"
