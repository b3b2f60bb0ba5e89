"""DecideNumbers in ``generate``: text as greedy, numbers as the metric wants them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
import torch
from tests.decode.test_model import INPUTS, PROMPTS, TOKENS, Fixed, Tokens, small
from tests.samples import refused
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

from numerate.decode import DecidedOutput, DecideNumbers, NumberGrammar, distribution

TEXTS = TOKENS["one digit"]
LENGTH = PROMPTS.shape[1]


def _text(tokens: Tokens, ids: Any) -> str:
    texts = [tokens.texts[i] for i in ids if i != 0]
    return "".join(texts).partition("<end>")[0]


def _write(model: Any, tokens: Tokens, method: DecideNumbers, inputs: Any = INPUTS, **options: Any) -> DecidedOutput:
    options = {"max_new_tokens": 12, "return_dict_in_generate": True, **options}
    return model.generate(**inputs, custom_generate=method, **options)


class Scripted(Fixed):
    """A model whose next token depends on the last one alone, by a table of probabilities of texts."""

    def __init__(self, tokens: Tokens, table: dict[str, dict[str, float]]) -> None:
        super().__init__(tokens.texts[4:], {})
        self.table = torch.full((len(tokens.texts), len(tokens.texts)), -30.0)
        for last, following in table.items():
            for text, chance in following.items():
                self.table[tokens.texts.index(last), tokens.texts.index(text)] = float(torch.tensor(chance).log())

    def forward(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(input_ids, *args, **kwargs)
        outputs.logits = self.table[input_ids][:, -outputs.logits.shape[1] :]
        return outputs


DIGITS = Tokens([*"0123456789", "-", ".", " ", "=", ","])
# After "=" a number: 9 with 40 %, else 1, 2 or 3 with 20 % each; then the end, or a comma and another number.
TABLE = {
    "x": {"=": 1.0},
    "=": {"9": 0.4, "1": 0.2, "2": 0.2, "3": 0.2},
    **{digit: {",": 0.6, "<end>": 0.4} for digit in "0123456789"},
    ",": {"8": 0.45, "5": 0.35, "4": 0.2},
}


def test_the_number_fits_the_metric() -> None:
    model = Scripted(DIGITS, TABLE)
    inputs = {"input_ids": torch.tensor([[1]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    for metric, first in (("mode", "9"), ("median", "3"), ("mean", "5"), (lambda x, y: max(y - x, 0), "9")):
        output = _write(model, DIGITS, DecideNumbers(DIGITS, metric), inputs, max_new_tokens=5)
        text = _text(DIGITS, output.sequences[0])
        assert re.match(r"x=(\d)", text)[1] == first  # type: ignore[index]
        one = output.distributions[0][0]
        assert [int(value) for value in one.values] == [1, 2, 3, 9]
        assert one.covered == pytest.approx(1, abs=1e-5)


def test_most_numbers() -> None:
    model = Scripted(DIGITS, TABLE)
    for most, text in ((None, "x=3,5,5"), (1, "x=3,8,8")):
        method = DecideNumbers(DIGITS, grammar=NumberGrammar(thousands=False), most_numbers=most)
        output = _write(model, DIGITS, method, {"input_ids": torch.tensor([[1]])}, max_new_tokens=7)
        assert _text(DIGITS, output.sequences[0]).startswith(text)
        assert [int(one.median) for one in output.distributions[0]] == [3, 5, 5][:most]


def test_without_numbers_it_is_greedy() -> None:
    tokens = Tokens(TEXTS)
    model = small(TEXTS)
    greedy = model.generate(**INPUTS, do_sample=False, max_new_tokens=8)
    output = _write(model, tokens, DecideNumbers(tokens, most_numbers=0), max_new_tokens=8)
    assert output.sequences.tolist() == greedy.tolist()
    assert output.distributions == ((), (), ())
    plain = model.generate(**INPUTS, custom_generate=DecideNumbers(tokens, most_numbers=0), max_new_tokens=8)
    assert plain.tolist() == greedy.tolist()


@pytest.mark.parametrize(("name", "metric"), [("mixed", "median"), ("all digits", "mean")])
def test_rows_do_not_touch_each_other(name: str, metric: str) -> None:
    """A batch gives the same answers as its rows alone, though their numbers have different lengths."""
    texts = TOKENS.get(name, [*"0123456789", "-", ".", " "])
    tokens, model = Tokens(texts), small(texts, 3)
    method = DecideNumbers(tokens, metric, width=None, covered=0.9, grammar=NumberGrammar(digits=(1, 2), decimals=(0, 1)))
    together = _write(model, tokens, method)
    for row in range(len(PROMPTS)):
        alone = _write(model, tokens, method, {name: value[row : row + 1] for name, value in INPUTS.items()})
        mine = together.sequences[row, LENGTH:].tolist()
        other = alone.sequences[0, LENGTH:].tolist()
        assert _text(tokens, mine) == _text(tokens, other)
        assert [one.values for one in together.distributions[row]] == [one.values for one in alone.distributions[0]]


def test_a_mean_has_the_decimals_of_the_answers() -> None:
    table = {"x": {"=": 1.0}, "=": {"1": 0.5, "2": 0.5}, ".": {"5": 1.0}, "5": {"<end>": 1.0}, "1": {".": 1.0}, "2": {".": 1.0}}
    output = _write(Scripted(DIGITS, table), DIGITS, DecideNumbers(DIGITS, "mean"), {"input_ids": torch.tensor([[1]])})
    assert output.distributions[0][0].mean == pytest.approx(Decimal(2), abs=Decimal("1e-9"))
    assert _text(DIGITS, output.sequences[0]).startswith("x=2.0")


def test_an_encoder_decoder() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    more = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64, "init_std": 1.0}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    model = BartForConditionalGeneration(BartConfig(vocab_size=len(DIGITS.texts), **sizes, **more, **ids)).eval()
    output = _write(model, DIGITS, DecideNumbers(DIGITS, width=4))
    expected = distribution(model, INPUTS, DIGITS, width=4)
    firsts = [DIGITS.texts[token] in "0123456789-" for token in model.generate(**INPUTS, max_new_tokens=1)[:, 1].tolist()]
    assert any(firsts)
    for first, one, others in zip(firsts, expected, output.distributions, strict=True):
        assert not first or others[0].values == one.values


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True}], ids=str)
def test_other_ways_to_decode_are_refused(options: dict[str, Any]) -> None:
    tokens, ((name, value),) = Tokens(TEXTS), options.items()
    refused(ValueError, [f"{name}={value}"], lambda: _write(small(TEXTS), tokens, DecideNumbers(tokens), **options))


@pytest.mark.parametrize(
    ("change", "kind", "parts"),
    [
        ({"metric": "medium"}, ValueError, ["metric='medium'", "median"]),
        ({"metric": "within"}, ValueError, ["tolerance"]),
        ({"most_numbers": -1}, ValueError, ["most_numbers=-1"]),
        ({"width": 0}, ValueError, ["width=0"]),
        ({"breadth": 3}, TypeError, ["breadth"]),
    ],
)
def test_wrong_settings_are_refused_at_once(change: dict[str, Any], kind: type[Exception], parts: list[str]) -> None:
    refused(kind, parts, lambda: DecideNumbers(Tokens(TEXTS), **change))


NINE_OR_LESS = {"9": 0.4, "1": 0.2, "2": 0.2, "3": 0.2}  # the median is 3
ENDS = {digit: {"<end>": 1.0} for digit in "0123456789"}


@pytest.mark.parametrize("ends", [3, [3, 2]])
@pytest.mark.parametrize("pad", [None, 0, 2])
def test_rows_that_end_early_are_filled_with_the_padding_or_the_first_end_token(pad: int | None, ends: Any) -> None:
    equals, three = DIGITS.texts.index("="), DIGITS.texts.index("3")
    model = Scripted(DIGITS, {"x": {"=": 1.0}, "=": NINE_OR_LESS, **ENDS, ",": {"<end>": 1.0}})
    model.generation_config = GenerationConfig(max_new_tokens=3, pad_token_id=pad, eos_token_id=ends)
    prompts = torch.tensor([[1], [DIGITS.texts.index(",")]])
    ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), custom_generate=DecideNumbers(DIGITS))
    fill = 3 if pad is None else pad
    assert ids[:, 1:].tolist() == [[equals, three, 3], [3, fill, fill]]


def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    """As of models whose decoder starts with the end token."""
    model = Scripted(DIGITS, {"<end>": {"=": 1.0}, "=": NINE_OR_LESS, **ENDS})
    output = _write(model, DIGITS, DecideNumbers(DIGITS), {"input_ids": torch.tensor([[1, 3]])})
    assert [DIGITS.texts[token] for token in output.sequences[0, 2:].tolist()] == ["=", "3", "<end>"]
