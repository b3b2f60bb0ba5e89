"""Overrun: the probability of digits where a number has ended, from logits and fused, against texts whose ends are known."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.samples import RATINGS, VOCABS, encode_batch
from torch import Tensor

from numerate import LOSSES, NumericObjective, NumericVocab, SMMDLoss
from numerate.objective.overrun import number_ends

MARKS = [".", ",", "-", " ", "x", "%", ")", "<end>"]
TOKENS = {
    1: [*map(str, range(10)), *MARKS],
    3: [*(f"{n:0{width}}" for width in (1, 2, 3) for n in range(10**width)), *MARKS],
}
IDS = {width: {text: i for i, text in enumerate(texts)} for width, texts in TOKENS.items()}
VOCAB = {width: NumericVocab.from_texts(ids, vocab_size=len(ids)) for width, ids in IDS.items()}
WORDS = [" ", "x ", "% ", ". ", ", x", ")x", " -x "]
H = 5


def number(rng: random.Random, width: int, *, thousands: bool) -> list[str]:
    """Return the tokens of a number: digits in groups of ``width``, a point or thousands commas."""

    def groups(digits: str) -> list[str]:
        return [digits[i : i + width] for i in range(0, len(digits), width)]

    def digits(count: int) -> str:
        return "".join(rng.choices("0123456789", k=count))

    if thousands and rng.random() < 0.5:
        return [*groups(digits(rng.randint(1, 3))), *(t for _ in range(rng.randint(1, 2)) for t in (",", *groups(digits(3))))]
    whole = groups(digits(rng.randint(1, 7)))
    return whole if rng.random() < 0.5 else [*whole, ".", *groups(digits(rng.randint(1, 4)))]


def texts(width: int, *, thousands: bool, rows: int = 8, length: int = 70) -> tuple[Tensor, Tensor, Tensor]:
    """Return aligned labels, position ids and the mask of first labels after a number, ``[B, T]`` each.

    Each row holds several documents, some of which end in a number. Prompts, and some of the ends, are not trained.
    """
    rng, ids = random.Random(width), IDS[width]
    labels, positions = torch.full((rows, length), -100), torch.zeros((rows, length), dtype=torch.int64)
    ends = torch.zeros((rows, length), dtype=torch.bool)
    for row in range(rows):
        start = 0
        while True:
            tokens = ["x"] if rng.random() < 0.5 else []
            after: list[int] = []  # positions directly after a number
            for _ in range(rng.randint(1, 3)):
                tokens += number(rng, width, thousands=thousands)
                after.append(len(tokens))
                tokens += [*rng.choice(WORDS)] if rng.random() < 0.7 else ["<end>"]
            if rng.random() < 0.5:
                tokens += ["x", *number(rng, width, thousands=thousands)]  # the next document follows a number
            if start + len(tokens) > length:
                break
            trained = [ids[token] for token in tokens]
            prompt = min(rng.choice([0, 0, 2, 4]), len(tokens))
            trained[:prompt] = [-100] * prompt
            for end in after:
                if rng.random() < 0.2:
                    trained[end] = -100
                ends[row, start + end] = trained[end] != -100 and trained[end - 1] != -100
            here = slice(start, start + len(tokens))
            labels[row, here], positions[row, here] = torch.tensor(trained), torch.arange(len(tokens))
            start = here.stop
    return labels, positions, ends


def scores(labels: Tensor, vocab_size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return hidden states and a head."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((*labels.shape, H), (vocab_size, H))
    hidden, weight = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return hidden, weight


def brute_force(logits: Tensor, vocab: NumericVocab, ends: Tensor) -> float:
    """Return the mean over ends, one softmax at a time."""
    masses = [logits[tuple(place)].double().softmax(-1)[vocab.token_ids].sum() for place in ends.nonzero()]
    return float(torch.stack(masses).mean())


@pytest.mark.parametrize("thousands", [False, True])
@pytest.mark.parametrize("width", TOKENS)
def test_where_numbers_end(width, thousands):
    labels, positions, ends = texts(width, thousands=thousands)
    assert 20 < ends.sum() < ends.numel() / 3
    found = number_ends(labels, VOCAB[width], positions, thousands=thousands)
    assert torch.equal(found, ends)
    across = number_ends(labels, VOCAB[width], thousands=thousands) & ~ends
    assert (positions[across] == 0).any()  # text that begins a document, after a number
    if thousands:
        assert (number_ends(labels, VOCAB[width], positions) & ~ends & (labels == IDS[width][","])).any()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.5x", "....^"),
        ("12. 5x", "..^..^"),
        ("3-5 ", ".^.^"),
        ("1.2.3.4", "...^..."),
        ("1e5)", "...^"),
        ("1e)", ".^."),
        ("x_5_x", "....."),
        ("5 -3x", ".^..^"),
        ("7", "."),
        ("x", "."),
    ],
)
def test_texts(text, expected):
    vocab_texts = {token: i for i, token in enumerate([*"0123456789", *".-,() ex"])}
    labels = encode_batch([text], vocab_texts)
    found = number_ends(labels, NumericVocab.from_texts(vocab_texts, vocab_size=len(vocab_texts)))
    assert "".join("^" if end else "." for end in found[0]) == expected


def test_tokens_that_are_numbers_by_themselves():
    labels = torch.tensor([[3, 9, 0, 1, 8, -100], [-100, 0, 5, 4, 4, 2]])
    assert number_ends(labels, VOCABS["ratings"]).nonzero().tolist() == [[0, 2], [1, 5]]
    assert set(RATINGS).isdisjoint({0, 1, 2})


def objective_of(name: str | None, width: int, **settings: Any) -> NumericObjective:
    vocab = VOCAB[width]
    return NumericObjective(None, vocab=vocab) if name is None else NumericObjective(LOSSES[name](vocab, **settings))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("width", TOKENS)
@pytest.mark.parametrize("name", [None, "smmd", "number"])
def test_equals_brute_force(name, width, dtype):
    objective = objective_of(name, width)
    labels, positions, ends = texts(width, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[width]) + 2, dtype)
    logits = hidden @ weight.T
    expected = brute_force(logits, VOCAB[width], ends)
    chunked = {"max_logits_mib": 7 * weight.shape[0] * weight.itemsize / 2**20}
    outputs = [
        objective(logits, labels, position_ids=positions, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True, **chunked),
    ]
    for out in outputs:
        assert out.overrun.item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)
        assert out.num_ends == ends.sum()
        assert not out.overrun.requires_grad
    without = objective(logits, labels, position_ids=positions)
    assert (without.overrun, without.num_ends) == (None, None)


def test_thousands_is_a_setting_of_the_loss():
    labels, positions, ends = texts(3, thousands=True)
    objective = objective_of("smmd", 3, thousands=True)
    hidden, weight = scores(labels, len(TOKENS[3]))
    expected = brute_force(hidden @ weight.T, VOCAB[3], ends)
    for out in (
        objective(hidden @ weight.T, labels, position_ids=positions, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True),
    ):
        assert out.overrun.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [None, "smmd", "number"])
def test_changes_nothing_else(name):
    objective = objective_of(name, 1)
    labels, positions, _ = texts(1, thousands=False)
    tensors = [tensor.requires_grad_() for tensor in scores(labels, len(TOKENS[1]))]
    for call in (
        lambda **given: objective(tensors[0] @ tensors[1].T, labels, position_ids=positions, **given),
        lambda **given: objective.fused(*tensors, labels, position_ids=positions, **given),
    ):
        results = [(out.loss, *torch.autograd.grad(out.loss, tensors)) for out in (call(), call(with_overrun=True))]
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_of_shaped_logits():
    objective = objective_of("smmd", 1)
    labels, positions, ends = texts(1, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[1]))
    bias = torch.linspace(-2, 2, weight.shape[0], dtype=torch.float64)
    logits = 4 * torch.tanh(0.7 * (hidden @ weight.T + bias) / 4)
    out = objective.fused(hidden, weight, labels, bias, position_ids=positions, logit_scale=0.7, softcap=4.0, with_overrun=True)
    assert out.overrun.item() == pytest.approx(brute_force(logits, VOCAB[1], ends), rel=1e-12)


def test_raw_labels():
    """Labels and positions of the input tokens, moved one position to the left."""
    objective = objective_of("smmd", 3)
    labels, positions, ends = texts(3, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[3]))
    expected = brute_force((hidden @ weight.T)[:, :-1], VOCAB[3], ends[:, 1:])
    for out in (
        objective(hidden @ weight.T, labels, position_ids=positions, shift=True, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, shift=True, with_overrun=True),
    ):
        assert out.overrun.item() == pytest.approx(expected, rel=1e-12)


def test_another_ignore_index():
    labels, positions, ends = texts(1, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[1]))
    ignored = IDS[1]["<end>"]  # a token id: numbers before it have no end
    objective = objective_of("smmd", 1, ignore_index=ignored)
    labels = labels.masked_fill(labels == -100, ignored)
    expected = brute_force(hidden @ weight.T, VOCAB[1], ends & (labels != ignored))
    for out in (
        objective(hidden @ weight.T, labels, position_ids=positions, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True),
    ):
        assert out.overrun.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("certain", [False, True])
def test_known_answers(certain):
    """A model that is sure of the labels has 0, one that always writes digits 1, whatever is at ignored positions."""
    labels, positions, _ = texts(1, thousands=False)
    right = torch.nn.functional.one_hot(labels.clamp_min(0), len(TOKENS[1])).double() * 100
    digits = torch.zeros_like(right).index_fill(-1, VOCAB[1].token_ids, 100.0)
    logits = (right if certain else digits).masked_fill((labels == -100)[..., None], torch.nan)
    out = objective_of(None, 1)(logits, labels, position_ids=positions, with_overrun=True)
    assert out.overrun.item() == pytest.approx(0.0 if certain else 1.0, abs=1e-12)


def test_no_number_ends():
    labels = torch.tensor([[0, 1, 2], [-100, -100, -100], [14, 14, 0]])
    hidden, weight = scores(labels, len(TOKENS[1]))
    objective = objective_of("smmd", 1)
    for out in (
        objective(hidden @ weight.T, labels, with_overrun=True),
        objective.fused(hidden, weight, labels, with_overrun=True),
        objective.fused(hidden, weight, torch.full_like(labels, -100), with_overrun=True),
    ):
        assert (out.overrun, out.num_ends) == (0, 0)


@pytest.mark.compile
@pytest.mark.parametrize("name", [None, "smmd"])
def test_compiles_to_one_graph(name):
    torch._dynamo.reset()
    objective = objective_of(name, 1)
    labels, positions, ends = texts(1, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[1]), torch.float32)
    logits = hidden @ weight.T
    out = torch.compile(objective, fullgraph=True, backend="eager")(logits, labels, position_ids=positions, with_overrun=True)
    assert out.overrun.item() == pytest.approx(brute_force(logits, VOCAB[1], ends), rel=1e-5)
    assert out.num_ends == ends.sum()


def test_cross_entropy_alone_needs_a_vocabulary():
    labels, positions, _ = texts(1, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[1]))
    objective = NumericObjective(None)
    for out in (
        objective(hidden @ weight.T, labels, position_ids=positions, with_overrun=True),
        objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True),
    ):
        assert (out.overrun, out.num_ends) == (None, None)


def test_a_vocabulary_changes_no_cross_entropy():
    labels, _, _ = texts(1, thousands=False)
    hidden, weight = scores(labels, len(TOKENS[1]))
    plain, known = NumericObjective(None), NumericObjective(None, vocab=VOCAB[1])
    for a, b in (
        (plain(hidden @ weight.T, labels), known(hidden @ weight.T, labels)),
        (plain.fused(hidden, weight, labels), known.fused(hidden, weight, labels)),
    ):
        assert torch.equal(a.loss, b.loss)
        assert b.numeric == b.num_units == 0
    assert "10 numeric tokens" in repr(known)


def test_wrong_vocabularies():
    with pytest.raises(
        TypeError, match="vocab is given with SMMDLoss, which has its own: expected vocab=... only with loss=None"
    ):
        NumericObjective(SMMDLoss(VOCAB[1]), vocab=VOCAB[1])
    with pytest.raises(TypeError, match="vocab is a dict: expected a NumericVocab"):
        NumericObjective(None, vocab=IDS[1])  # type: ignore[arg-type]
    objective, labels = NumericObjective(None, vocab=VOCAB[3]), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="V"):
        objective(torch.zeros(1, 2, 20), labels)
