"""number and interval: what the distribution decides, for every rule and kind of model; None where text is likelier."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.decode.sweep import GRAMMAR, TOKENS, left_padded, prepare
from tests.decode.test_model import INPUTS, Fixed, Tokens, small
from tests.decode.test_model import TOKENS as TEXTS
from tests.integrations.trainers.architectures import ATTEMPTS, architectures, batches, build
from tests.samples import refused
from torch import Tensor

import numerate as nm
from numerate.decode import NumberGrammar, distribution, interval, number
from numerate.decode.members import NoNumberError
from numerate.distribution.decision_rules import RULE_NAMES

DIGITS = TEXTS["one digit"]
ANYWAY: dict[str, Any] = {"max_no_number": 1}  # the models' weights are random


def order_cost(prediction: float, truth: float) -> float:
    return 3 * max(truth - prediction, 0) + max(prediction - truth, 0)


RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (name, {}) for name in RULE_NAMES if name != "within"},
    "within": ("within", {"tolerance": "0.5"}),
    "within a share": ("within", {"relative_tolerance": 0.2, "candidates": [1, 7.5, 70]}),
    "relative with a floor": ("relative", {"floor": 2}),
    "not trimmed": ("mean", {"trim": False}),
    "cost": (order_cost, {}),
    "cost of candidates": (order_cost, {"candidates": (0.5, 17)}),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_that_of_the_distribution(name: str) -> None:
    metric, options = RULES[name]
    model = small(DIGITS)
    search: dict[str, Any] = {"width": 6, "seed": 3, "grammar": NumberGrammar(digits=(1, 3), decimals=(0, 1))}
    found = distribution(model, INPUTS, Tokens(DIGITS), **search)
    decided = number(model, INPUTS, Tokens(DIGITS), metric, **options, **ANYWAY, **search)
    assert decided == [float(one.decide(metric, **options)) for one in found]
    assert all(type(value) is float for value in decided)
    assert len({*decided}) > 1 or options.get("candidates")


def test_the_median_is_the_default() -> None:
    found = distribution(small(DIGITS), INPUTS, Tokens(DIGITS))
    assert number(small(DIGITS), INPUTS, Tokens(DIGITS), **ANYWAY) == [float(one.median) for one in found]


@pytest.mark.parametrize("level", [0.9, 0.2, 1])
def test_intervals_are_those_of_the_distribution(level: float) -> None:
    found = distribution(small(DIGITS), INPUTS, Tokens(DIGITS), width=6)
    ends = interval(small(DIGITS), INPUTS, Tokens(DIGITS), level, width=6, **ANYWAY)
    assert ends == [tuple(map(float, one.interval(level))) for one in found]
    assert all(type(value) is float for pair in ends if pair is not None for value in pair)


def test_candidates_may_be_an_iterator() -> None:
    decided = [
        number(small(DIGITS), INPUTS, Tokens(DIGITS), order_cost, candidates=made, **ANYWAY) for made in ([2, 40], iter([2, 40]))
    ]
    assert decided[0] == decided[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
        "Gemma3ForCausalLM",
        "MambaForCausalLM",
        "RwkvForCausalLM",
        "T5ForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "LlavaForConditionalGeneration",
    ],
)
def test_models_of_any_kind_in_training(name: str, dtype: torch.dtype) -> None:
    """Decoders, encoder-decoders, sound and pictures as what a processor returns, with dropout on."""
    architecture = next(one for one in architectures() if one.model_class == name)
    model = build(architecture, dtype, ATTEMPTS[0])
    prepare(model)
    inputs = left_padded(model, next(iter(batches(architecture, model, dtype)))[1][0])
    if name == "RwkvForCausalLM":  # takes padding for text
        inputs = {key: value[:1] for key, value in inputs.items() if key != "attention_mask"}
    model.train()
    search: dict[str, Any] = {"grammar": GRAMMAR, "width": None, "covered": 1}
    found = distribution(model, inputs, TOKENS, **search)
    assert number(model, inputs, TOKENS, "mean", **ANYWAY, **search) == [float(one.decide("mean")) for one in found]
    assert interval(model, inputs, TOKENS, 0.5, **ANYWAY, **search) == [tuple(map(float, one.interval(0.5))) for one in found]
    assert model.training


def test_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    plain = small(DIGITS)
    mean: dict[str, Any] = {"metric": "mean", **ANYWAY}
    expected = number(plain, INPUTS, Tokens(DIGITS), **mean)
    adapted = get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False))
    found = distribution(adapted, INPUTS, Tokens(DIGITS))
    assert number(adapted, INPUTS, Tokens(DIGITS), **mean) == [float(one.decide("mean")) for one in found] != expected


def silent(input_ids: Tensor, scores: Tensor) -> Tensor:
    """After ``y``, nothing but a word is possible."""
    scores[input_ids[:, -1] == 2] = torch.where(torch.arange(scores.shape[1]) == 1, 0.0, -math.inf)
    return scores


def test_none_where_no_number_has_a_probability() -> None:
    model, tokens = small(DIGITS), Tokens(DIGITS)
    search: dict[str, Any] = {"logits_processor": [silent], "batch_size": 1}
    (first, third) = distribution(model, ["xyx", "yx"], tokens, **search)
    prompts, seen = ["xyx", "xy", "yx"], list[tuple[int, int]]()
    with pytest.raises(NoNumberError, match=r"prompts\[1\].*widen grammar") as caught:
        distribution(model, prompts, tokens, progress=lambda *done: seen.append(done), **search)
    assert [one and one.values[:2] for one in caught.value.found] == [first.values[:2], None, third.values[:2]]
    assert seen[-1] == (3, 3)
    kept = pickle.loads(pickle.dumps(caught.value))  # as processes and Ray send it
    assert (str(kept), kept.found) == (str(caught.value), caught.value.found)
    decided = number(model, prompts, tokens, **ANYWAY, **search)
    assert [one is None for one in decided] == [False, True, False]
    ends = interval(model, prompts, tokens, 0.5, **ANYWAY, **search)
    assert [one is None for one in ends] == [False, True, False]


@pytest.mark.parametrize(("odds", "expected"), [(0.45, 1.0), (0.55, None)])
def test_none_where_text_is_likelier_than_a_number(odds: float, expected: float | None) -> None:
    scores = {1: math.log(odds), 5: math.log(1 - odds)}  # a word, and the digit 1
    model = Fixed(DIGITS, scores, others=-math.inf)
    one_digit: dict[str, Any] = {"grammar": NumberGrammar(digits=1, decimals=0)}
    arguments = (model, ["x"], Tokens(DIGITS))
    assert number(*arguments, "mode", **one_digit) == [expected]
    assert interval(*arguments, **one_digit) == [None if expected is None else (1.0, 1.0)]
    assert number(*arguments, "mode", **one_digit, max_no_number=odds + 0.01) == [1.0]
    assert interval(*arguments, **one_digit, max_no_number=odds - 0.01) == [None]


def test_a_single_text_is_a_list_of_one() -> None:
    model, tokens = small(DIGITS), Tokens(DIGITS)
    assert distribution(model, "xyx", tokens) == distribution(model, ["xyx"], tokens)
    assert number(model, "xyx", tokens, **ANYWAY) == number(model, ["xyx"], tokens, **ANYWAY)
    assert interval(model, "xyx", tokens, **ANYWAY) == interval(model, ("xyx",), tokens, **ANYWAY)
    assert number(model, [], tokens) == []
    assert interval(model, [], tokens) == []


@pytest.mark.parametrize(
    ("call", "change", "kind", "parts"),
    [
        (number, {"metric": "medain"}, ValueError, ["metric='medain'", "Did you mean 'median'"]),
        (number, {"metric": "within"}, ValueError, ["tolerance=None", "exactly one"]),
        (number, {"tolerance": 5}, ValueError, ["tolerance=5", "metric='median'"]),
        (number, {"metric": "within", "tolerance": 1, "candidates": 7}, TypeError, ["candidates"]),
        (number, {"max_no_number": 1.5}, ValueError, ["max_no_number=1.5"]),
        (interval, {"level": 90}, ValueError, ["level=90"]),
        (interval, {"max_no_number": -1}, ValueError, ["max_no_number=-1"]),
    ],
)
def test_wrong_arguments_are_refused_before_the_search(
    call: Any, change: dict[str, Any], kind: type[Exception], parts: list[str]
) -> None:
    model = small(DIGITS)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was asked"))
    refused(kind, parts, lambda: call(model, ["x"], Tokens(DIGITS), **change))


def test_other_errors_are_those_of_the_distribution() -> None:
    nan = Fixed(DIGITS, {5: math.nan})
    refused(ValueError, ["NaN"], lambda: number(nan, ["x"], Tokens(DIGITS)))
    refused(ValueError, ["width=0"], lambda: interval(small(DIGITS), ["x"], Tokens(DIGITS), width=0))


def test_the_names_are_functions_whatever_was_imported_before() -> None:
    from numerate.decode import number_and_interval

    assert nm.decode.number is number_and_interval.number
    assert nm.decode.interval is number_and_interval.interval
    assert np.isfinite(nm.decode.number(small(DIGITS), ["x"], Tokens(DIGITS), **ANYWAY)[0] or 0)
