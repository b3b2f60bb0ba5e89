"""What a model reads before its answer."""

import pytest
from tokenizers.processors import TemplateProcessing

from numerate.lab.models.built import tiny_tokenizer
from numerate.lab.models.loading import PromptEncoder

FRAMES = {"nothing": "$A", "a start": "<bos> $A", "an end": "$A <eos>", "both": "<bos> $A <eos>"}
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


def framed(frame: str, *, chat: bool = False) -> PromptEncoder:
    """Return a tokenizer that puts tokens around every text, as those of Gemma, Llama and T5 do."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=FRAMES[frame], special_tokens=special)
    tokenizer.chat_template = TEMPLATE if chat else None
    return PromptEncoder("", tokenizer, chat=chat)


@pytest.mark.parametrize("frame", FRAMES)
def test_questions_begin_as_the_tokenizer_begins_every_text(frame: str) -> None:
    encoder = framed(frame)
    expected = [token for token in encoder.tokenizer("12 + 30?\n")["input_ids"] if token != encoder.tokenizer.eos_token_id]
    assert encoder.encode([("12 + 30?", None)])[0]["input_ids"] == expected


@pytest.mark.parametrize("frame", FRAMES)
def test_a_chat_template_has_its_start_once(frame: str) -> None:
    encoder = framed(frame, chat=True)
    ids = encoder.encode([("7", None)])[0]["input_ids"]
    assert encoder.tokenizer.convert_ids_to_tokens(ids) == ["<bos>", "7"]
