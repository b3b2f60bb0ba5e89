"""The tab "a soft label": the tree of its tokens with the probability of each branch, and answers sampled from it."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from numerate.distribution import NumberDistribution
from numerate.distribution.bell_steps import Shape
from numerate.distribution.exact import label as shortened
from numerate.playground.branches import Branch, BranchTree, Path
from numerate.playground.request import TabRequest
from numerate.playground.tokens import NumberTokens, TokenizerName, listed_tokenizers, number_tokens
from numerate.targets import AnswerDistribution, Bell, CircularBell, Ratings, TokenTrie
from numerate.targets.notation import Notation

_AT_MOST = 501  # values of a bell; a wider one is approximated by as many, equally likely
_FIRST = 12  # sampled answers that are listed
_RUN = 8  # tokens of a run that are listed
_SHORT = 20  # characters of a time or an angle
_RATINGS = 200


class LabelRequest(TabRequest):
    """A label, the distribution around it, a tokenizer, and the number of answers to sample."""

    kind: Literal["number", "raters", "clock", "angle"] = "number"
    target: Annotated[str, Field(min_length=1, max_length=400)] = "99900"
    ratings: Annotated[str, Field(min_length=1, max_length=1000)] = "3, 4, 4, 5"
    shape: Shape = "gaussian"
    unit: Literal["percent", "absolute"] = "percent"  # of a number's width; minutes of a time, degrees of an angle
    width: Annotated[float, Field(ge=0, le=1e300)] = 5.0
    tokenizer: TokenizerName = "one"
    branches: Annotated[int, Field(ge=1, le=8)] = 5
    given: bool = False  # show probabilities given the prefix instead of those of the prefix itself
    draws: Annotated[int, Field(ge=0, le=10_000)] = 0
    seed: Annotated[int, Field(ge=0, le=999_999)] = 0


def compute(request: LabelRequest) -> dict[str, object]:
    """Return the token tree of the label's distribution, and how often sampled answers take each branch."""
    tokens = number_tokens(request.tokenizer)
    first = LabelRequest()
    answers, paths, texts = _drawn(request.model_copy(update={"branches": first.branches, "given": first.given}))
    label = () if request.kind == "raters" else paths.get(request.target.strip(), ())
    tree = BranchTree(TokenTrie(paths.values(), answers.probabilities), request.branches, label)
    frequencies = tree.frequencies([paths[text] for text in texts]) if texts else {}
    return {
        "tokenizers": listed_tokenizers(),
        "tree": _described(tree.root, None, tokens, frequencies, label),
        "values": len(answers),
        "represented": len(answers) == _AT_MOST,
        "numbers": _numbers(request, answers),
        "drawn": texts[:_FIRST],
    }


@lru_cache(maxsize=16)
def _drawn(request: LabelRequest) -> tuple[AnswerDistribution, dict[str, Path], list[str]]:
    """Return the label's distribution, the tokens of each answer, and sampled answers; cached while only the view changes."""
    answers = _answers(request)
    paths = map(tuple, number_tokens(request.tokenizer).encode(answers.texts))
    rng = np.random.default_rng(request.seed)
    return answers, dict(zip(answers.texts, paths, strict=True)), [answers.draw(rng) for _ in range(request.draws)]


def _answers(request: LabelRequest) -> AnswerDistribution:
    """Return the label's distribution, from :mod:`numerate.targets`."""
    if request.kind == "raters":
        return Ratings()(_ratings(request.ratings))
    label, width, shape = request.target.strip(), repr(request.width), request.shape
    if request.kind == "number":
        _check_plain(label)
        if request.unit == "percent":
            return Bell(relative=repr(request.width / 100), shape=shape, at_most=_AT_MOST)(label)
        return Bell(width=width, shape=shape, at_most=_AT_MOST)(label)
    if len(label) > _SHORT:
        raise ValueError(f"The target has {len(label)} characters: expected at most {_SHORT} for a time or an angle.")
    if request.kind == "clock":
        return _clock(label, width, shape)
    _check_plain(label)
    return CircularBell.angle(width=width, shape=shape, at_most=_AT_MOST)(label)


def _clock(label: str, width: str, shape: Shape) -> AnswerDistribution:
    try:
        return CircularBell.clock(width, hours=24, shape=shape, at_most=_AT_MOST)(label)
    except ValueError:
        raise ValueError(f"target={label!r} is not a time of day: expected 23:58 or 14:55:30.") from None


def _check_plain(label: str) -> None:
    try:
        plain = not Notation.of(label).power
    except ValueError:
        plain = False
    if not plain:
        raise ValueError(f"target={label[:60]!r} is not a plain number: expected digits, such as 99900, 84.50, -7 or 1,250.")


def _ratings(text: str) -> str:
    """Return a list separated by commas or spaces as the text that :class:`Ratings` reads."""
    given = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not 1 <= len(given) <= _RATINGS:
        raise ValueError(f"ratings has {len(given)} values: expected 1 to {_RATINGS} numbers, such as 3, 4, 4, 5.")
    for rating in given:
        try:
            plain = not Notation.of(rating).power
            json.loads(rating)
        except ValueError:
            plain = False
        if not plain:
            raise ValueError(f"{rating[:40]!r} is not a rating: expected numbers, such as 3, 4, 4, 5.")
    return f"[{', '.join(given)}]"


def _numbers(request: LabelRequest, answers: AnswerDistribution) -> dict[str, str] | None:
    """Return median and 90 % interval; None on a circle."""
    if request.kind not in ("number", "raters"):
        return None
    values = [Notation.of(text).value for text in answers.texts]
    distribution = NumberDistribution(values, answers.probabilities)
    low, high = distribution.interval(0.9)
    return {"median": shortened(distribution.median), "low": shortened(low), "high": shortened(high)}


def _described(
    branch: Branch, parent: Branch | None, tokens: NumberTokens, frequencies: dict[Branch, float], label: Path
) -> dict[str, object]:
    """Return a branch and its descendants as JSON."""
    before = 1.0 if parent is None else frequencies.get(parent, 0.0)
    frequency = frequencies.get(branch)
    return {
        "tokens": [tokens.texts[token_id] for token_id in branch.tokens[:_RUN]],
        "longer": max(branch.run - _RUN, 0),
        "ends": not branch.others and branch.path[-1:] == (0,),
        "share": branch.share,
        "probability": branch.probability,
        "frequency": frequency,
        "frequency_share": frequency / before if frequency is not None and before else None,
        "others": branch.others,
        "cut": branch.cut,
        "label": not branch.others and bool(label) and label[: len(branch.path)] == branch.path,
        "branches": [_described(below, branch, tokens, frequencies, label) for below in branch.branches],
    }
