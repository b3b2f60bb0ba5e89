"""Members of a pool: several models, or one model with several adapters, that are asked the same prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numerate.distribution import NumberDistribution, pool
from numerate.distribution.exact import check_masses
from numerate.distribution.shares import SHARES


class NoNumberError(ValueError):
    """No number has any probability after some prompts.

    ``found`` has what was found, None instead of these distributions; ``problems`` has why, by the index of the prompt.
    """

    def __init__(self, message: str, found: Sequence[Any] = (), problems: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.found, self.problems = [*found], dict(problems or {})


class Member(NamedTuple):
    """A model with its tokenizer, the adapter that is active while it is asked (None: those that are), and its weight."""

    model: Any
    tokenizer: Any
    adapter: str | None
    weight: float


def members_of(
    model: Any, tokenizer: Any, adapters: Sequence[str] | None = None, weights: npt.ArrayLike | None = None
) -> list[Member]:
    """Return the members of a pool: a single model is a pool of one.

    Models have one ``tokenizer`` or a list of their own; each of the ``adapters`` of a ``PeftModel`` is a member.
    """
    models = [*model] if isinstance(model, list | tuple) else [model]
    if not models:
        raise ValueError("model is an empty list: expected at least one model.")
    if adapters is not None:
        if len(models) > 1 or isinstance(adapters, str):
            raise ValueError(
                f"adapters={adapters!r} with {len(models)} models: expected a list of names, such as ['a', 'b'], and one "
                "PeftModel."
            )
        names = [*getattr(models[0], "peft_config", {})]
        if not names or not hasattr(models[0], "active_adapter"):
            raise ValueError(
                f"adapters={adapters!r}, and model is a {type(models[0]).__name__} without adapters: expected a PeftModel."
            )
        if not adapters or not {*adapters} <= {*names}:
            raise ValueError(f"adapters={adapters!r} are not adapters of the model: expected one or more of {', '.join(names)}.")
        models *= len(adapters)
    chosen: Sequence[str | None] = adapters or [None] * len(models)
    tokenizers = [*tokenizer] if isinstance(tokenizer, list | tuple) else [tokenizer] * len(models)
    if len(tokenizers) != len(models):
        raise ValueError(
            f"tokenizer has {len(tokenizers)} entries for {len(models)} models: expected one for all, or one for each."
        )
    masses = check_masses("weights", np.ones(len(models)) if weights is None else weights, len(models), "model")
    return [Member(*member) for member in zip(models, tokenizers, chosen, masses.tolist(), strict=True)]


@contextmanager
def active(member: Member) -> Iterator[None]:
    """Ask with the member's adapter; then leave the model as it was."""
    if member.adapter is None:
        yield
        return
    model, trained = member.model, {one: one.requires_grad for one in member.model.parameters()}
    before, several = model.active_adapter, model.active_adapters
    try:
        model.set_adapter(member.adapter)
        yield
    finally:
        model.set_adapter(before)
        if several != [before]:
            model.base_model.set_adapter(several)
        for parameter, flag in trained.items():
            parameter.requires_grad_(flag)


def pooled(members: Sequence[Member], answers: Sequence[NumberDistribution | None]) -> NumberDistribution | None:
    """Return the linear pool of the members' distributions; the mass of a member without one is ``no_number``."""
    if len(members) == 1:
        return answers[0]
    pairs = zip(answers, (member.weight for member in members), strict=True)
    found = [(answer, weight) for answer, weight in pairs if answer is not None and weight > 0]
    if not found:
        return None
    mixture = pool([answer for answer, _ in found], [weight for _, weight in found])
    lacking = 1 - sum(weight for _, weight in found) / sum(member.weight for member in members)
    if lacking <= 0:
        return mixture
    shares = {name: (1 - lacking) * getattr(mixture, name) for name in SHARES}
    shares["no_number"] += lacking
    return NumberDistribution(mixture.values, mixture.probabilities, **shares)


def all_pooled(members: Sequence[Member], rows: Sequence[Sequence[NumberDistribution | str]]) -> list[NumberDistribution]:
    """Return the pool after each prompt, from the members' distributions or why there is none; raise if no member has one."""
    result = [pooled(members, [None if isinstance(one, str) else one for one in row]) for row in rows]
    problems = {
        index: next(why for why in rows[index] if isinstance(why, str)) for index, one in enumerate(result) if one is None
    }
    if problems:
        raise NoNumberError(next(iter(problems.values())), result, problems)
    return [one for one in result if one is not None]
