"""Rows of any architecture and in any mode: the search with the model's cache is equal to brute force without."""

from __future__ import annotations

import copy
import csv
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from tests.decode.brute_force import distance, enumerate_numbers
from tests.decode.sweep import GRAMMAR, PATTERN, TOKENS, alone, check, left_padded, prepare, row_of, search
from tests.integrations.trainers.architectures import (
    ATTEMPTS,
    PAD,
    ROWS,
    WORDS,
    Architecture,
    Attempt,
    architectures,
    batches,
    build,
)
from torch import Tensor, nn
from transformers import DynamicCache

from numerate.decode import DecideNumbers, NumberGrammar, distribution
from numerate.decode.rows import Rows, _of_rows, _selected, any_shape, evaluating, ignores_padding

ROOT = Path(__file__).parents[2]
REPRESENTATIVE = {  # inputs, cache, padding, what it is equal to
    "LlamaForCausalLM": ("text", "yes", True, "forward"),
    "GPT2LMHeadModel": ("text", "yes", True, "forward"),
    "MistralForCausalLM": ("text", "yes", True, "forward"),  # the window is shorter than the prompts
    "Gemma2ForCausalLM": ("text", "yes", True, "forward"),
    "Gemma3ForCausalLM": ("text", "yes", True, "forward"),
    "BloomForCausalLM": ("text", "yes", True, "forward"),
    "OPTForCausalLM": ("text", "yes", True, "forward"),
    "MixtralForCausalLM": ("text", "yes", True, "forward"),
    "MambaForCausalLM": ("text", "yes", True, "forward"),
    "JambaForCausalLM": ("text", "yes", True, "forward"),
    "Qwen3NextForCausalLM": ("text", "yes", True, "forward"),
    "MiniMaxForCausalLM": ("text", "yes", True, "forward"),  # reorder_cache leaves out part of its cache
    "DeepseekV4ForCausalLM": ("text", "yes", True, "forward"),  # likewise
    "Qwen4ExpForCausalLM": ("text", "yes", True, "forward"),  # part of its cache has rows in its second dimension
    "RecurrentGemmaForCausalLM": ("text", "no", True, "forward"),  # part of its cache is inside the model
    "RwkvForCausalLM": ("text", "no", False, "forward"),
    "xLSTMForCausalLM": ("text", "no", True, "forward"),
    "BartForCausalLM": ("text", "yes", False, "forward"),
    "RobertaForCausalLM": ("text", "yes", True, "generate"),
    "T5ForConditionalGeneration": ("text", "yes", True, "forward"),
    "BartForConditionalGeneration": ("text", "yes", True, "forward"),
    "WhisperForConditionalGeneration": ("sound", "yes", True, "forward"),
    "LlavaForConditionalGeneration": ("image", "yes", True, "forward"),
    "Qwen2VLForConditionalGeneration": ("image", "yes", True, "forward"),
    "PaliGemmaForConditionalGeneration": ("image", "yes", True, "generate with cache"),
}


def by_class(name: str) -> Architecture:
    if not hasattr(transformers, name) and Version(transformers.__version__) < Version("5.22"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return next(architecture for architecture in architectures() if architecture.model_class == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_representative_models(name: str) -> None:
    verdict = check(by_class(name))
    assert verdict.status == "exact", verdict.detail
    assert (verdict.inputs, verdict.cache, verdict.padding, verdict.reference) == REPRESENTATIVE[name]


def small(name: str = "LlamaForCausalLM", scale: float = 4, attempt: Attempt = ATTEMPTS[0]) -> tuple[Any, dict[str, Tensor]]:
    """A model whose next token depends on the text, and two prompts with padding on the right."""
    architecture = by_class(name)
    model = build(architecture, torch.float32, attempt)
    prepare(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(scale)
    return model, next(iter(batches(architecture, model, torch.float32)))[1][0]


def brute_force(model: nn.Module, batch: dict[str, Tensor]) -> list[dict[Any, float]]:
    with torch.no_grad():
        return [enumerate_numbers(alone(model, batch, row), TOKENS, PATTERN) for row in range(ROWS)]


def error(found: list[Any], expected: list[dict[Any, float]]) -> float:
    return max(map(distance, found, expected))


def test_the_check_sees_rows_that_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rows.select
    monkeypatch.setattr(Rows, "select", lambda rows, index: right(rows, index.flip(0)))
    assert check(by_class("LlamaForCausalLM")).status == "differs"


def test_training_mode_dropout_and_checkpointing_change_nothing() -> None:
    model, batch = small()
    expected = brute_force(model, batch)
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model.train()
    model.model.layers[0].mlp.eval()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    assert error(search(model, left_padded(model, batch)), expected) < 1e-5
    assert model.training
    assert model.model.layers[1].mlp.training
    assert not model.model.layers[0].mlp.training


def test_modes_come_back_after_an_error() -> None:
    model, _ = small()
    model.train()
    seen: list[bool] = []

    def fail() -> None:
        with evaluating(model):
            seen.extend(module.training for module in model.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(seen)
    assert all(module.training for module in model.modules())


def test_attention_of_cudnn_is_left_out_and_comes_back() -> None:
    model, batch = small()
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    search(model, left_padded(model, batch))
    assert seen == [False] * len(seen) != []
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION), any_shape():
        assert torch.backends.cuda.cudnn_sdp_enabled()  # nothing else would be left


@pytest.mark.parametrize(
    "change",
    [
        {"cache_implementation": "static"},
        {"cache_implementation": "offloaded"},
        {"use_cache": False},
        {"output_hidden_states": True, "return_dict_in_generate": True, "output_attentions": False},
        {"num_beams": 4},
        {"do_sample": True, "top_k": 1, "temperature": 0.1},
        {"eos_token_id": [2, 5, 24]},
        {"max_length": 5},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.filterwarnings("ignore")
def test_generation_configuration_does_not_matter(change: dict[str, Any]) -> None:
    model, batch = small()
    expected = brute_force(model, batch)
    for name, value in change.items():
        setattr(model.generation_config, name, value)
    before = copy.deepcopy(model.generation_config)
    assert error(search(model, left_padded(model, batch)), expected) < 1e-5
    assert model.generation_config == before


@pytest.mark.parametrize("option", [{"cache_implementation": "static"}, {"use_cache": False, "cache_implementation": None}])
@pytest.mark.filterwarnings("ignore")
def test_another_cache_on_request(option: dict[str, Any]) -> None:
    model, batch = small()
    found = distribution(model, left_padded(model, batch), TOKENS, grammar=GRAMMAR, width=None, covered=1, **option)
    assert error(found, brute_force(model, batch)) < 1e-5


def test_little_memory_with_a_cache_that_models_write_into() -> None:
    model, batch = small("MambaForCausalLM")
    given = left_padded(model, batch)
    found = distribution(model, given, TOKENS, grammar=GRAMMAR, width=30, covered=1, memory=1)  # one prompt after the other
    assert error(found, brute_force(model, batch)) < 1e-5


def test_what_belongs_to_rows() -> None:
    index = torch.tensor([1, 1, 0])
    rows, deep = torch.arange(4).reshape(2, 2), torch.arange(12).reshape(3, 2, 2)
    for name, value, expected in [
        ("attention_mask", rows, rows[index]),
        ("position_ids", rows, rows[index]),
        ("position_ids", deep, deep[:, index]),  # of multimodal models
        ("pixel_values", deep, deep),
        ("pixel_values", deep.transpose(0, 1), deep.transpose(0, 1)[index]),
        ("cache_position", torch.arange(5), torch.arange(5)),
        ("scale", torch.tensor(2), torch.tensor(2)),
    ]:
        assert torch.equal(_selected(name, value, index, 2), expected), name
    # Of a cache, a list of as many numbers as rows is none of them: for one prompt, it is a count.
    cache = {"keys": rows, "seen": torch.tensor([5, 6])}
    chosen = _of_rows(cache, index, 2)
    assert {name: value.tolist() for name, value in chosen.items()} == {"keys": [[2, 3], [2, 3], [0, 1]], "seen": [5, 6]}
    assert not {value.data_ptr() for value in chosen.values()} & {value.data_ptr() for value in cache.values()}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "RecurrentGemmaForCausalLM"])  # with a cache, and without
def test_embeddings_as_inputs(name: str) -> None:
    model, batch = small(name)
    ids = left_padded(model, batch)
    given = {"inputs_embeds": model.get_input_embeddings()(ids["input_ids"]).detach(), "attention_mask": ids["attention_mask"]}
    found = distribution(model, given, TOKENS, grammar=GRAMMAR, width=None, covered=1)
    assert error(found, brute_force(model, batch)) < 1e-5


def test_the_callers_cache_of_a_common_beginning() -> None:
    model, batch = small()
    given = row_of(model, batch, 0)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=given["input_ids"][:, :5], past_key_values=cache, use_cache=True)
    found = search(model, {**given, "past_key_values": cache})
    assert error(found, brute_force(model, batch)[:1]) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_half_precision_within_its_rounding(dtype: torch.dtype, tolerance: float) -> None:
    model, batch = small()
    expected = brute_force(model, batch)
    assert error(search(model.to(dtype), left_padded(model, batch)), expected) < tolerance


def test_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    model, batch = small()
    plain = brute_force(model, batch)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False))
    expected = brute_force(adapted, batch)
    found = search(adapted, left_padded(adapted, batch))
    assert error(found, expected) < 1e-5
    assert error(found, plain) > 1e-2


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_models() -> None:
    model, batch = small()
    expected = brute_force(model, batch)
    assert error(search(torch.compile(model), left_padded(model, batch)), expected) < 1e-5


@pytest.mark.parametrize(
    "setting", [{"repetition_penalty": 3.0}, {"suppress_tokens": [TOKENS["7"]]}, {"no_repeat_ngram_size": 1}]
)
@pytest.mark.filterwarnings("ignore")
def test_processors_of_the_configuration_apply(setting: dict[str, Any]) -> None:
    model, batch = small()
    plain = brute_force(model, batch)[0]
    for name, value in setting.items():
        setattr(model.generation_config, name, value)
    given = row_of(model, batch, 0)
    prompt = given["input_ids"].shape[1]

    def next_scores(ids: list[int]) -> Tensor:
        longer = torch.cat([given["input_ids"], torch.tensor([ids], dtype=torch.long)], 1)
        options = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True, "do_sample": False}
        return model.generate(input_ids=longer, **options).scores[0][0]

    expected = enumerate_numbers(next_scores, TOKENS, PATTERN)
    assert prompt > 1
    (found,) = search(model, given)
    assert distance(found, expected) < 1e-5
    assert distance(found, plain) > 1e-2


def test_methods_that_a_model_gives_its_cache_stay_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """RecurrentGemma does so in some releases; such a method has no name by which it could be copied."""
    model, batch = small("LlamaForCausalLM")
    batch = left_padded(model, batch)
    plain = search(model, batch)

    def _length(self: DynamicCache, layer_idx: int = 0) -> int:
        return DynamicCache.get_seq_length(self, layer_idx)

    def forward(**given: Any) -> Any:
        vars(given["past_key_values"]).setdefault("get_seq_length", MethodType(_length, given["past_key_values"]))
        return type(model).forward(model, **given)

    monkeypatch.setattr(model, "forward", forward)
    for found, expected in zip(search(model, batch), plain, strict=True):
        assert found.values == expected.values
        assert found.probabilities.tolist() == pytest.approx(expected.probabilities.tolist(), rel=1e-5)


def test_processors_of_rows_are_refused() -> None:
    model, batch = small("BlenderbotForConditionalGeneration")
    model.generation_config.encoder_no_repeat_ngram_size = 3
    with pytest.raises(ValueError, match="EncoderNoRepeatNGram.*pass encoder_no_repeat_ngram_size=0"):
        search(model, left_padded(model, batch))
    model.generation_config.encoder_no_repeat_ngram_size = 0
    with pytest.raises(ValueError, match="prefix_allowed_tokens_fn=None"):
        distribution(model, left_padded(model, batch), TOKENS, prefix_allowed_tokens_fn=lambda *_: [1])


class Words:
    """A tokenizer of digits and the word x."""

    pad_token_id, eos_token_id = PAD, 2
    all_special_ids = (PAD, 2)

    def __init__(self) -> None:
        self.added_tokens_decoder = dict[int, Any]()

    def get_vocab(self) -> dict[str, int]:
        return {**TOKENS, "x": WORDS, "y": WORDS + 1}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [self.get_vocab()[character] for character in text]}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BartForCausalLM", "BartForConditionalGeneration", "RwkvForCausalLM"])
def test_texts_of_several_lengths(name: str) -> None:
    model, _ = small(name)
    prompts = ["1xyx", "x", "yxx2yx", "yyyx", "xyxyxy"]
    together = distribution(model, prompts, Words(), grammar=GRAMMAR, width=None, covered=1)
    for prompt, found in zip(prompts, together, strict=True):
        (single,) = distribution(model, [prompt], Words(), grammar=GRAMMAR, width=None, covered=1)
        assert found.values == single.values
        assert found.covered == pytest.approx(single.covered, rel=1e-5)
        assert found.probabilities == pytest.approx(single.probabilities, rel=1e-5)


def test_padding_that_a_model_treats_as_text_is_refused() -> None:
    model, batch = small("BartForCausalLM")
    with pytest.raises(ValueError, match="BartForCausalLM treats padding as text.*list of texts"):
        search(model, left_padded(model, batch))


def test_pictures_that_cannot_be_selected_are_refused() -> None:
    model, batch = small("Qwen2VLForConditionalGeneration", attempt=Attempt(sections=(2, 3, 3)))
    with pytest.raises(ValueError, match="Qwen2VLForConditionalGeneration has no cache .* expected use_cache=True"):
        distribution(model, left_padded(model, batch), TOKENS, use_cache=False, cache_implementation=None)


def test_pictures_of_each_prompt_without_a_cache() -> None:
    model, batch = small("GitForCausalLM")  # it does not encode them beforehand
    given = left_padded(model, batch)
    assert len(given["pixel_values"]) == ROWS
    if ignores_padding(model):  # in transformers 4
        with pytest.raises(ValueError, match="GitForCausalLM treats padding as text: expected prompts of equal length"):
            distribution(model, given, TOKENS, use_cache=False)
        return
    found = distribution(model, given, TOKENS, grammar=GRAMMAR, width=None, covered=1, use_cache=False, cache_implementation=None)
    assert error(found, brute_force(model, batch)) < 1e-5


@pytest.mark.parametrize("name", ["tiny-vlm", "tiny-3"])
def test_models_of_the_lab(name: str) -> None:
    from numerate.lab.models.loading import load_model

    loaded = load_model(name)
    torch.manual_seed(0)
    inputs: dict[str, Tensor] = {"input_ids": torch.tensor(loaded.tokens(["x=" if name == "tiny-3" else "<image>" * 64 + "x="]))}
    if name == "tiny-vlm":
        inputs["pixel_values"] = torch.randn(1, 3, 112, 112)
    vocabulary = loaded.tokenizer.get_vocab()
    tokens = {text: vocabulary[text] for text in ("1", "2", "7")}
    grammar = NumberGrammar(sign=False, digits=(1, 2), decimals=0, leading_zeros=True)
    (found,) = distribution(loaded.model, inputs, tokens, grammar=grammar, width=None, covered=1)

    def next_logits(ids: list[int]) -> Tensor:
        longer = torch.cat([inputs["input_ids"], torch.tensor([ids], dtype=torch.long)], 1)
        return loaded.model(**inputs | {"input_ids": longer}).logits[0, -1]

    with torch.no_grad():
        assert distance(found, enumerate_numbers(next_logits, tokens, PATTERN)) < 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_gpu_finds_what_the_cpu_finds(name: str) -> None:
    """The search, and ``generate`` with numbers decided: text, pictures and sound."""
    architecture = by_class(name)
    for attempt in ATTEMPTS:
        try:
            model = build(architecture, torch.float32, attempt)
            inputs, data = next(iter(batches(architecture, model, torch.float32)))
            batch = row_of(model, data[0], 0)
            prepare(model)
            model.generate(**batch, max_new_tokens=2)
            break
        except Exception:
            if attempt is ATTEMPTS[-1]:
                raise
    decided = DecideNumbers(TOKENS, "median", grammar=GRAMMAR, width=None, covered=1)
    asked = {"max_new_tokens": 4, "custom_generate": decided}
    (here,) = search(model, batch)
    written = model.generate(**batch, **asked)
    model.cuda()
    there = {key: value.cuda() for key, value in batch.items()}
    (found,) = search(model, there)
    assert found.values == here.values
    torch.testing.assert_close(found.probabilities, here.probabilities, rtol=1e-3, atol=1e-6)
    assert torch.equal(model.generate(**there, **asked).cpu(), written), inputs


@pytest.mark.parametrize(("name", "scale"), [("LlamaForCausalLM", 4), ("T5ForConditionalGeneration", 1)])
def test_samples_of_generate_agree(name: str, scale: float) -> None:
    """20,000 samples: the shares of the numbers are within five standard errors, and chi-square is not extreme."""
    model, batch = small(name, scale)
    given = row_of(model, batch, 0)
    tokens = {str(digit): 10 + digit for digit in range(10)}
    (found,) = distribution(model, given, tokens, grammar=GRAMMAR, width=None, covered=1)
    torch.manual_seed(0)
    count = 20_000
    length = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
    ids = model.generate(**given, do_sample=True, top_k=0, max_new_tokens=3, num_return_sequences=count)[:, length:]
    texts = {i: text for text, i in tokens.items()}
    written = Counter(re.match(r"\d*", "".join(texts.get(i, "x") for i in row))[0] for row in ids.tolist())  # type: ignore[index]
    chi_square, cells = 0.0, 0
    for value, share in zip(found.values, (found.probabilities * found.covered).tolist(), strict=True):
        seen = sum(times for text, times in written.items() if text and len(text) < 3 and int(text) == value)
        if count * share >= 5:
            chi_square += (seen - count * share) ** 2 / (count * share)
            cells += 1
        assert abs(seen - count * share) < 5 * (count * share * (1 - share)) ** 0.5 + 1
    assert cells >= 10
    assert abs(chi_square - cells) < 4 * (2 * cells) ** 0.5


@pytest.mark.slow
@pytest.mark.launch
def test_no_architecture_is_searched_wrongly(tmp_path: Path) -> None:
    file = tmp_path / "decoding.csv"
    command = [sys.executable, ROOT / "scripts/sweep_architectures.py", "--what", "decode", "--csv", file]
    subprocess.run(command, check=True, cwd=ROOT)
    counts = Counter(row["status"] for row in csv.DictReader(file.open(encoding="utf-8", newline="")))
    assert counts["differs"] == counts["fails"] == 0, counts
    assert counts["exact"] >= 250, counts
