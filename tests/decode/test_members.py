"""Several models, or adapters of one, are asked as a pool: against brute force, and against each of them alone."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import peft
import pytest
import torch
from tests.decode.test_model import INPUTS, PROMPTS, Fixed, Tokens, brute_force, masses_of, small
from tests.decode.test_model import TOKENS as TEXTS

from numerate.decode import NumberGrammar, distribution, interval, number
from numerate.decode.members import NoNumberError
from numerate.distribution import pool

DIGITS = TEXTS["one digit"]
TOKENS = Tokens(DIGITS)
GRAMMAR = NumberGrammar(digits=(1, 2), decimals=(0, 1), leading_zeros=True, negative_zero=True)
ALL: dict[str, Any] = {"grammar": GRAMMAR, "width": None, "covered": 1}


def models(count: int = 3) -> list[Any]:
    return [small(DIGITS, seed=seed) for seed in range(count)]


def test_a_pool_of_models_equals_brute_force() -> None:
    members = models()
    alone = [[brute_force(model, [i for i in prompt if i], DIGITS, 2, 1) for model in members] for prompt in PROMPTS.tolist()[:2]]
    for weights in (None, [1, 3, 0.5]):
        found = distribution(members, INPUTS, TOKENS, weights=weights, **ALL)
        shares = torch.tensor(weights or [1, 1, 1]).double()
        for masses, one in zip(alone, found, strict=False):
            joint: dict[Any, float] = defaultdict(float)
            for share, own in zip((shares / shares.sum()).tolist(), masses, strict=True):
                for value, mass in own.items():
                    joint[value] += share * mass
            got = masses_of(one)
            for key in joint.keys() | got.keys():
                assert got.get(key, 0.0) == pytest.approx(joint.get(key, 0.0), abs=1e-6), (weights, key)


def test_numbers_and_intervals_are_those_of_the_pool() -> None:
    members, search = models(), {"grammar": GRAMMAR, "width": 6}
    alone = [distribution(model, INPUTS, TOKENS, **search) for model in members]
    pooled = [pool(list(one)) for one in zip(*alone, strict=True)]
    assert distribution(members, INPUTS, TOKENS, **search) == pooled
    assert number(members, INPUTS, TOKENS, max_no_number=1, **search) == [float(one.median) for one in pooled]
    low, high = pooled[0].interval(0.8)
    assert interval(members, INPUTS, TOKENS, 0.8, max_no_number=1, **search)[0] == (float(low), float(high))
    own = [Tokens(DIGITS) for _ in members]
    assert distribution(tuple(members), INPUTS, own, **search) == pooled
    assert distribution(members[:1], INPUTS, TOKENS, **search) == alone[0]


def test_progress_counts_the_prompts_of_all_members() -> None:
    calls: list[tuple[int, int]] = []
    distribution(models(2), INPUTS, TOKENS, batch_size=2, progress=lambda done, total: calls.append((done, total)), **ALL)
    assert calls == [(2, 6), (3, 6), (5, 6), (6, 6)]


@pytest.fixture
def adapted() -> Any:
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(small(DIGITS), config, adapter_name="one")
    model.add_adapter("two", config)
    model.add_adapter("three", config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_(0, 1, generator=torch.Generator().manual_seed(sum(map(ord, name))))
    return model.eval()


def test_adapters_of_one_model(adapted: Any) -> None:
    alone = []
    for name in ("two", "three"):
        adapted.set_adapter(name)
        alone.append(distribution(adapted, INPUTS, TOKENS, **ALL))
    assert alone[0] != alone[1]
    adapted.set_adapter("one")
    before = {name: one.requires_grad for name, one in adapted.named_parameters()}
    found = distribution(adapted, INPUTS, TOKENS, adapters=["two", "three"], weights=[2, 1], **ALL)
    for one, members in zip(found, zip(*alone, strict=True), strict=True):
        expected = pool(list(members), [2, 1])
        assert one.values == expected.values
        np.testing.assert_allclose(one.probabilities, expected.probabilities, atol=1e-6)
    assert adapted.active_adapter == "one"
    assert {name: one.requires_grad for name, one in adapted.named_parameters()} == before


def test_the_adapter_is_restored_after_an_error(adapted: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        distribution(adapted, INPUTS, TOKENS, adapters=["two", "three"], progress=lambda done, total: 1 // 0)
    assert adapted.active_adapter == "one"


def test_a_member_without_a_number_counts_as_no_number() -> None:
    silent = Fixed(DIGITS, {3: 0.0}, others=-math.inf)
    speaking = small(DIGITS)
    alone = distribution(speaking, INPUTS, TOKENS, **ALL)
    found = distribution([speaking, silent], INPUTS, TOKENS, **ALL)
    for one, other in zip(found, alone, strict=True):
        assert one.values == other.values
        assert one.covered == pytest.approx(other.covered / 2)
        assert one.no_number == pytest.approx(other.no_number / 2 + 0.5)
    with pytest.raises(NoNumberError, match=r"prompts\[0\]") as error:
        distribution([silent, silent], INPUTS, TOKENS, **ALL)
    assert error.value.found == [None] * 3


def test_refusals(adapted: Any) -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "empty list"),
        (models(2), {"weights": [1]}, r"weights has shape \(1,\) for 2 models"),
        (models(2), {"adapters": ["a"]}, "with 2 models"),
        (models(1), {"adapters": ["a"]}, "without adapters"),
        (adapted, {"adapters": "a"}, "a list of names"),
        (adapted, {"adapters": []}, "expected one or more of one, two, three"),
        (adapted, {"adapters": ["one", "four"]}, "expected one or more of one, two, three"),
    ]
    for model, options, message in cases:
        with pytest.raises(ValueError, match=message):
            distribution(model, INPUTS, TOKENS, **options)
    with pytest.raises(ValueError, match="tokenizer has 1 entries for 2 models"):
        distribution(models(2), INPUTS, [TOKENS])
