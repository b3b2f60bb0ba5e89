"""Overrun, for logging: the probability of another digit where the number in the labels ends.

An early sign of numbers that do not end. A model that is certain of the end of every number has an overrun of 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import divide, log_sum_exp, reads_freely, take
from numerate.objective.logit_columns import Columns
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab


class NumberEnds(NamedTuple):
    """The rows of logits that predict the first token after a number, and the numeric tokens."""

    rows: Tensor | None  # [E] positions in the flattened labels; None: all of them
    mask: Tensor | None  # [E] whether a number ends before the row; None: for all of them
    columns: Tensor  # [N] ids of the numeric tokens

    @classmethod
    def of(
        cls, loss: NumericLoss, labels: Tensor, position_ids: Tensor | None, *, compact: bool | None = None
    ) -> NumberEnds | None:
        """Read aligned labels; None if ``loss`` has no numeric tokens. ``compact`` as in :meth:`NumericLoss.targets`."""
        vocab: NumericVocab | None = loss.vocab
        if vocab is None:
            return None
        mask = number_ends(labels, vocab, position_ids, thousands=loss.thousands, ignore_index=loss.ignore_index).flatten()
        columns = vocab.token_ids.to(labels.device)
        if compact is None:
            compact = reads_freely(labels)
        return cls(mask.nonzero()[:, 0], None, columns) if compact else cls(None, mask, columns)

    @property
    def num_ends(self) -> int | Tensor:
        """E, the number of rows."""
        if self.mask is not None:
            return self.mask.sum()
        assert self.rows is not None
        return self.rows.shape[0]

    def mean_mass(self, z: Tensor, lse: Tensor) -> Tensor:
        """Return the mean probability of the numeric tokens, from ``z [E, N]`` and the log-sum-exp ``[E]`` of whole rows."""
        mass = (log_sum_exp(z) - lse.double()).clamp_max(0.0).exp()
        total = (mass if self.mask is None else torch.where(self.mask, mass, 0.0)).sum()
        return divide(total, self.num_ends).to(z.dtype)

    def mean_mass_of_logits(self, flat: Tensor, lse: Tensor, columns: Columns) -> Tensor:
        """Return the same from ``[B·T, V]`` logits and their log-sum-exp ``[B·T]`` in float32 or wider."""
        return self.mean_mass(columns.select(flat, self.rows, self.columns).to(lse.dtype), take(lse, self.rows))


def number_ends(
    labels: Tensor, vocab: NumericVocab, position_ids: Tensor | None = None, *, thousands: bool = False, ignore_index: int = -100
) -> Tensor:
    """Return the mask ``[.., T]`` of the first label after each number.

    Excluded: numeric labels, which start another number; the point, comma, space or power of ten inside a number; labels of
    another document; ``ignore_index``. See :meth:`NumberSpans.from_labels` for the arguments. With the power of ten first, it
    and the digits end apart.
    """
    if vocab.writes("exponent"):
        vocab = replace(vocab, format="spaced" if vocab.writes("spaced") else None)
    spans = NumberSpans.from_labels(labels, vocab, position_ids=position_ids, thousands=thousands, ignore_index=ignore_index)
    follows_digit, number_before = _before(spans.is_digit, False), _before(spans.number_of, -1)
    if position_ids is not None:
        follows_digit = follows_digit & (position_ids != 0)
    ended = follows_digit & (spans.number_of != number_before)
    return ended & ~spans.is_digit & (labels != ignore_index)


def _before(x: Tensor, fill: int) -> Tensor:
    """Return ``x [.., T]`` shifted right: the entry of the previous position."""
    return F.pad(x, (1, 0), value=fill)[..., :-1]
