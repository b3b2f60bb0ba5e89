"""Arguments: every one works or is refused with an error that names it and says what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.decode.test_model import Tokens, small
from tests.samples import BATCHES, TOLERANCE, VOCABS, grad_of, random_logits, refused

import numerate as nm

VOCAB, LABELS = VOCABS["marks"], BATCHES["marks"]
LOGITS = random_logits(LABELS, VOCAB, torch.float32)
HIDDEN, HEAD = torch.randn(*LABELS.shape, 4), torch.randn(VOCAB.vocab_size, 4)
every_loss = pytest.mark.parametrize("name", nm.LOSSES)

EXTREME: list[Any] = [0, -1, 1, 1e-320, 1e-200, 1e-30, 1e30, 1e200, float("nan"), float("inf"), "x", None, [], [1.0], np.ones(2)]


@every_loss
def test_every_setting_works_or_is_refused(name: str) -> None:
    """Settings of any value: finite costs and gradients, or an error that names the setting and what was expected."""
    bad = []
    for setting in nm.LOSSES[name].settings():
        for value in EXTREME:
            try:
                loss = nm.LOSSES[name](VOCAB, **{setting: value})
            except (TypeError, ValueError) as error:
                if not (setting in str(error) and "expected" in str(error)):
                    bad.append((setting, value, str(error)))
                continue
            logits = LOGITS.double().requires_grad_()
            cost = loss(logits, torch.where(LABELS == -100, loss.ignore_index, LABELS))
            if not bool(cost.isfinite() & grad_of(cost, logits).isfinite().all()):
                bad.append((setting, value, f"cost {float(cost.detach())}"))
    assert not bad


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64], ids=str)
@every_loss
def test_labels_of_any_integer_dtype(name: str, dtype: torch.dtype) -> None:
    labels = LABELS.clamp_min(0)
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    given = labels.to(dtype)
    assert torch.equal(objective.numeric_loss(LOGITS, given), objective.numeric_loss(LOGITS, labels))
    assert torch.equal(objective(LOGITS, given).loss, objective(LOGITS, labels).loss)
    assert torch.equal(objective.fused(HIDDEN, HEAD, given).loss, objective.fused(HIDDEN, HEAD, labels).loss)
    assert objective.count(given) == objective.count(labels)
    assert torch.equal(VOCAB.index_of(given), VOCAB.index_of(labels))


LISTED: dict[str, list[str]] = {
    "labels": ["labels is a", "torch tensor"],
    "logits": ["logits is a", "torch tensor"],
    "position_weights": ["position_weights is a", "torch.as_tensor(position_weights)"],
    "position_ids": ["position_ids is a", "torch.as_tensor(position_ids)"],
    "hidden": ["hidden is a", "torch.as_tensor(hidden)"],
    "head_weight": ["head_weight is a", "torch.as_tensor(head_weight)"],
    "bias": ["bias is a", "torch.as_tensor(bias)"],
}


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy], ids=["list", "array"])
@every_loss
def test_lists_and_arrays_are_refused(name: str, convert: Any) -> None:
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    plain = {
        "logits": LOGITS,
        "labels": LABELS,
        "position_weights": torch.ones(LABELS.shape),
        "position_ids": torch.ones_like(LABELS),
    }
    fused = {"hidden": HIDDEN, "head_weight": HEAD, "bias": torch.zeros(VOCAB.vocab_size), **plain}
    del fused["logits"]
    for call, arguments in ((objective.numeric_loss, plain), (objective, plain), (objective.fused, fused)):
        call(**arguments)
        for argument in arguments:
            refused(TypeError, LISTED[argument], lambda: call(**{**arguments, argument: convert(arguments[argument])}))  # noqa: B023


@pytest.mark.parametrize("wrong", [None, 1.5, float("nan"), "x", True])
@every_loss
def test_ignore_index_is_an_integer(name: str, wrong: Any) -> None:
    parts = [f"ignore_index={wrong!r}", "expected", "-100"]
    refused(TypeError, parts, lambda: nm.LOSSES[name](VOCAB, ignore_index=wrong))


@pytest.mark.parametrize("wrong", [0, 0.0, -1, float("nan"), float("inf"), torch.tensor(0), torch.tensor(-2), "7", [3]], ids=str)
@pytest.mark.parametrize("count", ["num_items", "num_units"])
@every_loss
def test_counts_that_cannot_be(name: str, count: str, wrong: Any) -> None:
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    for call in (
        lambda: objective(LOGITS, LABELS, **{count: wrong}),
        lambda: objective.fused(HIDDEN, HEAD, LABELS, **{count: wrong}),
    ):
        refused((TypeError, ValueError), [f"{count}={wrong!r}", "expected", "objective.count(labels)"], call)


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
@every_loss
def test_a_count_below_one_divides(name: str, kind: Any) -> None:
    """Counts are fractions where they were divided by processes or micro-batches, or where weights are small."""
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    one, half = ({"num_items": kind(count), "num_units": kind(count)} for count in (1.0, 0.5))
    for call in (lambda count: objective(LOGITS, LABELS, **count), lambda count: objective.fused(HIDDEN, HEAD, LABELS, **count)):
        torch.testing.assert_close(call(half).loss, 2 * call(one).loss)


@every_loss
def test_a_count_of_zero_where_there_is_nothing(name: str) -> None:
    """A step without labels counts none; so does one whose weights are all zero."""
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    nothing = torch.full_like(LABELS, -100)
    logits = LOGITS.clone().requires_grad_()
    out = objective(logits, nothing, num_items=0, num_units=0)
    assert float(out.loss.detach()) == 0
    assert float(grad_of(out.loss, logits).abs().max()) == 0
    assert float(objective.fused(HIDDEN, HEAD, nothing, num_items=0, num_units=torch.tensor(0.0)).loss) == 0
    weights = torch.zeros(LABELS.shape)
    assert float(objective(logits, LABELS, position_weights=weights, num_units=0).numeric) == 0
    assert float(objective.fused(HIDDEN, HEAD, LABELS, position_weights=weights, num_units=0).numeric) == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
@every_loss
def test_weights_are_finite_and_not_negative(name: str, wrong: float) -> None:
    objective = nm.NumericObjective(nm.LOSSES[name](VOCAB))
    weights = torch.ones(LABELS.shape)
    weights[1, 2] = wrong
    parts = ["position_weights", f"{wrong:g}", "expected finite weights >= 0"]
    for call in (
        lambda: objective.numeric_loss(LOGITS, LABELS, position_weights=weights),
        lambda: objective.numeric_loss.count(LABELS, position_weights=weights),
        lambda: objective(LOGITS, LABELS, position_weights=weights),
        lambda: objective.fused(HIDDEN, HEAD, LABELS, position_weights=weights),
    ):
        refused(ValueError, parts, call)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_triton_on_a_cpu_is_refused(dtype: torch.dtype) -> None:
    objective = nm.NumericObjective(nm.SMMDLoss(VOCAB))
    call = lambda: objective.fused(HIDDEN.to(dtype), HEAD.to(dtype), LABELS, impl="triton")  # noqa: E731
    refused(ValueError, ["impl='triton'", "cpu", str(dtype), "expected a CUDA device", "impl='auto'"], call)


@pytest.mark.parametrize("text", [".", ",", "-", " -", "(-"])
@pytest.mark.parametrize("wrong", [12, 99, -1])
def test_ids_of_marks_lie_in_the_vocabulary(text: str, wrong: int) -> None:
    texts = {**{str(d): d for d in range(10)}, text: wrong}
    refused(
        ValueError, [f"{wrong}", "vocab_size=12", "expected every id"], lambda: nm.NumericVocab.from_texts(texts, vocab_size=12)
    )


def test_a_kernel_that_is_no_tensor_is_refused() -> None:
    for kernel in (np.eye(10), np.eye(10).tolist()):
        parts = ["kernel is a", "expected", "torch.as_tensor(kernel)"]
        refused(TypeError, parts, lambda: nm.SMMDLoss(VOCAB, kernel=kernel))  # noqa: B023


NUMBERS = nm.NumberDistribution([1, 2, 3], [1, 1, 1])
PARTS = {**{str(digit): digit for digit in range(10)}, "-": 10, ".": 11}


def _searched(**settings: Any) -> Any:
    tokens, model = Tokens(["1", "2"]), small(["1", "2"])
    prompts = {"input_ids": torch.tensor([[1, 2]])}
    return nm.decode.distribution(model, prompts, tokens, **{"width": 2, **settings})[0].values


def _served(**settings: Any) -> Any:
    chances = {"x": [("1", -0.1)], "x1": [("\n", -0.1)]}
    return nm.decode.served_distribution(lambda texts: [chances[text] for text in texts], ["x"], **settings)[0].values


INTEGERS: dict[str, tuple[Any, int]] = {
    "distribution(width)": (lambda n: _searched(width=n), 3),
    "distribution(seed)": (lambda n: _searched(seed=n), 3),
    "distribution(seeds)": (lambda n: _searched(seed=[n]), 3),
    "distribution(batch_size)": (lambda n: _searched(batch_size=n), 3),
    "distribution(memory)": (lambda n: _searched(memory=n), 3000),
    "distribution(end_token_ids)": (lambda n: _searched(end_token_ids=n), 3),
    "served_distribution(width)": (lambda n: _served(width=n), 3),
    "served_distribution(seed)": (lambda n: _served(seed=n), 3),
    "served_distribution(batch_size)": (lambda n: _served(batch_size=n), 3),
    "CompletionServer(top)": (lambda n: nm.decode.CompletionServer("http://localhost", "m", top=n).top, 3),
    "CompletionServer(retries)": (lambda n: nm.decode.CompletionServer("http://localhost", "m", retries=n).retries, 3),
    "DecideNumbers(seed)": (lambda n: nm.decode.DecideNumbers(Tokens(["1"]), seed=n).seed, 3),
    "DecideNumbers(most_numbers)": (lambda n: nm.decode.DecideNumbers(Tokens(["1"]), most_numbers=n).most_numbers, 3),
    "numbers_only(prompt_length)": (lambda n: nm.decode.numbers_only(PARTS, end_token_ids=99, prompt_length=n).prompt_length, 3),
    "numbers_only(end_token_ids)": (lambda n: nm.decode.numbers_only(PARTS, end_token_ids=n).end_token_ids, 99),
    "NumberGrammar(digits)": (lambda n: nm.decode.NumberGrammar(digits=n).digits, 3),
    "NumberGrammar(decimals)": (lambda n: nm.decode.NumberGrammar(decimals=(n, n)).decimals, 3),
    "TextGrammar(most)": (lambda n: nm.decode.TextGrammar("12", int, most=n).most, 3),
    "sample(n)": (lambda n: NUMBERS.sample(n, 0), 3),
    "sample(seed)": (lambda n: NUMBERS.sample(2, n), 3),
    "bell(at_most)": (lambda n: nm.NumberDistribution.bell(5, width=1, at_most=n).values, 3),
    "bell(decimals)": (lambda n: nm.NumberDistribution.bell(5, width=1, decimals=n).values, 1),
    "SMMDLoss(ignore_index)": (lambda n: nm.SMMDLoss(VOCAB, ignore_index=n).ignore_index, 3),
}


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, torch.tensor], ids=["int64", "int32", "uint8", "tensor"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_any_type(name: str, kind: Any) -> None:
    call, number = INTEGERS[name]
    if kind is torch.tensor and ("ignore_index" in name or "sample" in name):
        pytest.skip("tensors are not taken here")
    assert call(kind(number % 256)) == call(number % 256)
    for wrong in (True, 1.0, "3"):
        with pytest.raises((TypeError, ValueError), match="expected|bool|integer"):
            call(wrong)
