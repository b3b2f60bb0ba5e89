"""The objectives of E stacked runs at once: a value of each run, as :class:`numerate.NumericObjective` computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.labels import IGNORE_INDEX
from numerate.losses.logit_rows import divide
from numerate.objective import NumericObjective
from numerate.objective.no_loss import NoLoss
from numerate.objective.overrun import NumberEnds
from numerate.targets.soft_targets import SoftTargets


class StackedParts(NamedTuple):
    """Figures of each run, ``[E]`` each; its loss can be differentiated."""

    loss: Tensor
    cross_entropy: Tensor
    numeric: Tensor
    mass: Tensor  # sum of the probabilities of numeric tokens where the label is one
    overrun: Tensor  # the same where a number has ended, if it was asked for
    ends: Tensor  # numbers that end


class StackedObjective(nn.Module):
    """Objectives of runs, in the order of the stack; runs next to each other with one loss are computed together.

    None is plain cross-entropy; ``kinds`` are equal for runs whose objectives differ in ``weight`` at most.
    """

    def __init__(self, objectives: Sequence[NumericObjective | None], kinds: Sequence[str]) -> None:
        super().__init__()
        self._own = [NumericObjective(None) if one is None else one for one in objectives]
        self.objectives = nn.ModuleList(self._own)  # so that they move with the stack
        members = ([*group] for _, group in groupby(range(len(kinds)), key=lambda index: kinds[index]))
        self._groups = [range(group[0], group[-1] + 1) for group in members]
        self.weights: Tensor
        self.register_buffer("weights", torch.tensor([one.weight for one in self._own]), persistent=False)

    @property
    def numeric(self) -> list[bool]:
        """Whether each run has a numeric term."""
        return [not isinstance(one.numeric_loss, NoLoss) for one in self._own]

    def count(self, labels: Tensor) -> Tensor:
        """Return label tokens, units of the numeric loss and numeric positions of raw ``labels [E, B, T]``: ``[3, E]``."""
        counts = []
        for own, objective in zip(labels, self._own, strict=True):
            items, units = objective.count(own, shift=True)
            loss = objective.numeric_loss
            positions = 0 if isinstance(loss, NoLoss) else int((loss.vocab.index_of(own[:, 1:]) >= 0).sum())
            counts.append([float(items), float(units), float(positions)])
        return torch.tensor(counts, dtype=torch.float64).T

    def forward(
        self, logits: Tensor, labels: Tensor, counts: Tensor, soft: SoftTargets | None, *, with_overrun: bool = False
    ) -> StackedParts:
        """Return the parts of each run from ``logits [R, T, V]``, raw ``labels [R, T]`` and the counts ``[3, E]`` of a step."""
        size = len(self._own)
        logits, labels = logits[:, :-1], labels[:, 1:]
        flat, ids = logits.flatten(0, 1).float(), labels.flatten()
        nll = F.cross_entropy(flat, ids, ignore_index=IGNORE_INDEX, reduction="none")
        if soft is not None:
            rows = soft.shifted().rows(labels)
            nll = rows.cross_entropy(nll, flat.logsumexp(-1), flat[rows.rows, rows.token_ids])
        items, units, _ = counts
        ce = divide(nll.view(size, -1).sum(1), items)
        added, numeric, mass, overrun, ends = (torch.zeros_like(ce) for _ in range(5))
        share = len(labels) // size  # rows of a run
        for group in self._groups:
            objective = self._own[group.start]
            loss, weighting = objective.numeric_loss, replace(objective.weighting, weight=1.0)
            part, own = slice(group.start * share, group.stop * share), slice(group.start, group.stop)
            found = NumberEnds.of(loss, labels[part], None, compact=False) if with_overrun else None
            if found is not None and found.mask is not None:
                with torch.no_grad():
                    there = _numeric_mass(logits[part], found.columns).flatten()
                    overrun[own] = torch.where(found.mask, there, 0.0).view(len(group), -1).sum(1)
                    ends[own] = found.mask.view(len(group), -1).sum(1).to(ends.dtype)
            if isinstance(loss, NoLoss):
                continue
            costs = loss(logits[part], labels[part], reduction="none").view(len(group), -1).sum(1)
            term = divide(costs, weighting.denominator(items[own], units[own]))
            added = added.slice_scatter(self.weights[own] * weighting.factor(ce[own], term) * term, 0, group.start, group.stop)
            with torch.no_grad():
                numeric[own] = term
                tokens = loss.columns[: len(loss.values)]
                numbers = _numeric_mass(logits[part], tokens)
                mass[own] = torch.where(torch.isin(labels[part], tokens), numbers, 0.0).view(len(group), -1).sum(1)
        return StackedParts(ce + added, ce.detach(), numeric, mass, overrun, ends)


def _numeric_mass(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the probability ``[R, T]`` of some tokens together."""
    return logits.float().softmax(-1)[..., token_ids].sum(-1)
