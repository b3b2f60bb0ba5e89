"""What a loss costs does not depend on how numbers are written: the same digits, laid out in each format, for every loss.

A number is predicted by probabilities of the digit at each of its places. In each format, the logits of a token are the sum of
the log-probabilities of its digits, and padding is certain. Then value and gradient with respect to the digits must be those of
plain text that holds the same digits in each token.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from tests.samples import every_pair, refused, some_of_each
from torch import Tensor

import numerate as nm
from numerate.formats import KINDS, NumberFormat

READABLE = [kind for kind in reversed(KINDS) if "exponent" not in kind]
REFUSED = [kind for kind in KINDS if "exponent" in kind]
NUMBER_LEVEL = [name for name, loss in nm.LOSSES.items() if loss.level == "number"]
TOKEN_LEVEL = [name for name, loss in nm.LOSSES.items() if loss.level == "token"]
NEVER = -1e4  # a logit of what is impossible

_MARKS = ["x", ".", "-", ",", " ", ":"]
_ONE = list("0123456789")
_THREE = ["".join(digits) for width in (1, 2, 3) for digits in product("0123456789", repeat=width)]
TOKENIZERS: dict[str, list[str]] = {  # their tokens; all cut numbers into the longest, from the left
    "one digit": [*_MARKS, *_ONE],
    "three digits": [*_MARKS, *_THREE],
    "after a space": [*_MARKS, *_ONE, *(f" {digit}" for digit in _ONE), " .", " -"],
}
# Three-digit tokens hold the same digits in all formats if there are three, six or nine of them on both sides of the point.
NUMBERS = ["123456", "700100", "-250384.125", "100000", "999.000001", "-807"]


@cache
def vocab_of(tokenizer: str, kind: str) -> nm.NumericVocab:
    texts = {text: i for i, text in enumerate(TOKENIZERS[tokenizer])}
    format = NumberFormat(kind, (3, 9), (0, 6)) if "padded" in kind else NumberFormat(kind)
    return nm.NumericVocab.from_texts(texts, vocab_size=len(texts), format=format)


def written(kind: str, tokenizer: str, width: int) -> tuple[list[list[str]], list[list[list[int | None]]]]:
    """Return the tokens of each number in the format, and the place of each digit of a token; None for padding.

    Tokens have at most ``width`` digits.
    """
    format = vocab_of(tokenizer, kind).format or NumberFormat()
    assert isinstance(format, NumberFormat)
    known = sorted((token for token in TOKENIZERS[tokenizer] if len(token.strip()) <= width), key=len, reverse=True)
    all_tokens, all_places = [], []
    for number in NUMBERS:
        text, places = format.write(number), iter(digit_places(format, number))
        tokens = []
        while text:
            tokens.append(next(token for token in known if text.startswith(token)))
            text = text[len(tokens[-1]) :]
        all_tokens.append(tokens)
        all_places.append([[next(places) for _ in re.findall("[0-9]", token)] for token in tokens])
    return all_tokens, all_places


def digit_places(format: NumberFormat, number: str) -> list[int | None]:
    """The exponent of the place of each digit as it is written; None for padding. Found by writing numbers with a single 1."""
    whole, _, decimals = number.lstrip("-").partition(".")
    text = re.sub("[^0-9]", "", format.write(number))
    found: list[int | None] = [None] * len(text)
    for place in range(-len(decimals), len(whole)):
        one = f"{Decimal(1).scaleb(place):f}".zfill(0)
        head, _, tail = one.partition(".")
        shape = f"{head.zfill(len(whole))}{'.' if decimals else ''}{tail.ljust(len(decimals), '0')}"
        found[re.sub("[^0-9]", "", format.write(shape)).index("1")] = place
    return found


class Digits:
    """Leaves of the graph: logits of the digits of ``NUMBERS`` at each place, and log-odds of text and of a minus sign there."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.leaves: dict[tuple[int, int], Tensor] = {}
        self.texts: dict[tuple[int, int], Tensor] = {}
        for i, number in enumerate(NUMBERS):
            whole, _, decimals = number.lstrip("-").partition(".")
            for place in range(-len(decimals), len(whole)):
                logits = 2 * torch.randn(10, generator=generator, dtype=torch.float64)
                self.leaves[i, place] = logits.requires_grad_()
                self.texts[i, place] = torch.randn((), generator=generator, dtype=torch.float64).requires_grad_()
        self.signs = torch.randn(len(NUMBERS), generator=generator, dtype=torch.float64).requires_grad_()

    def grads(self, value: Tensor) -> Tensor:
        wanted = [*self.leaves.values(), *self.texts.values(), self.signs]
        found = torch.autograd.grad(value, wanted, allow_unused=True)
        grads = (torch.zeros_like(x) if grad is None else grad for x, grad in zip(wanted, found, strict=True))
        return torch.cat([grad.flatten() for grad in grads])

    def token_logits(self, number: int, places: list[int | None], tokenizer: str, label: str) -> Tensor:
        """Logits of all tokens that hold as many digits as the label, and begin as it does."""
        texts = TOKENIZERS[tokenizer]
        lead = re.match("[^0-9]*", label)
        assert lead is not None
        parts = []
        for place in places:
            certain = torch.full((10,), NEVER, dtype=torch.float64)
            certain[0] = 0.0
            parts.append(certain if place is None else self.leaves[number, place].log_softmax(0))
        joint = torch.zeros((), dtype=torch.float64)
        for part in parts:
            joint = joint[..., None] + part
        alike = [i for i, text in enumerate(texts) if len(text) == len(label) and text.startswith(lead[0])]
        ids = [i for i in alike if texts[i].strip().isdigit()]
        order = torch.tensor([int(texts[i]) for i in ids])
        row = torch.full((len(texts),), NEVER, dtype=torch.float64)
        row = row.index_put((torch.tensor(ids),), joint.flatten()[order])
        text = [self.texts[number, place] for place in places if place is not None]
        return row.index_put((torch.tensor([texts.index("x")]),), torch.stack(text).sum()) if text else row


def batch(kind: str, tokenizer: str, width: int, digits: Digits, signs: bool) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Return logits ``[B, T, V]``, labels ``[B, T]``, and the positions of each number's digits, from the highest place down."""
    texts = TOKENIZERS[tokenizer]
    tokens, places = written(kind, tokenizer, width)
    length = max(map(len, tokens)) + 1
    labels = torch.full((len(tokens), length), -100)
    rows, at = [], []
    for i, (own, own_places) in enumerate(zip(tokens, places, strict=True)):
        labels[i, : len(own) + 1] = torch.tensor([texts.index(token) for token in (*own, "x")])
        first, positions, row = True, [], []
        for t, (token, spots) in enumerate(zip(own, own_places, strict=True)):
            if spots:
                logits = digits.token_logits(i, spots, tokenizer, token)
                real = [place for place in spots if place is not None]
                positions += [(-max(real), t)] if real else []
            else:
                logits = torch.full((len(texts),), NEVER, dtype=torch.float64)
                logits[texts.index(token)] = 0.0
            if signs and first and (spots or token == "-"):  # here the sign is predicted, against a digit
                zero = torch.zeros((), dtype=torch.float64)
                logits = logits if spots else logits.index_put((torch.tensor([texts.index("0")]),), zero)
                logits = logits.index_put((torch.tensor([texts.index("-")]),), digits.signs[i])
                first = False
            row.append(logits)
        rows.append(torch.stack([*row, *[torch.zeros(len(texts), dtype=torch.float64)] * (length - len(row))]))
        at.append([t for _, t in sorted(positions)])
    return torch.stack(rows), labels, at


def check_same(loss: str, kind: str, tokenizer: str, **settings: Any) -> None:
    """Compare a format with plain text; spaces leave one digit to a token."""
    digits, results = Digits(), []
    for own in ("plain", kind):
        costs = nm.LOSSES[loss](vocab_of(tokenizer, own), **settings)
        logits, labels, at = batch(
            own, tokenizer, 1 if "spaced" in kind else 3, digits, costs.scores_signs and costs.outside == "ignore"
        )
        if costs.level == "number":
            value = costs(logits, labels)
            compact, masked = (costs.targets(labels, compact=choice) for choice in (True, False))
            for targets in (compact, masked):  # as the objective and the fused operator compute it
                z, rest = costs.select(logits, targets)
                total, dz, _ = costs.value_and_grad(z, rest, targets)
                torch.testing.assert_close(total / costs.num_units(targets), value.detach(), rtol=1e-9, atol=0)
                torch.testing.assert_close(
                    dz, torch.autograd.grad(costs.per_row(z, rest, targets).sum(), z, retain_graph=True)[0], rtol=1e-6, atol=1e-9
                )
        else:  # a mean over tokens, to which padding adds some
            each = costs(logits, labels, reduction="none")
            value = torch.stack([each[i, t] for i, row in enumerate(at) for t in row]).mean()
        results.append((value.detach(), digits.grads(value)))
    (plain, plain_grad), (value, grad) = results
    assert float(plain) > 0.01
    torch.testing.assert_close(value, plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad, plain_grad, rtol=1e-6, atol=1e-6 * float(plain_grad.abs().max()))


every_kind = pytest.mark.parametrize("kind", READABLE)
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS)


@every_pair("loss, kind, tokenizer", NUMBER_LEVEL, READABLE, TOKENIZERS)
def test_number_level_losses_do_not_depend_on_the_format(loss: str, kind: str, tokenizer: str) -> None:
    check_same(loss, kind, tokenizer)


def penalized(loss: str, kind: str, _: str) -> bool:
    """NTIL puts the error of a number, and the mass that is lost to it, at the digit that is written first."""
    return loss != "ntil" or not any(part in kind for part in ("padded", "reversed"))


@every_pair("loss, kind, tokenizer", NUMBER_LEVEL, READABLE, TOKENIZERS, only=penalized)
def test_mass_outside_costs_the_same_in_every_format(loss: str, kind: str, tokenizer: str) -> None:
    check_same(loss, kind, tokenizer, outside="penalize")


def one_order(_: str, kind: str, tokenizer: str) -> bool:
    """Token-level losses see the value of a token as it is written: with several digits, another one if they are reversed."""
    return tokenizer != "three digits" or "reversed" not in kind or "spaced" in kind


@every_pair("loss, kind, tokenizer", TOKEN_LEVEL, READABLE, TOKENIZERS, only=one_order)
def test_place_weights_do_not_depend_on_the_format(loss: str, kind: str, tokenizer: str) -> None:
    check_same(loss, kind, tokenizer, places="del")


@every_pair("places, kind, tokenizer", ["exponential", "linear", "del"], READABLE, TOKENIZERS)
def test_weights_by_place(places: str, kind: str, tokenizer: str) -> None:
    """The share of a place in the cost of a token is that of plain text, also where tokens are reversed."""
    shares = []
    for own in ("plain", kind):
        logits, labels, at = batch(own, tokenizer, 1 if "spaced" in kind else 3, Digits(), signs=False)
        losses = [nm.EMDLoss(vocab_of(tokenizer, own), places=chosen) for chosen in (places, "uniform")]
        weighted, even = (loss(logits, labels, reduction="none").detach() for loss in losses)
        shares.append([float(weighted[i, t] / even[i, t]) for i, row in enumerate(at) for t in row])
    assert shares[1] == pytest.approx(shares[0], rel=1e-9)
    assert len({*shares[0]}) > 1


@pytest.mark.parametrize("loss", TOKEN_LEVEL)
def test_losses_that_score_tokens_alone_do_not_know_the_format(loss: str) -> None:
    """Same labels, same value, also in formats whose places are not read."""
    logits, labels, _ = batch("plain", "three digits", 3, Digits(), signs=False)
    plain = nm.LOSSES[loss](vocab_of("three digits", "plain"), places="uniform")(logits, labels)
    for kind in KINDS:
        assert torch.equal(nm.LOSSES[loss](vocab_of("three digits", kind), places="uniform")(logits, labels), plain), kind


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("loss", nm.LOSSES)
def test_the_power_of_ten_first_is_refused(loss: str, kind: str) -> None:
    """Where complete numbers are read; with the reason, when the loss is made."""
    settings = {} if loss in NUMBER_LEVEL else {"places": "del"}
    parts = [nm.LOSSES[loss].__name__, f"format={kind!r}", "the power of ten comes before", "cross-entropy"]
    refused(ValueError, parts, lambda: nm.LOSSES[loss](vocab_of("one digit", kind), **settings))


@pytest.mark.parametrize("loss", ["ntil", "ntl_number", "digit_entropy"])
def test_published_code_reads_plain_and_padded_numbers(loss: str) -> None:
    for kind in READABLE:
        vocab = vocab_of("one digit", kind)
        if kind in ("plain", "padded"):
            logits, labels, _ = batch(kind, "one digit", 1, Digits(), signs=False)
            plain = nm.LOSSES[loss].released(vocab_of("one digit", "plain"))
            assert torch.equal(nm.LOSSES[loss].released(vocab)(logits, labels), plain(logits, labels))
        else:
            parts = ["published code", f"format={kind!r}", "without variant='released'"]
            refused(ValueError, parts, partial(nm.LOSSES[loss].released, vocab))


@every_tokenizer
@every_kind
def test_a_wrong_padding_zero_costs(kind: str, tokenizer: str) -> None:
    """Each number-level loss charges a digit in place of a leading zero, more the higher its place."""
    if "padded" not in kind:
        return
    logits, labels, _ = batch(kind, tokenizer, 1 if "spaced" in kind else 3, Digits(), signs=False)
    logits, vocab = logits.detach(), vocab_of(tokenizer, kind)
    spans = nm.NumberSpans.from_labels(labels, vocab)
    zeros = (spans.has_place & (spans.exponent > spans.leading))[0].nonzero()[:, 0]
    assert len(zeros)
    order = sorted(zeros.tolist(), key=lambda t: int(spans.exponent[0, t]))
    for loss in NUMBER_LEVEL:
        costs = [float(nm.LOSSES[loss](vocab)(logits, labels))]
        for t in order:
            wrong = logits.clone()
            digit = TOKENIZERS[tokenizer][int(labels[0, t])].replace("0", "7")
            wrong[0, t, TOKENIZERS[tokenizer].index(digit)] = -NEVER
            costs.append(float(nm.LOSSES[loss](vocab)(wrong, labels)))
        assert costs == sorted(costs), loss
        assert costs[0] < costs[1], loss


def of_objective(loss: str, kind: str) -> tuple[nm.NumericObjective, Tensor, Tensor, Tensor, Tensor]:
    """An objective, logits, labels, and what the objective makes of them: its loss and gradient."""
    objective = nm.NumericObjective(nm.LOSSES[loss](vocab_of("after a space", kind)))
    logits, labels, _ = batch(kind, "after a space", 3, Digits(), signs=True)
    logits = logits.detach().requires_grad_()
    value = objective(logits, labels).loss
    return objective, logits, labels, value, torch.autograd.grad(value, logits)[0]


@every_kind
@pytest.mark.parametrize("loss", [*NUMBER_LEVEL, "digit_entropy"])
def test_from_hidden_states(loss: str, kind: str) -> None:
    objective, logits, labels, value, grad = of_objective(loss, kind)
    fused = objective.fused(logits, torch.eye(logits.shape[-1], dtype=torch.float64), labels, impl="torch")
    torch.testing.assert_close(fused.loss, value)
    torch.testing.assert_close(torch.autograd.grad(fused.loss, logits)[0], grad)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("kind", "loss"), some_of_each(["padded+reversed+spaced", "padded+grouped"], [*NUMBER_LEVEL, "digit_entropy"], 2)
)
def test_compiles_without_a_graph_break(loss: str, kind: str) -> None:
    objective, logits, labels, value, grad = of_objective(loss, kind)
    torch._dynamo.reset()
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")(logits, labels)
    torch.testing.assert_close(compiled.loss, value)
    torch.testing.assert_close(torch.autograd.grad(compiled.loss, logits)[0], grad)


@every_kind
def test_no_shape_depends_on_the_labels(kind: str) -> None:
    """On a GPU nothing waits for the data: labels without values, on the device meta, are read too."""
    vocab = vocab_of("after a space", kind)
    _, labels, _ = batch(kind, "after a space", 3, Digits(), signs=False)
    for loss in NUMBER_LEVEL:
        own = nm.LOSSES[loss](vocab).to("meta")
        logits = torch.zeros((*labels.shape, vocab.vocab_size), device="meta")
        targets = own.targets(labels.to("meta"), compact=False)
        assert own.row_costs(*own.select(logits, targets), targets).shape == (labels.numel(),)
