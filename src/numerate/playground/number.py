"""The tab "a complete number": two predictions of one target, token by token, and which of them each loss prefers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache, lru_cache
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from numerate.distribution.exact import EXACT
from numerate.formats import KINDS, NumberFormat
from numerate.lab.wording.text import counted, listed
from numerate.losses import LOSSES, NumericLoss
from numerate.objective import NumericObjective
from numerate.playground.request import TabRequest
from numerate.playground.tokens import NumberTokens, TokenizerName, listed_tokenizers, number_tokens
from numerate.spans import NumberSpans

_PLAIN = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_SAME = 1e-9  # relative difference below which two losses are equal

Written = Annotated[str, Field(min_length=1, max_length=60)]

FEATURED = ("ntil", "smmd", "emd", "number")
"""Losses of the first view, besides cross-entropy and NTIL as published."""


class NumberRequest(TabRequest):
    """A target, two predictions, and the probability of each predicted token."""

    target: Written = "0.98"
    first: Written = "1.01"
    second: Written = "1.98"
    tokenizer: TokenizerName = "one"
    certainty: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.99
    every: bool = False  # whether to show all losses of the registry


def compute(request: NumberRequest) -> dict[str, object]:
    """Return the tokens of target and predictions side by side, and the losses of both predictions."""
    tokens = number_tokens(request.tokenizer)
    texts = [_plain(name, text) for name, text in (("target", request.target), ("A", request.first), ("B", request.second))]
    target, *guesses = tokens.encode(texts)
    values = [Decimal(text) for text in texts]
    off = [abs(EXACT.subtract(value, values[0])) for value in values[1:]]
    nearer = None if off[0] == off[1] else int(off[1] < off[0])
    logits = torch.stack([_logits(_along(guess, len(target)), tokens, request.certainty) for guess in guesses])  # [2, T, V]
    labels = torch.tensor([target, target])
    with torch.inference_mode():
        losses = [_judged(row, request, logits, labels, texts[1:], nearer) for row in _rows(request.every)]
    return {
        "tokenizers": listed_tokenizers(),
        "target": {"text": texts[0], "tokens": _places(target, tokens)},
        "predictions": [
            {
                "text": text,
                "tokens": _places(guess, tokens),
                "off": f"{distance.normalize():f}" if distance else "0",
                "note": _note(name, guess, target, tokens),
            }
            for name, text, guess, distance in zip("AB", texts[1:], guesses, off, strict=True)
        ],
        "nearer": nearer,
        "formats": _formats(texts, tokens),
        "losses": losses,
        "summary": _summary(losses, texts[1:], nearer),
    }


def _formats(texts: list[str], tokens: NumberTokens) -> list[dict[str, object]]:
    """Return the target's tokens in each format; padded ones have the width of the longest of the numbers."""
    target, *_ = numbers = [text.removesuffix(".") for text in texts]
    return [{"kind": kind, "tokens": tokens.pieces(NumberFormat.fit(numbers, kind).write(target))} for kind in KINDS]


def _plain(name: str, text: str) -> str:
    stripped = text.strip()
    if not _PLAIN.fullmatch(stripped):
        raise ValueError(f"{name} is {text[:60]!r}: expected a plain number with digits, a minus or a point, such as 0.98 or -7.")
    return stripped


def _along(guess: list[int], length: int) -> list[int]:
    """Return the prediction at each position of the target: truncated, or padded with the end token."""
    return [*guess[:length], *[0] * (length - len(guess))]


def _logits(guess: list[int], tokens: NumberTokens, certainty: float) -> Tensor:
    """Return logits ``[T, V]`` with probability ``certainty`` on the predicted token at each position.

    All other tokens of a plain number share the rest equally.
    """
    others = tokens.plain.double().expand(len(guess), -1).clone()
    rows, columns = torch.arange(len(guess)), torch.tensor(guess)
    others[rows, columns] = 0.0
    p = (1 - certainty) * others / others.sum(-1, keepdim=True)
    p[rows, columns] = certainty
    return p.log()


def _places(token_ids: list[int], tokens: NumberTokens) -> list[dict[str, object]]:
    """Return the text of each token, and the exponent of its place; None for a token without one."""
    spans = NumberSpans.from_labels(torch.tensor(token_ids), tokens.vocab)
    rows = zip(token_ids, spans.has_place.tolist(), spans.exponent.tolist(), strict=True)
    return [
        {"text": tokens.texts[token_id], "end": token_id == 0, "exponent": exponent if has_place else None}
        for token_id, has_place, exponent in rows
    ]


def _note(name: str, guess: list[int], target: list[int], tokens: NumberTokens) -> str | None:
    """Return what no loss sees of a prediction whose tokens are not aligned with the target's; None if they are."""
    notes = []
    if (more := len(guess) - len(target)) > 0:
        at_end = f'Where the target ends, it has "{tokens.texts[guess[len(target) - 1]]}", which only cross-entropy sees.'
        beyond = "" if more == 1 else " No loss sees the rest."
        notes.append(f"{name} has {counted(more, 'token')} more than the target. {at_end}{beyond}")
    elif more < 0:
        notes.append(f"{name} has {counted(-more, 'token')} fewer than the target and is padded with the end token.")
    index = tokens.vocab.index_of(torch.tensor([target, _along(guess, len(target))]))
    if missing := int(((index[0] >= 0) & (index[1] < 0)).sum()):
        where = "one position" if missing == 1 else f"{missing} positions"
        notes.append(f"At {where} where the target has digits, {name} has none: numeric losses see a uniform distribution there.")
    return " ".join(notes) or None


class _LossRow(NamedTuple):
    """A row of the table: a loss of the registry with settings, or cross-entropy."""

    name: str
    title: str
    loss: str | None
    settings: dict[str, Any]
    part_of: str | None = None


def _rows(every: bool) -> Iterator[_LossRow]:
    """Yield the losses to show; both variants of NTIL with their parts: the digit term and the number term."""
    yield _LossRow("cross-entropy", "cross-entropy", None, {})
    yield from _ntil("ntil_released", "NTIL as published", {"variant": "released", "noise": 0.0})
    for name in LOSSES if every else FEATURED:
        if name == "ntil":
            yield from _ntil(name, "NTIL on values", {})
        else:
            yield _LossRow(name, name, name, {})


def _ntil(name: str, title: str, settings: dict[str, Any]) -> Iterator[_LossRow]:
    yield _LossRow(name, title, "ntil", settings)
    yield _LossRow(f"{name}_digits", "digit term", "ntil", {**settings, "alpha": 0.0, "beta": 0.0}, name)
    yield _LossRow(f"{name}_number", "number term", "ntil", {**settings, "emd_weight": 0.0}, name)


@cache
def _objective(name: str | None, tokenizer: TokenizerName, **settings: Any) -> NumericObjective:
    return NumericObjective(None if name is None else LOSSES[name](number_tokens(tokenizer).vocab, **settings))


@lru_cache(maxsize=256)
def _units(loss: NumericLoss, target: tuple[int, ...]) -> float:
    """Return the divisor of a mean loss: tokens or numbers."""
    return float(loss.count(torch.tensor(target)))


def _judged(
    row: _LossRow, request: NumberRequest, logits: Tensor, labels: Tensor, texts: list[str], nearer: int | None
) -> dict[str, object]:
    """Return the losses of both predictions, and the preferred one as a sentence."""
    made: dict[str, object] = {"name": row.name, "title": row.title, "part_of": row.part_of, "values": None, "prefers": None}
    try:
        objective = _objective(row.loss, request.tokenizer, **row.settings)
    except (ValueError, TypeError) as error:  # a loss that does not support these tokens
        return made | {"sentence": f"does not support these tokens: {error}"}
    partly = ""
    if row.loss is None:
        costs = [float(objective(z, label).cross_entropy) for z, label in zip(logits, labels, strict=True)]
    else:
        loss = objective.numeric_loss
        vocabs = loss.vocab, number_tokens(request.tokenizer).vocab
        read, digits = (int((vocab.index_of(labels[0]) >= 0).sum()) for vocab in vocabs)
        if not read:
            return made | {"sentence": "ignores this target: it reads single digits only."}
        if read < digits:
            partly = f" It reads {read} of {digits} number tokens: single digits only."
        totals = loss(logits, labels, reduction="none").sum(-1)  # [2]; one call for both takes half the time
        costs = (totals / _units(loss, tuple(labels[0].tolist()))).tolist()
    near = abs(costs[0] - costs[1]) <= _SAME * max(map(abs, costs))
    prefers = None if near else int(costs[1] < costs[0])
    if prefers is None:
        sentence = "is the same for both."
    elif nearer is None:
        sentence = f"prefers {texts[prefers]}; both are equally close."
    elif prefers == nearer:
        sentence = f"prefers {texts[prefers]}, which is closer."
    else:
        sentence = f"prefers {texts[prefers]}, although {texts[nearer]} is closer."
    return made | {"values": costs, "prefers": prefers, "sentence": sentence + partly}


def _summary(losses: list[dict[str, object]], texts: list[str], nearer: int | None) -> str:
    """Return a sentence with the losses that prefer the closer prediction."""
    if nearer is None:
        return "Both predictions are equally close to the target."
    whole = [loss for loss in losses if loss["part_of"] is None]
    right = [str(loss["title"]) for loss in whole if loss["prefers"] == nearer]
    near = f"{texts[nearer]} is closer to the target."
    if not right:
        return f"{near} None of these {len(whole)} losses prefers it."
    if len(right) == len(whole):
        return f"{near} All of these {len(whole)} losses prefer it."
    return f"{near} Of these {len(whole)} losses, {len(right)} {'prefers' if len(right) == 1 else 'prefer'} it: {listed(right)}."
