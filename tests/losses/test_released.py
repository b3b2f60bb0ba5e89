"""``released`` computes what the published code computed: values, gradients and grams measured by running that code.

``data/reference_values.json`` holds them, for SMMD, NTIL and ntloss, on small inputs; ``test_digit_entropy.py`` has those of DEL.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reference import REFERENCES, ReferenceCost
from torch import Tensor

import numerate as nm

DATA = json.loads((Path(__file__).parents[1] / "data" / "reference_values.json").read_text())
MULTI = DATA["multi"]
CLOSE = 1e-5

DIGITS = nm.NumericVocab.from_texts(DATA["vocab"], vocab_size=DATA["vocab_size"])
THOUSAND = nm.NumericVocab.from_texts(
    {str(i): MULTI["first_id"] + i for i in range(MULTI["count"])}, vocab_size=MULTI["vocab_size"]
)


def cases(*families: str) -> Any:
    found = [case for case in [*DATA["cases"], *MULTI["cases"]] if case["family"] in families]
    return pytest.mark.parametrize("case", found, ids=[case["name"] for case in found])


def inputs(case: dict[str, Any]) -> tuple[nm.NumericVocab, Tensor, Tensor]:
    labels = torch.tensor(case["labels"])
    if case in MULTI["cases"]:  # by the recipe in the file
        phase = torch.arange(labels.numel() * MULTI["vocab_size"], dtype=torch.float64) * 0.6180339887498949 * 4
        logits = ((phase - phase.floor()) * 6 - 3).float()
        return THOUSAND, logits.reshape(case["shape"]).requires_grad_(), labels
    return DIGITS, torch.tensor(DATA["logits"]).reshape(case["shape"]).requires_grad_(), labels


def settings(case: dict[str, Any]) -> dict[str, Any]:
    """The published arguments under our names."""
    args, ours = dict(case["args"]), {}
    if case["family"] == "smmd":
        assert args.pop("tau_mode", "fixed") == "fixed"
        read: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "loss_mode": ("terms", str),
            "kernel_type": ("kernel", {"laplace": "laplacian", "gaussian": "gaussian"}.__getitem__),
            "sigmas": ("sigma", tuple),
            "squash_factor": ("squash", lambda factor: factor if factor > 1 else None),
            "tau_fixed": ("alpha", float),
            "kernel_mode": ("ablation", {"random_kernel": "random", "shuffled_mapping": "shuffled"}.__getitem__),
        }
    elif case["family"] == "ntil":
        read = {
            "abs_alpha": ("alpha", float),
            "mag_alpha": ("beta", float),
            "digit_alpha": ("emd_weight", float),
            "digit_exp": ("sigma", lambda factor: factor - 1),
        }
    else:
        assert args.pop("float_level", False) is False
        read = {"reweigh": ("reweigh", bool)}
        ours["kind"] = {"NTLoss": "was", "NTLossDotProduct": "mse", "NumberLevelLoss": "number"}[case["cls"]]
    for name, value in args.items():
        key, convert = read[name]
        ours[key] = convert(value)
    return ours


def released(case: dict[str, Any], vocab: nm.NumericVocab, **more: Any) -> nm.NumericLoss:
    if case["family"] == "ntil":
        more["noise"] = 0
    build = {"smmd": nm.SMMDLoss, "ntil": nm.NTILLoss, "ntl": nm.NTLLoss}[case["family"]].released
    return build(vocab, **{**settings(case), **more})


def published_reference(case: dict[str, Any], vocab: nm.NumericVocab) -> Callable[[Tensor, Tensor], ReferenceCost]:
    """The reference of the released variant; without noise, which no reference has."""
    name = "ntl_was" if case["family"] == "ntl" else case["family"]
    still = {"noise": 0} if name == "ntil" else {}
    return partial(REFERENCES[name], vocab=vocab, variant="released", **still, **settings(case))


def close(found: Tensor | float, published: Any) -> None:
    """Within 1e-5 of the largest published entry."""
    found, published = torch.as_tensor(found).detach().double(), torch.as_tensor(published, dtype=torch.float64)
    assert found.shape == published.shape
    assert float((found - published).abs().max()) <= CLOSE * float(published.abs().max())


def check(case: dict[str, Any], value: Tensor, logits: Tensor) -> None:
    """Value and gradient, as far as they were measured."""
    close(value, case["loss"])
    (grad,) = torch.autograd.grad(value, logits, retain_graph=True)
    if "grad_numeric" in case:
        ids = case["numeric_ids"]
        close(grad[..., ids], torch.tensor(case["grad_numeric"]).reshape(*grad.shape[:-1], len(ids)))
        others = [i for i in range(grad.shape[-1]) if i not in ids]
        assert float(grad[..., others].abs().max()) == 0
    if "grad_norm" in case:
        close(grad.norm(), case["grad_norm"])
        close(grad.abs().sum(), case["grad_abs_sum"])


@cases("smmd", "ntil", "ntl")
def test_value_and_gradient(case: dict[str, Any]) -> None:
    """Of the loss, and of its reference."""
    vocab, logits, labels = inputs(case)
    check(case, released(case, vocab)(logits, labels), logits)
    check(case, published_reference(case, vocab)(logits, labels).mean, logits)


@cases("smmd")
def test_alpha_and_gram(case: dict[str, Any]) -> None:
    vocab, _, _ = inputs(case)
    loss = released(case, vocab)
    assert isinstance(loss, nm.SMMDLoss)
    close(loss.alpha, case["alpha"])
    if "gram" in case:
        size = len(case["numeric_ids"])
        assert loss.columns.tolist() == case["numeric_ids"]
        close(loss.gram, torch.tensor(case["gram"]).reshape(size, size))


@pytest.mark.parametrize("part", ["emd", "relative", "magnitude"])
@cases("ntil")
def test_parts_of_each_sequence(case: dict[str, Any], part: str) -> None:
    """Earth mover's distance, relative and magnitude error of each sequence, before they are weighed and added."""
    vocab, logits, labels = inputs(case)
    names = {"emd": "emd_weight", "relative": "alpha", "magnitude": "beta"}
    alone = {name: float(key == part) for key, name in names.items()}
    loss = released(case, vocab, **alone)
    found = torch.stack([loss(logits[row], labels[row]) for row in range(len(labels))])
    close(found, [sequence[part] for sequence in case["per_sequence"]])


def test_released_defaults() -> None:
    """Leading zeros, spaces and wide tokens are left out as published; settings given win over them."""
    texts = {**{str(d): d for d in range(10)}, "05": 10, " 5": 11, "12": 12, "1000": 13}
    vocab = nm.NumericVocab.from_texts(texts, vocab_size=14)
    assert nm.SMMDLoss.released(vocab).vocab.texts == (*"0123456789", "12")
    assert nm.SMMDLoss.released(vocab, max_value=9).vocab.size == 10
    assert nm.NTILLoss.released(vocab).vocab.is_single_digits
    assert nm.NTLLoss.released(vocab).vocab.is_single_digits
    assert nm.NTLLoss.released(vocab, digit_level=False).vocab.texts == (*"01234", "5", "05", *"6789", "12", "1000")  # no " 5"
    ntil = nm.NTILLoss.released(vocab)
    assert (ntil.numbers, ntil.average, ntil.noise, ntil.tau) == ("runs", "sequence", 0.01, 0.1)
    assert nm.NTILLoss.released(vocab, average="number").average == "number"
    assert nm.NTLLoss.released(vocab).outside == "penalize"
    assert nm.NTLLoss.released(vocab, reweigh=False).outside == "ignore"


OVERRIDES: dict[str, list[dict[str, Any]]] = {
    "smmd": [
        {"sigma": 1.0},
        {"squash": None},
        {"max_value": 7},
        {"terms": "smooth", "ablation": "random"},
        {"outside": "penalize"},
    ],
    "ntil": [{"noise": 0}, {"average": "number"}, {"numbers": "values", "alpha": 1.0}, {"outside": "penalize"}],
    "digit_entropy": [{"outside": "penalize"}, {"places": "uniform"}, {"places": "exponential", "place_sigma": 0.5}],
    **{
        name: [{"reweigh": False}, {"outside": "ignore"}, {"digit_level": False}] for name in nm.LOSSES if name.startswith("ntl_")
    },
}


@pytest.mark.parametrize("name", [name for name, loss in nm.LOSSES.items() if hasattr(loss, "released")])
def test_the_variant_is_a_setting(name: str) -> None:
    """``loss_settings: {variant: released}`` of a config gives what ``released`` gives, and explicit settings override it."""
    texts = {**{str(d): d for d in range(10)}, "05": 10, " 5": 11, "12": 12, "1000": 13, "x": 14, "y": 15}
    vocab = nm.NumericVocab.from_texts(texts, vocab_size=16)
    labels = torch.tensor([[14, 1, 2, 15, 7], [12, 5, 14, 10, 13], [11, 3, 14, 15, 14]])
    values = []
    for overrides in [{}, *OVERRIDES[name]]:
        results = []
        for loss in (nm.LOSSES[name].released(vocab, **overrides), nm.LOSSES[name](vocab, variant="released", **overrides)):
            torch.manual_seed(0)  # of NTIL's noise
            logits = torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
            value = loss(logits, labels)
            results.append((value, *torch.autograd.grad(value, logits), loss.count(labels)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
        values.append(results[0][:2])
        still = overrides | ({"noise": 0} if name == "ntil" else {})  # a reference has no noise
        truth = REFERENCES[name](logits, labels, vocab, variant="released", **still).mean
        torch.testing.assert_close(nm.LOSSES[name].released(vocab, **still)(logits, labels), truth, rtol=1e-9, atol=0)
    # Every override has an effect, on value or gradient.
    assert not any(torch.equal(value, values[0][0]) and torch.equal(grad, values[0][1]) for value, grad in values[1:])
    assert not torch.equal(values[0][1], torch.autograd.grad(nm.LOSSES[name](vocab)(logits, labels), logits)[0])


def test_noise_is_small_and_random() -> None:
    """With its Gumbel noise of 0.01 the published loss wavers around the one without: a little, but for rare flips."""
    labels, logits = torch.tensor(DATA["cases"][0]["labels"]), torch.tensor(DATA["logits"]).reshape(4, 6, 20)
    torch.manual_seed(0)
    noisy, still = nm.NTILLoss.released(DIGITS), nm.NTILLoss.released(DIGITS, noise=0)
    calm = still(logits.requires_grad_(), labels)
    (calm_grad,) = torch.autograd.grad(calm, logits)
    grads = [torch.autograd.grad(noisy(logits, labels), logits)[0] for _ in range(15)]
    assert not torch.equal(grads[0], grads[1])
    assert torch.equal(still(logits, labels), calm)
    torch.testing.assert_close(torch.stack(grads).median(0).values, calm_grad, rtol=0, atol=0.05 * float(calm_grad.abs().max()))
