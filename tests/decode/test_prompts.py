"""Prompts as chats: the tokenizer's template, once, with the special tokens that it writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.decode.models import small_llama
from tests.samples import refused
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from numerate.decode import NumberGrammar, distribution, number
from numerate.distribution import NumberDistribution

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def chat_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per character; ``<s>`` comes before every text, and the template writes it too."""
    tokens = ["<pad>", "<s>", "</s>", *"0123456789.-", *" :?asuxyz"]
    characters = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return small_llama(len(tokenizer), end=2, spread=0.5)


CHAT = [{"role": "system", "content": "xy"}, {"role": "user", "content": "zz?"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "yx:"}]
WRITTEN = "<s>s:xy</s>u:zz?</s>a:"


def search(prompts: Any, tokenizer: PreTrainedTokenizerFast, reader: Any = None) -> list[NumberDistribution]:
    """Return exact distributions: draws would depend on the index of a prompt."""
    limits: dict[str, Any] = {"grammar": NumberGrammar(digits=1, decimals=0), "width": None, "covered": 1}
    return distribution(model(tokenizer), prompts, reader or tokenizer, **limits)


def of(text: str, tokenizer: PreTrainedTokenizerFast) -> NumberDistribution:
    """What is found after exactly these tokens."""
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    (found,) = search({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, tokenizer)
    return found


def near(one: NumberDistribution, other: NumberDistribution) -> bool:
    """Whether two are equal up to rounding."""
    return one.values == other.values and bool(np.allclose(one.probabilities, other.probabilities, atol=1e-5))


@pytest.mark.parametrize(("chat", "written"), [(CHAT, WRITTEN), (BEGUN, WRITTEN + "yx:")])
def test_a_chat_is_written_with_the_template(chat: Any, written: str) -> None:
    tokenizer = chat_tokenizer()
    (found,) = search([chat], tokenizer)
    assert near(found, of(written, tokenizer))
    assert not near(found, of("<s>" + written, tokenizer))


def test_texts_stay_as_they_are_beside_chats() -> None:
    tokenizer = chat_tokenizer()
    together = search(["zz?", CHAT, "xy"], tokenizer)
    assert all(map(near, together, [of(text, tokenizer) for text in ("<s>zz?", WRITTEN, "<s>xy")]))


def test_a_single_chat_is_a_list_of_one() -> None:
    tokenizer = chat_tokenizer()
    single, listed = (number(model(tokenizer), chats, tokenizer, "mean", max_no_number=1) for chats in (CHAT, [CHAT]))
    assert single == listed
    assert len(single) == 1


def test_a_processor_with_a_template_or_a_tokenizer_with_one() -> None:
    """As in vision-language models: the template is the processor's, or its tokenizer's."""
    tokenizer, plain = chat_tokenizer(), chat_tokenizer(None)
    (expected,) = search([CHAT], tokenizer)
    own = SimpleNamespace(tokenizer=plain, chat_template=TEMPLATE, apply_chat_template=tokenizer.apply_chat_template)
    for processor in (own, SimpleNamespace(tokenizer=tokenizer)):
        assert near(search([CHAT], tokenizer, processor)[0], expected)
    assert near(search(["zz?"], plain, own)[0], of("<s>zz?", plain))


PICTURE = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "url": "y.png"}]}]


@pytest.mark.parametrize(
    ("prompts", "template", "kind", "parts"),
    [
        (["x", CHAT], None, ValueError, ["prompts[1] is a chat", "chat_template", "pass the prompt as text"]),
        ([[{"role": "user"}]], TEMPLATE, ValueError, ["prompts[0]", "'role'", "'content'"]),
        ([PICTURE], TEMPLATE, ValueError, ["prompts[0]", "y.png", "processor.apply_chat_template"]),
        ([["x", "y"]], TEMPLATE, TypeError, ["prompts[0] is a list", "a text, or a chat"]),
        (["x", []], TEMPLATE, TypeError, ["prompts[1] is a list", "a text, or a chat"]),
        ([7], TEMPLATE, TypeError, ["prompts[0] is a int"]),
        (iter(["x"]), TEMPLATE, TypeError, ["prompts is a list_iterator", "list(prompts)"]),
    ],
)
def test_wrong_prompts(prompts: Any, template: str | None, kind: type[Exception], parts: list[str]) -> None:
    tokenizer = chat_tokenizer(template)
    refused(kind, parts, lambda: distribution(model(tokenizer), prompts, tokenizer))
