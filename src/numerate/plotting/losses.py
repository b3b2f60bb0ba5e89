"""Plots of a loss: its value by the distance of the answer and, for SMMD, the gram of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.checks import check_choice
from numerate.losses import LOSSES, NumericLoss, SMMDLoss
from numerate.losses.gaussian_ce import gaussian_targets
from numerate.plotting.figures import COLOURS, figure_for, save, unframed
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_TICKS = 10


def certain_costs(loss: NumericLoss, index: int, answers: Tensor | None = None, width: float = 0.0) -> Tensor:
    """Return the loss ``[N]`` of each answer if the token at ``index`` is right; all other tokens together have 1e-6.

    Args:
        loss: the loss, with its vocabulary of N tokens.
        index: index of the right token.
        answers: indices of the answers; None: all N.
        width: standard deviation of a Gaussian around each answer, in units of value; 0: the answer alone.
    """
    vocab = loss.vocab
    least = 1e-6 / max(1, vocab.size - 1)
    answers = torch.arange(vocab.size) if answers is None else answers
    p = gaussian_targets(vocab.values, width) if width > 0 else torch.eye(vocab.size, dtype=torch.float64)
    z = torch.zeros(len(answers), loss.columns.shape[0], dtype=torch.float64)  # [A, N], more columns for a loss that scores signs
    z[:, : vocab.size] = p[answers].clamp_min(least).log() - math.log(least)
    rest = torch.full((len(answers),), torch.finfo(z.dtype).min, dtype=z.dtype)  # no mass on other tokens
    labels = vocab.token_ids[index].expand(len(answers), 1)
    return loss.per_row(z, rest, loss.targets(labels, compact=False))


def plot_loss(vocab: NumericVocab, path: str | Path, loss: str = "smmd") -> Path:
    """Plot the loss of an answer by its distance from the label; for ``"smmd"``, both variants, with their grams."""
    check_choice("loss", loss, tuple(LOSSES))
    Figure = figure_for(path)  # noqa: N806
    distinct = _distinct(vocab)
    title = f"{vocab.size:,} numeric tokens, values {vocab.values[0].item():,.10g} to {vocab.values[-1].item():,.10g}"
    if loss == "smmd":
        forms = {"published": SMMDLoss(vocab), "repaired": SMMDLoss(vocab, variant="repaired")}
        figure = Figure(figsize=(10, 8.6))
        left, right, below = figure.subplot_mosaic([["left", "right"], ["below", "below"]], height_ratios=[1.25, 1]).values()
        for axes, (form, smmd) in zip((left, right), forms.items(), strict=True):
            image = _draw_gram(axes, smmd, distinct)
            axes.set_title(f"gram, {form}")
        left.set_ylabel("value of another token")
        figure.colorbar(image, ax=[left, right], label="similarity of two values", shrink=0.9)
        _draw_costs(below, forms, distinct)
    else:
        figure = Figure(figsize=(10, 4.6))
        _draw_costs(figure.subplots(), {loss: LOSSES[loss](vocab)}, distinct)
    figure.suptitle(f"{loss} on {title}", fontsize="large", fontweight="bold")
    return save(figure, path)


def _distinct(vocab: NumericVocab) -> Tensor:
    """Return the index of one token per value: of ``7``, not of ``007`` or `` 7``."""
    values = vocab.values
    return torch.cat([torch.tensor([True]), values[1:] > values[:-1]]).nonzero()[:, 0]


def _draw_gram(axes: Axes, loss: SMMDLoss, distinct: Tensor) -> AxesImage:
    gram = loss.gram[distinct][:, distinct].numpy()
    image = axes.imshow(gram, vmin=0, vmax=1, cmap="viridis", origin="lower", interpolation="nearest")
    values = loss.vocab.values[distinct]
    step = max(1, math.ceil(len(values) / _TICKS))
    ticks = range(0, len(values), step)
    labels = [f"{values[i].item():g}" for i in ticks]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.set_xlabel("value of a token")
    return image


def _draw_costs(axes: Axes, losses: Mapping[str, NumericLoss], distinct: Tensor) -> None:
    few = len(distinct) <= 50
    for (name, loss), colour in zip(losses.items(), COLOURS, strict=False):
        middle = int(distinct[len(distinct) // 2])
        label = loss.vocab.values[middle].item()
        distance = (loss.vocab.values[distinct] - label).numpy()
        costs = certain_costs(loss, middle)[distinct].numpy()
        axes.plot(distance, costs, color=colour, label=name, marker="o" if few else None, linewidth=2, clip_on=False)
    if not few:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"distance of the answer from the label {label:g}")
    axes.set_ylabel("loss of a certain answer")
    axes.set_ylim(bottom=0)
    unframed(axes)
    if len(losses) > 1:
        axes.legend(frameon=False)
