"""Search the numbers of an architecture with its cache and left padding, and compare with brute force."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from tests.decode.brute_force import NextLogits, distance, enumerate_numbers
from tests.integrations.trainers.architectures import (
    ATTEMPTS,
    DIGITS,
    PAD,
    ROWS,
    VOCAB_SIZE,
    WORDS,
    Architecture,
    batches,
    build,
    where,
)
from torch import Tensor, nn

from numerate.decode import NumberGrammar, distribution, rows
from numerate.decode.rows import Rows, ignores_padding

Batch = dict[str, Tensor]
TOKENS = {"0": DIGITS, "1": DIGITS + 1, "2": DIGITS + 2, "7": DIGITS + 7, "12": DIGITS + 20}
GRAMMAR = NumberGrammar(sign=False, digits=(1, 2), decimals=0, leading_zeros=True)
PATTERN = r"\d{1,2}"
TOLERANCE = {torch.float64: 5e-6, torch.float32: 1e-5}  # relative, of each number's probability


@dataclass
class Verdict:
    """The result for one architecture."""

    architecture: str
    status: str  # exact, differs, refused, fails, nothing to compare, not built
    detail: str = ""
    inputs: str = ""  # text, image, sound
    cache: str = ""  # the class of the model's cache; none: sequences are computed from their beginning
    padding: bool = False  # whether prompts of several lengths can be searched together
    reference: str = ""  # forward, generate, generate with cache: the first that the search is equal to
    error: float | None = None
    dtype: str = ""
    seconds: float = 0.0


def check(architecture: Architecture) -> Verdict:
    """Build the model, search, and compare."""
    verdict = Verdict(str(architecture), "not built")
    failures: dict[str, None] = {}
    for dtype, attempt in itertools.product(TOLERANCE, ATTEMPTS):
        try:
            model = build(architecture, dtype, attempt)
            ways = list(batches(architecture, model, dtype))
        except Exception as error:
            failures[where(error)] = None
            continue
        if not model.can_generate():
            return Verdict(str(architecture), "nothing to compare", "has no generate")
        prepare(model)
        for inputs, data in ways:
            found = _compare(model, data[0], TOLERANCE[dtype])
            if found.status == "not built":
                failures[f"{inputs}: {found.detail}"] = None
                continue
            return dataclasses.replace(
                found, architecture=str(architecture), inputs=inputs, dtype=str(dtype).removeprefix("torch.")
            )
    return dataclasses.replace(verdict, detail="; ".join(failures))


def prepare(model: nn.Module) -> None:
    """Switch the cache on, and what only training needs off."""
    model.eval()
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name, value in {"use_cache": True, "output_router_logits": False}.items():
            if hasattr(config, name):
                setattr(config, name, value)
    model.generation_config.use_cache = True
    model.generation_config.encoder_no_repeat_ngram_size = 0  # Blenderbot's: the search refuses it


@torch.no_grad()
def sharpen(model: nn.Module, batch: Batch, least: float) -> float:
    """Scale the weights up until the next token depends on those before it; return how much it does."""
    for _ in range(4):
        if (matters := context_matters(alone(model, batch, 0))) >= least:
            break
        for weight in model.parameters():
            if weight.dim() == 2 and weight.is_floating_point():
                weight.mul_(2)
    return matters


def row_of(model: nn.Module, batch: Batch, row: int) -> Batch:
    """Return one prompt of a right-padded batch, without padding."""
    inputs = {name: _row(value, row) for name, value in batch.items() if name != "labels"}
    if "input_ids" in inputs:
        length = int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else inputs["input_ids"].shape[1]
        for name in TEXT & inputs.keys():
            inputs[name] = inputs[name][:, :length]
        if not model.config.is_encoder_decoder:
            inputs["input_ids"] = _ended(inputs["input_ids"])
    return inputs


def longer(model: nn.Module, inputs: Batch, ids: list[int]) -> Batch:
    """Return a prompt with an answer's tokens after it."""
    added = torch.tensor([ids], dtype=torch.long)
    if model.config.is_encoder_decoder:
        return inputs | {"decoder_input_ids": torch.cat([torch.tensor([[start_of(model)]]), added], 1)}
    filled = {name: added if name == "input_ids" else torch.full_like(added, name == "attention_mask") for name in TEXT}
    return inputs | {name: torch.cat([inputs[name], filled[name]], 1) for name in TEXT & inputs.keys()}


def alone(model: nn.Module, batch: Batch, row: int) -> NextLogits:
    """Return the scores of what follows one prompt, by forward passes of the whole sequence."""
    inputs = row_of(model, batch, row)
    return lambda ids: model(**longer(model, inputs, ids), use_cache=False).logits[0, -1]


def by_generate(model: nn.Module, batch: Batch, row: int, *, cache: bool) -> NextLogits:
    """Return the scores of what follows one prompt, by generate: of one token, or of the whole answer with the model's cache."""
    inputs = row_of(model, batch, row)
    settings = {"use_cache": cache, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    everything = [*range(VOCAB_SIZE)]

    def next_scores(ids: list[int]) -> Tensor:
        if not cache:
            return model.generate(**longer(model, inputs, ids), **settings, max_new_tokens=1).scores[0][0]
        steps = itertools.chain(([i] for i in ids), [everything])
        settings["prefix_allowed_tokens_fn"] = lambda *_: next(steps)
        return model.generate(**inputs, **settings, max_new_tokens=len(ids) + 1).scores[-1][0]

    return next_scores


def context_matters(next_logits: NextLogits) -> float:
    """Return how much the next token depends on the token before the last one."""
    one, other = (next_logits([first, TOKENS["2"]]).double().softmax(-1) for first in (TOKENS["1"], TOKENS["7"]))
    return float((one / other - 1)[other > 0].abs().max())


def search(model: nn.Module, inputs: Batch) -> list[Any]:
    """Return the exact distributions."""
    return distribution(model, inputs, TOKENS, grammar=GRAMMAR, width=None, covered=1)


TEXT = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}


def left_padded(model: nn.Module, batch: Batch) -> Batch:
    """Return a right-padded batch with the padding on the left."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if model.config.is_encoder_decoder:
        return inputs
    lengths = inputs["attention_mask"].sum(1).tolist() if "attention_mask" in inputs else [inputs["input_ids"].shape[1]] * ROWS
    for name in TEXT & inputs.keys():
        value = inputs[name]
        rows = []
        for row, length in enumerate(lengths):
            kept = _ended(value[row : row + 1, :length]) if name == "input_ids" else value[row : row + 1, :length]
            rows.append(torch.cat([torch.full((1, value.shape[1] - length), PAD), kept], 1))
        inputs[name] = torch.cat(rows)
    return inputs


def start_of(model: nn.Module) -> int:
    """Return the token that a decoder starts with."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(found := getattr(config, name, None), int):
                return found
    raise ValueError("no start token")


def _ended(ids: Tensor) -> Tensor:
    """Return prompts that end with a word."""
    return torch.cat([ids[:, :-1], torch.full_like(ids[:, -1:], WORDS)], 1)


def _row(value: Tensor, row: int) -> Tensor:
    """Return the part of an input that belongs to one row."""
    each = value.shape[0] // ROWS
    return value[row * each : (row + 1) * each]


def _compare(model: nn.Module, batch: Batch, tolerance: float) -> Verdict:
    """Search a batch, and compare with brute force by the model's forward passes, or else by one-token calls of generate."""
    try:
        given = left_padded(model, batch)
        model.generate(**given, max_new_tokens=2, do_sample=False)
        matters = sharpen(model, batch, 100 * tolerance)
    except Exception as error:
        return Verdict("", "not built", where(error))
    try:
        selecting = mock.patch.object(Rows, "select", autospec=True, side_effect=Rows.select)
        with selecting as select, mock.patch.object(rows, "IGNORE_PADDING", ()):
            found = search(model, given)
        searched = select.call_args.args[0]
    except Exception as error:
        broken = "are NaN" in str(error) and next(model.parameters()).dtype == torch.float64
        return Verdict("", "not built" if broken else "fails", where(error))
    verdict = Verdict("", "differs", cache="yes" if searched.cached else "no", padding=True)
    references = {
        "forward": lambda row: alone(model, batch, row),
        "generate": lambda row: by_generate(model, batch, row, cache=False),
        "generate with cache": lambda row: by_generate(model, batch, row, cache=True),
    }
    single: list[Any] = []
    with torch.no_grad():
        for verdict.reference, make in references.items():
            expected = [enumerate_numbers(make(row), TOKENS, PATTERN) for row in range(ROWS)]
            if (error := max(map(distance, found, expected))) < tolerance:
                verdict.error = error
                break
            single = single or [search(model, row_of(model, batch, row))[0] for row in range(ROWS)]
            if (error := max(map(distance, single, expected))) < tolerance:
                verdict.error, verdict.padding = error, False
                break
            verdict.error = error
    if verdict.error >= tolerance:
        verdict.detail = f"probabilities are off by up to {verdict.error:.2g}"
    elif not matters >= 20 * tolerance:
        verdict.status, verdict.detail = "nothing to compare", "the next token hardly depends on those before it"
    elif verdict.padding == any(map(ignores_padding, (model, searched.model))):
        verdict.detail = f"IGNORE_PADDING is wrong about {model.config.model_type} or {searched.model.config.model_type}"
    else:
        verdict.status = "exact"
    return verdict
