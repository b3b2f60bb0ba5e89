"""Adapters of one model in mixed batches: as one after the other, in fewer forward passes, and the model stays as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import peft
import pytest
import torch
from tests.decode.sweep import GRAMMAR, TOKENS, left_padded, prepare, row_of, sharpen
from tests.decode.test_model import INPUTS, PROMPTS, Fixed, Tokens, brute_force, masses_of
from tests.decode.test_model import TOKENS as TEXTS
from tests.decode.test_model import small as small_model
from tests.decode.test_rows import REPRESENTATIVE, by_class
from tests.integrations.trainers.architectures import ATTEMPTS, batches, build

from numerate.decode import NumberGrammar, distribution, interval, member_distributions, number
from numerate.decode.members import NoNumberError
from numerate.decode.mixed import can_mix
from numerate.decode.rows import ignores_padding
from numerate.distribution import NumberDistribution, pool
from numerate.formats import NumberFormat

NAMES = ["one", "two", "three"]
MIXED = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "Qwen2ForCausalLM",
    "MistralForCausalLM",
    "Gemma2ForCausalLM",
    "T5ForConditionalGeneration",
)
"""Models that peft can mix; others may have hidden states of all rows in one dimension, or experts that take some of them."""

TARGETS = {"MambaForCausalLM": ["in_proj", "x_proj"]}
DIGITS = TEXTS["one digit"]
TOKENS_OF = Tokens(DIGITS)
EVERYTHING: dict[str, Any] = {"width": None, "covered": 1}


def adapted(model: Any, names: list[str] = NAMES, **settings: Any) -> Any:
    """Return the model with random adapters, the first of them active."""
    config = peft.LoraConfig(r=2, **{"target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings})
    model = peft.get_peft_model(model, config, adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name or "modules_to_save" in name:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(sum(map(ord, name))))
    return model.eval()


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """Count the rows of each forward pass."""
    calls: list[int] = []
    hook = model.get_base_model().register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        hook.remove()


def one_at_a_time(model: Any, prompts: Any, tokens: Any, names: list[str], **search: Any) -> list[list[NumberDistribution]]:
    before, found = model.active_adapter, []
    for name in names:
        model.set_adapter(name)
        found.append(distribution(model, prompts, tokens, **search))
    model.set_adapter(before)
    return [list(row) for row in zip(*found, strict=True)]


def difference(found: Any, expected: Any) -> float:
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        ours, theirs = masses_of(one), masses_of(other)
        worst = max([worst, *(abs(ours.get(key, 0.0) - theirs.get(key, 0.0)) for key in ours.keys() | theirs.keys())])
    return worst


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a model with adapters, and prompts of several lengths if it can tell padding from text."""
    architecture, problems = by_class(name), list[Exception]()
    for attempt in ATTEMPTS:
        try:
            model = build(architecture, torch.float32, attempt)
            batch = next(iter(batches(architecture, model, torch.float32)))[1][0]
            prepare(model)
            sharpen(model, batch, 0.01)
        except Exception as error:
            problems.append(error)
            continue
        inputs = row_of(model, batch, 0) if ignores_padding(model) else left_padded(model, batch)
        return adapted(model, target_modules=TARGETS.get(name, "all-linear")), inputs
    raise AssertionError(problems)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", dict.fromkeys((*MIXED, *REPRESENTATIVE)))
def test_mixed_batches_equal_one_at_a_time(name: str) -> None:
    model, inputs = built(name)
    search: dict[str, Any] = {"grammar": GRAMMAR, **EVERYTHING}
    with counted(model) as alone:
        expected = one_at_a_time(model, inputs, TOKENS, NAMES, **search)
    with counted(model) as mixed:
        found = member_distributions(model, inputs, TOKENS, adapters=NAMES, **search)
    for ours, theirs in zip(found, expected, strict=True):
        assert difference(ours, theirs) < 1e-5
        assert difference(theirs[1:], theirs[:-1]) > 1e-4  # or mixed-up adapters would not be noticed
    if name in MIXED:
        assert len(mixed) == len(alone) / len(NAMES)
    else:
        assert len(mixed) <= len(alone) + 1  # the first pass of a batch finds out


@pytest.fixture
def model() -> Any:
    return adapted(small_model(DIGITS), target_modules=["q_proj", "v_proj", "down_proj"])


def test_a_pool_of_adapters_equals_brute_force(model: Any) -> None:
    grammar = NumberGrammar(digits=1, decimals=(0, 1), leading_zeros=True, negative_zero=True)
    found = distribution(model, INPUTS, TOKENS_OF, adapters=NAMES, weights=[1, 3, 0.5], grammar=grammar, **EVERYTHING)
    for prompt, one in zip(PROMPTS.tolist()[:2], found, strict=False):
        joint = dict[Any, float]()
        for share, name in zip((1 / 4.5, 3 / 4.5, 0.5 / 4.5), NAMES, strict=True):
            model.set_adapter(name)
            for value, mass in brute_force(model, [i for i in prompt if i], DIGITS, 1, 1).items():
                joint[value] = joint.get(value, 0.0) + share * mass
        got = masses_of(one)
        for key in joint.keys() | got.keys():
            assert got.get(key, 0.0) == pytest.approx(joint.get(key, 0.0), abs=1e-6), key


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7, 64])
def test_any_batch_size(model: Any, batch_size: int) -> None:
    """As many adapters at a time as fit into a batch; never more forward passes than one after the other."""
    prompts = ["xy", "xyyx", "yxx", "y", "yxyx"]
    search: dict[str, Any] = {"width": 5, "batch_size": batch_size, "seed": [3, 1, 4, 1, 5]}
    with counted(model) as alone:
        expected = one_at_a_time(model, prompts, TOKENS_OF, NAMES, **search)
    seen: list[tuple[int, int]] = []
    with counted(model) as mixed:
        found = member_distributions(
            model, prompts, TOKENS_OF, adapters=NAMES, progress=lambda *done: seen.append(done), **search
        )
    assert max(map(difference, found, expected)) < 1e-5
    steps = {1: 15, 2: 3 + 3 + 2, 3: 6, 4: 3 + 1, 7: 3, 64: 1}[batch_size]
    assert len(mixed) < len(alone) if steps < 3 * math.ceil(5 / batch_size) else len(mixed) == len(alone)
    assert len(seen) == steps
    assert seen == sorted(seen)
    assert seen[-1] == (15, 15)


@pytest.mark.parametrize("format", ["plain", "spaced", "reversed", NumberFormat("padded", 2, 1)], ids=str)
@pytest.mark.parametrize("width", [2, None])
def test_formats_and_widths(model: Any, format: Any, width: int | None) -> None:
    grammar = NumberGrammar(digits=(1, 2), decimals=(0, 1))
    search: dict[str, Any] = {"format": format, "width": width, "grammar": grammar, "memory": 50_000}
    expected = one_at_a_time(model, INPUTS, TOKENS_OF, NAMES, **search)
    found = member_distributions(model, INPUTS, TOKENS_OF, adapters=NAMES, **search)
    assert max(map(difference, found, expected)) < 1e-5


def test_decisions_are_those_of_the_pool(model: Any) -> None:
    rows = member_distributions(model, INPUTS, TOKENS_OF, adapters=NAMES)
    pools = [pool(row, [3, 2, 1]) for row in rows]
    assert distribution(model, INPUTS, TOKENS_OF, adapters=NAMES, weights=[3, 2, 1]) == pools
    search: dict[str, Any] = {"adapters": NAMES, "weights": [3, 2, 1], "max_no_number": 1}
    assert number(model, INPUTS, TOKENS_OF, "mean", **search) == [float(one.decide("mean")) for one in pools]
    ends = [tuple(map(float, one.interval(0.5))) for one in pools]
    assert interval(model, INPUTS, TOKENS_OF, 0.5, **search) == ends


def test_images_of_each_prompt_are_repeated() -> None:
    """A picture for each prompt, in the first dimension, so that each adapter sees its own copy."""
    model, inputs = built("LlavaForConditionalGeneration")
    assert "pixel_values" in inputs
    with counted(model) as alone:
        distribution(model, inputs, TOKENS, grammar=GRAMMAR, **EVERYTHING)
    with counted(model) as mixed:
        distribution(model, inputs, TOKENS, adapters=NAMES, grammar=GRAMMAR, **EVERYTHING)
    assert len(mixed) == len(alone)


def with_dora() -> Any:
    return adapted(small_model(DIGITS), use_dora=True)


def merged() -> Any:
    model = adapted(small_model(DIGITS))
    model.merge_adapter(["one"])
    return model


def with_a_copied_head() -> Any:
    return adapted(small_model(DIGITS), target_modules=["q_proj"], modules_to_save=["lm_head"])


def of_another_kind() -> Any:
    config = peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM", init_ia3_weights=False
    )
    model = peft.get_peft_model(small_model(DIGITS), config, adapter_name="one")
    model.add_adapter("two", config)
    model.add_adapter("three", config)
    return model.eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [with_dora, merged, with_a_copied_head, of_another_kind])
def test_what_peft_cannot_mix_is_asked_one_after_the_other(make: Any) -> None:
    model = make()
    assert not can_mix(model, NAMES)
    with counted(model) as mixed:
        found = member_distributions(model, INPUTS, TOKENS_OF, adapters=NAMES)
    with counted(model) as alone:
        expected = one_at_a_time(model, INPUTS, TOKENS_OF, NAMES)
    assert max(map(difference, found, expected)) < 1e-5
    assert len(mixed) == len(alone)


@pytest.mark.parametrize("option", [{"logits_processor": []}, {"cache_implementation": "static"}], ids=str)
def test_options_of_generate(model: Any, option: dict[str, Any]) -> None:
    found = member_distributions(model, INPUTS, TOKENS_OF, adapters=NAMES, **option)
    assert max(map(difference, found, one_at_a_time(model, INPUTS, TOKENS_OF, NAMES, **option))) < 1e-5


@pytest.mark.parametrize("active", ["two", ["one", "three"]], ids=str)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_the_model_stays_as_it_was(model: Any, active: Any, fails: bool, batch_size: int) -> None:
    model.base_model.set_adapter(active)
    model.train()
    model.get_base_model().model.layers[1].eval()
    model.base_model.model.model.embed_tokens.weight.requires_grad_(True)

    def state() -> Any:
        flags = {name: one.requires_grad for name, one in model.named_parameters()}
        modes = [module.training for module in model.modules()]
        return flags, modes, model.active_adapters, [len(module._forward_pre_hooks) for module in model.modules()]

    before = state()
    ask = {"adapters": ["three", "one"], "batch_size": batch_size}
    if fails:
        with pytest.raises(ZeroDivisionError):
            distribution(model, INPUTS, TOKENS_OF, watch=lambda nodes, branches: 1 // 0, **ask)
    else:
        distribution(model, INPUTS, TOKENS_OF, **ask)
    assert state() == before


def test_a_member_without_a_number_is_an_error() -> None:
    silent = Fixed(DIGITS, {3: 0.0}, others=-math.inf)
    with pytest.raises(NoNumberError, match=r"prompts\[0\]: none of the 16 prefixes") as error:
        member_distributions([silent, small_model(DIGITS)], INPUTS, TOKENS_OF)
    assert [one is None for row in error.value.found for one in row] == [True, False] * 3
