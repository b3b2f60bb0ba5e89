"""The processor in ``generate``: every text is a number of the grammar, and equal to a scan of the whole vocabulary."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from tests.decode.models import small_llama
from tests.samples import CHUNKS, DIGITS, MARKS, real_tokenizer, refused
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

import numerate as nm
from numerate.decode import NumberGrammar, NumbersOnly, numbers_only

SPACED = {
    text: index for index, text in enumerate(["x", *"0123456789", *(f" {digit}" for digit in range(10)), " -", "-", ".", " "])
}
TEXTS: dict[str, dict[str, int]] = {"one digit": MARKS, "three digits": CHUNKS, "spaces": SPACED}
GRAMMARS = {
    "any": NumberGrammar(digits=(1, 4), decimals=(0, 2)),
    "range": NumberGrammar(digits=(1, 5), decimals=(0, 3), lowest=-12.5, highest=1007.25),
    "cents": NumberGrammar(decimals=2, lowest=0.99, highest=123.45),
    "narrow": NumberGrammar(lowest=99.5, highest=100.5),
    "negative": NumberGrammar(lowest=-1, highest=-0.001, decimals=3),
    "whole": NumberGrammar(sign=False, decimals=0, digits=3),
}
PADDING = 5  # columns of the logits without a token
every_grammar = pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)


def t5(vocab_size: int, end: int) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    ids = {"vocab_size": vocab_size, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": end}
    return T5ForConditionalGeneration(T5Config(**sizes, **ids)).eval()


def written(processor: NumbersOnly, sequences: Tensor, start: int) -> list[str]:
    """Texts of the numbers in the output of ``generate``, all of them complete and in range."""
    found = []
    for row in sequences[:, start:].tolist():
        text = processor.text_of(row)
        assert text is not None, row
        assert processor.grammar.accepts(text.removeprefix(" ")), text
        assert any(end in row for end in processor.end_token_ids), text
        value = Fraction(text.strip().replace(",", ""))
        low, high = processor.grammar.lowest, processor.grammar.highest
        assert low is None or Fraction(str(low)) <= value
        assert high is None or value <= Fraction(str(high))
        found.append(text)
    return found


def scanned(texts: dict[str, int], grammar: NumberGrammar, ends: list[int], text: str, over: bool, vocab_size: int) -> Tensor:
    """Mask of the allowed tokens, by looking at every token."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    if over:
        mask[ends] = True
        return mask
    for token, token_id in texts.items():
        whole = text + token
        if token and whole.rfind(" ") <= 0 and grammar.allows(whole.removeprefix(" ")):
            mask[token_id] = True
    mask[ends] = grammar.accepts(text.removeprefix(" "))
    return mask


@pytest.mark.parametrize("name", TEXTS)
@every_grammar
def test_equal_to_a_scan_of_the_vocabulary(name: str, grammar: NumberGrammar) -> None:
    """Random walks of 16 rows: the mask of every step is the scan's, the scores of allowed tokens are unchanged."""
    texts = TEXTS[name]
    end, size = len(texts), len(texts) + 1 + PADDING
    processor = numbers_only(texts, grammar, end_token_ids=end)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, size, (16, 3), generator=generator)
    spelled = {token_id: text for text, token_id in texts.items()}
    for _ in range(grammar.max_length + 2):
        scores = torch.randn(16, size, generator=generator)
        given = scores.clone()
        masked = processor(ids, scores)
        assert torch.equal(scores, given)
        for row, result, score in zip(ids[:, 3:].tolist(), masked, scores, strict=True):
            text = "".join(spelled[i] for i in row if i != end)
            mask = scanned(texts, grammar, [end], text, end in row, size)
            assert torch.equal(result, score.masked_fill(~mask, -torch.inf)), text
        ids = torch.cat([ids, masked.softmax(-1).multinomial(1, generator=generator)], dim=1)
    assert (ids[:, -1] == end).all()
    assert len(set(written(processor, ids, 3))) > 1


@pytest.mark.parametrize("grammar", [GRAMMARS["range"], GRAMMARS["narrow"]], ids=["range", "narrow"])
def test_greedy_with_left_padding_equals_one_prompt_at_a_time(grammar: NumberGrammar) -> None:
    """The processor is used again for each prompt, of other lengths and batch sizes."""
    end = len(CHUNKS)
    model, processor = small_llama(end + 1 + PADDING, end).double(), numbers_only(CHUNKS, grammar, end_token_ids=end)
    settings: dict[str, Any] = {"logits_processor": [processor], "do_sample": False, "max_new_tokens": grammar.max_length + 2}
    prompts = [[3, 4], [5, 6, 7, 8], [3, 9], [3]]  # the last is the beginning of others
    padded = torch.tensor([[0] * (4 - len(prompt)) + prompt for prompt in prompts])
    attention = torch.tensor([[0] * (4 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    together = written(processor, model.generate(padded, attention_mask=attention, **settings), 4)
    for prompt, text in zip(prompts, together, strict=True):
        ids = torch.tensor([prompt])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        assert written(processor, alone, len(prompt)) == [text]


@pytest.mark.parametrize("settings", [{}, {"do_sample": True}], ids=str)
def test_beams(settings: dict[str, Any]) -> None:
    grammar, end = GRAMMARS["range"], len(CHUNKS)
    model, processor = small_llama(end + 1 + PADDING, end), numbers_only(CHUNKS, grammar, end_token_ids=end)
    prompt = torch.tensor([[0, 3, 4], [5, 6, 7]])
    common: dict[str, Any] = {"attention_mask": (prompt > 0).long(), "logits_processor": [processor], **settings}
    out = model.generate(prompt, num_beams=4, num_return_sequences=3, max_new_tokens=grammar.max_length + 2, **common)
    found = written(processor, out, 3)
    assert len(set(found[:3])) == 3 or settings.get("do_sample")


def test_more_beams_than_numbers() -> None:
    """Beams without a number hold forbidden tokens: they end, and do not disturb the others."""
    grammar, end = NumberGrammar(lowest=7, highest=8, decimals=0), len(DIGITS)
    model, processor = small_llama(end + 1, end), numbers_only(DIGITS, grammar, end_token_ids=end)
    out = model.generate(
        torch.tensor([[3, 4]]), logits_processor=[processor], num_beams=5, num_return_sequences=2, max_new_tokens=6
    )
    assert sorted(written(processor, out, 2)) == ["7", "8"]


@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "num_return_sequences": 20}, {"num_beams": 3}], ids=str)
def test_encoder_decoder(settings: dict[str, Any]) -> None:
    grammar, end = GRAMMARS["cents"], len(CHUNKS)
    model, processor = t5(end + 1 + PADDING, end), numbers_only(CHUNKS, grammar, end_token_ids=end)
    for prompt in ([[3, 4, 5], [6, 7, 0]], [[3, 4, 5, 8], [6, 7, 0, 0]]):
        ids = torch.tensor(prompt)
        common: dict[str, Any] = {"attention_mask": (ids > 0).long(), "logits_processor": [processor], **settings}
        out = model.generate(ids, max_new_tokens=grammar.max_length + 2, **common)
        assert len(written(processor, out, 1)) == 2 * settings.get("num_return_sequences", 1)
    begun = torch.tensor([[0, 9], [0, 10]])  # a longer prompt of the decoder
    common["logits_processor"] = [numbers_only(CHUNKS, grammar, end_token_ids=end, prompt_length=2)]
    written(processor, model.generate(ids, decoder_input_ids=begun, max_new_tokens=grammar.max_length + 2, **common), 2)


def test_assisted_generation_equals_plain() -> None:
    """Draft tokens are checked in steps back and forth, so the length of the prompt must be given."""
    rules, end = GRAMMARS["range"], len(MARKS)
    model, draft = small_llama(end + 1, end).double(), small_llama(end + 1, end).double()
    with torch.no_grad():
        draft.lm_head.weight += 0.5 * torch.randn_like(draft.lm_head.weight)
    prompt = torch.tensor([[3, 4, 5]])
    settings: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": rules.max_length + 2,
        "attention_mask": torch.ones_like(prompt),
    }
    processor = numbers_only(MARKS, rules, end_token_ids=end, prompt_length=3)
    plain = model.generate(prompt, logits_processor=[processor], **settings)
    assisted = model.generate(prompt, logits_processor=[processor], assistant_model=draft, **settings)
    assert torch.equal(plain, assisted)
    assert written(processor, plain, 3)


def test_embeddings_instead_of_ids() -> None:
    """With ``inputs_embeds`` the ids begin with the number."""
    grammar, end = GRAMMARS["range"], len(MARKS)
    model, processor = small_llama(end + 1, end), numbers_only(MARKS, grammar, end_token_ids=end)
    embeds = model.get_input_embeddings()(torch.tensor([[3, 4], [5, 6]]))
    out = model.generate(inputs_embeds=embeds, logits_processor=[processor], max_new_tokens=grammar.max_length + 2)
    assert len(written(processor, out, 0)) == 2


@pytest.mark.parametrize("name", ["deepseek", "mistral"])
def test_real_tokenizers(name: str) -> None:
    tokenizer = real_tokenizer(name)
    grammar = NumberGrammar(digits=(1, 4), decimals=(0, 2), lowest=-54.3, highest=9876.5)
    end = tokenizer.eos_token_id
    processor, size = numbers_only(tokenizer, grammar), len(tokenizer) + 64
    model = small_llama(size, end, width=4)
    prompt = torch.tensor([tokenizer.encode("The price is", add_special_tokens=False)]).repeat(60, 1)
    generator = torch.Generator().manual_seed(0)

    def gumbel(ids: Tensor, scores: Tensor) -> Tensor:  # the best of noisy scores is a sample, and faster than torch.multinomial
        noise = torch.empty(int((allowed := scores > -torch.inf).sum())).exponential_(generator=generator).log_()
        return scores.masked_scatter(allowed, scores[allowed] - noise)

    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        logits_processor=[processor, gumbel],
        do_sample=False,
        max_new_tokens=grammar.max_length + 2,
    )
    found = written(processor, out, prompt.shape[1])
    assert len(found) == 60
    assert len(set(found)) > 50
    decoded = tokenizer.batch_decode(out[:, prompt.shape[1] :], skip_special_tokens=True)
    assert [text.strip() for text in decoded] == [text.strip() for text in found]
    number = tokenizer.encode("-12.3", add_special_tokens=False)
    assert processor.text_of(number).strip() == "-12.3"
    # Any way that the tokenizer itself writes a number is allowed.
    ids, processor.prompt_length = torch.tensor([number]), 0
    for step in range(len(number)):
        scores = processor(ids[:, :step], torch.zeros(1, size))
        assert scores[0, number[step]] == 0
    assert scores[0, end] == -torch.inf  # before the last token, after the point


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_same_mask_on_a_gpu(dtype: torch.dtype) -> None:
    grammar, end = GRAMMARS["range"], len(CHUNKS)
    here, there = (numbers_only(CHUNKS, grammar, end_token_ids=end) for _ in range(2))
    for ids in (torch.tensor([[0, 1], [3, 4]]), torch.tensor([[0, 1, CHUNKS["12"]], [3, 4, CHUNKS["10"]]])):
        scores = torch.randn(2, end + 1).to(dtype)
        assert torch.equal(there(ids.cuda(), scores.cuda()).cpu(), here(ids, scores))


@pytest.mark.parametrize("format", ["plain", "spaced"])
def test_vocab_instead_of_tokenizer(format: str) -> None:
    vocab = nm.NumericVocab.from_texts(CHUNKS, vocab_size=len(CHUNKS))
    grammar, end = GRAMMARS["range"], len(CHUNKS)
    options: dict[str, Any] = {"format": format, "end_token_ids": [end], "prompt_length": 1}
    given, own = (numbers_only(tokens, grammar, **options) for tokens in (vocab, CHUNKS))
    scores = torch.zeros(2, end + 1)
    for ids in ([[0], [0]], [[0, CHUNKS["5"]], [0, CHUNKS["1"]]]):
        masked = given(torch.tensor(ids), scores)
        assert torch.equal(masked, own(torch.tensor(ids), scores))
    assert (masked[0, CHUNKS[" "]] == 0) == (format == "spaced")


def test_leading_space() -> None:
    ids, scores = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, len(SPACED) + 1)
    for leading_space in (True, False):
        masked = numbers_only(SPACED, end_token_ids=len(SPACED), leading_space=leading_space)(ids, scores)[0]
        for text in (" ", " 5", " -"):
            assert (masked[SPACED[text]] == 0) == leading_space
        assert masked[SPACED["5"]] == 0
    processor = numbers_only(SPACED, end_token_ids=[SPACED[" "], len(SPACED)])  # a space as an end token does not begin a number
    assert processor(ids, scores)[0, SPACED[" "]] == -torch.inf
    assert processor(torch.tensor([[0, SPACED["5"]]]), scores)[0, SPACED[" "]] == 0


def test_several_end_tokens() -> None:
    grammar, end = NumberGrammar(decimals=0, digits=2, sign=False), [DIGITS["y"], len(DIGITS)]
    processor = numbers_only(DIGITS, grammar, end_token_ids=torch.tensor(end), prompt_length=0)
    scores = torch.zeros(3, len(DIGITS) + 1)
    ids = torch.tensor([[DIGITS["1"], DIGITS["2"]], [DIGITS["1"], DIGITS["y"]], [DIGITS["x"], DIGITS["1"]]])
    masked = processor(ids, scores)
    for row in range(3):
        assert masked[row].isfinite().nonzero().flatten().tolist() == end
    assert (processor(ids[:, :1], scores)[:2, end] == -torch.inf).all()


SCORES, IDS = torch.zeros(1, len(MARKS) + 1), torch.tensor([[1, 2, 3]])
END = len(MARKS)
RATINGS = nm.NumericVocab.from_values({1: 0.5}, 3)
plain = partial(numbers_only, MARKS, end_token_ids=END)


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: numbers_only({"a": 0, "b": 1}, end_token_ids=2), ["no token for", "'0'", "expected one token for each"]),
        (lambda: numbers_only(DIGITS, end_token_ids=20), ["no token for '-', '.'", "sign=False, decimals=0"]),
        (lambda: numbers_only(MARKS), ["end_token_ids=None", "generation_config.eos_token_id"]),
        (lambda: numbers_only(MARKS, end_token_ids=[]), ["end_token_ids=[]", "expected one token id"]),
        (lambda: numbers_only(MARKS, end_token_ids=MARKS["7"]), ["end_token_ids holds 8", "'7'", "expected tokens that end"]),
        (lambda: numbers_only(MARKS, end_token_ids=MARKS["."]), ["'.'", "decimals=0 for a full stop"]),
        (lambda: numbers_only(MARKS, "0-9", end_token_ids=END), ["grammar is a str", "expected a NumberGrammar"]),
        (lambda: numbers_only(MARKS, end_token_ids=END, prompt_length=-1), ["prompt_length=-1", ">= 0"]),
        (lambda: numbers_only(7, end_token_ids=END), ["int", "expected a Hugging Face tokenizer"]),
        (lambda: numbers_only(RATINGS, end_token_ids=2), ["one number per token", "expected digits that join"]),
        (lambda: plain(prompt_length=4)(IDS, SCORES), ["prompt_length=4 is longer than input_ids with 3", "encoder-decoder"]),
        (lambda: plain(prompt_length=1)(IDS - 1, SCORES), ["prompt_length=1 leaves the token ids [1, 2]", "expected the length"]),
        (lambda: plain()(IDS, SCORES[:, :9]), ["V=9", f"token id {END}", "tokenizer that belongs"]),
        (lambda: numbers_only(MARKS, end_token_ids=END)(IDS[0], SCORES), ["input_ids has shape (3,)", "[B, T]"]),
        (lambda: numbers_only(MARKS, end_token_ids=END)(IDS, SCORES * torch.nan), ["row 0 are NaN", "bfloat16"]),
        (lambda: numbers_only(MARKS, end_token_ids=END)(IDS, SCORES - torch.inf), ["row 0 are -inf", "min_new_tokens"]),
    ],
)
def test_bad_input(call: Any, parts: list[str]) -> None:
    refused((TypeError, ValueError), parts, call)


def test_step_back_needs_the_length_of_the_prompt() -> None:
    """A shorter input that begins with the same prompt is ambiguous; with the length of the prompt it is not."""
    steps = [IDS, torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 2, 3, 4]])]
    found, given = numbers_only(MARKS, end_token_ids=END), numbers_only(MARKS, end_token_ids=END, prompt_length=3)
    for ids in steps[:3]:
        assert torch.equal(found(ids, SCORES), given(ids, SCORES))
    refused(ValueError, ["prompt_length=None", "step back", "pass prompt_length"], lambda: found(steps[3], SCORES))
    assert given(steps[3], SCORES)[0, END] == 0
    for longer in ([[1, 2, 3, 4, 5, 0, 0]], [[1, 2, 3, 4, 6, 0, 0, 0]]):  # two more columns, or other tokens: a new prompt
        assert torch.equal(found(torch.tensor(longer), SCORES), numbers_only(MARKS, end_token_ids=END)(IDS, SCORES))
