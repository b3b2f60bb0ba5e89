"""NeMo Automodel: the loss of a recipe is the objective, divided by the label tokens of the step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.objective.sharded import ThreadCut, Threads
from tests.samples import BATCHES, VOCABS
from torch import Tensor, nn

from numerate import LOSSES, NumericObjective, NumericVocab
from numerate.integrations import nemo

VOCAB, LABELS = VOCABS["chunks"], BATCHES["chunks"]
LOGITS = torch.randn(*LABELS.shape, VOCAB.vocab_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MODULES = ("nemo_automodel", "nemo_automodel.components", "nemo_automodel.components.loss")


class MaskedCrossEntropy(nn.Module):
    """The signature of NeMo Automodel's."""

    def __init__(self, fp32_upcast: bool = True, ignore_index: int = -100, reduction: str = "sum") -> None:
        super().__init__()
        self.fp32_upcast, self.ignore_index, self.reduction = fp32_upcast, ignore_index, reduction


@pytest.fixture
def automodel(monkeypatch) -> Iterator[None]:
    nemo._kind.cache_clear()
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module: Any = ModuleType("nemo_automodel.components.loss.masked_ce")
    module.MaskedCrossEntropy = MaskedCrossEntropy
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    nemo._kind.cache_clear()


def objective_of(name: str, **options: Any) -> NumericObjective:
    return NumericObjective(LOSSES[name](VOCAB), **{"weight": 0.7, "normalize": "tokens", **options})


def tokenizer_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``org/model`` have a tokenizer of the vocabulary."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, **_: {"org/model": "its tokenizer"}[name])
    monkeypatch.setattr(NumericVocab, "from_tokenizer", lambda tokenizer, **_: {"its tokenizer": VOCAB}[tokenizer])


def recipe(loss_fn: nn.Module, logits: Tensor, processes: int = 2) -> tuple[Tensor, Tensor]:
    """Return loss and gradient as a recipe on so many processes of one row each: backward of loss · processes, and a mean."""
    tokens = int((LABELS != -100).sum())
    values = [loss_fn(logits=logits[[row]], labels=LABELS[[row]], num_label_tokens=tokens) for row in range(len(LABELS))]
    (grad,) = torch.autograd.grad(sum(value * processes for value in values), logits)
    return sum(values).detach(), grad / processes


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_the_objective_of_all_its_batches(automodel, name: str) -> None:
    objective = objective_of(name)
    loss_fn = nemo.loss_of(objective, whole_sequences=True)
    assert isinstance(loss_fn, MaskedCrossEntropy)
    logits = LOGITS.clone().requires_grad_()
    truth = objective(logits, LABELS).loss
    (expected,) = torch.autograd.grad(truth, logits)
    loss, grad = recipe(loss_fn, logits)
    assert torch.isclose(loss, truth, rtol=1e-12)
    assert torch.allclose(grad, expected, rtol=1e-9, atol=1e-14)
    summed = loss_fn(LOGITS, LABELS)  # as pipelines call it
    assert torch.isclose(summed / (LABELS != -100).sum(), truth, rtol=1e-12)


@pytest.mark.parametrize("name", ["smmd", "number"])
def test_sequences_that_are_cut(automodel, name: str) -> None:
    """The sum over the processes is the loss of whole sequences, and each has its part of the gradient."""
    objective = objective_of(name)
    labels = F.pad(LABELS, (1, -(1 + LABELS.shape[1]) % 4), value=-100)  # the first border is within a number
    logits = torch.randn(*labels.shape, VOCAB.vocab_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, whole, threads = int((labels != -100).sum()), logits.clone().requires_grad_(), Threads(2)
    truth = objective(whole, labels).loss
    (expected,) = torch.autograd.grad(truth, whole)

    def part(rank: int) -> Tensor:
        cut = ThreadCut(threads, rank, "zigzag")
        positions = cut.positions(labels.shape[1] // 2)[rank]
        own = logits[:, positions].requires_grad_()
        loss = nemo.loss_of(objective, cut=cut)(logits=own, labels=labels[:, positions], num_label_tokens=tokens)
        (grad,) = torch.autograd.grad(loss, own)
        assert torch.allclose(grad, expected[:, positions], rtol=1e-9, atol=1e-14)
        return loss.detach()

    assert torch.isclose(sum(threads.run(part)), truth, rtol=1e-12)
    with pytest.raises(NotImplementedError, match="noise"):
        nemo.loss_of(NumericObjective(LOSSES["ntil"](VOCAB, noise=0.1), normalize="tokens"), cut=ThreadCut(threads, 0, "zigzag"))


def test_a_mask_leaves_positions_out(automodel) -> None:
    objective = objective_of("smmd")
    mask = torch.arange(LABELS.shape[1]) % 3 > 0
    found = nemo.loss_of(objective)(LOGITS, LABELS, mask=mask.long().expand_as(LABELS), num_label_tokens=7)
    assert torch.isclose(found, objective(LOGITS, LABELS.masked_fill(~mask, -100), num_items=7).loss, rtol=1e-12)


def test_a_yaml_says_it_all(automodel, monkeypatch) -> None:
    tokenizer_of_model(monkeypatch)
    made: Any = nemo.build_loss("org/model", numeric_loss="ntil", weight=0.5, settings={"alpha": 0.7}, whole_sequences=True)
    objective = NumericObjective(LOSSES["ntil"](VOCAB, alpha=0.7), weight=0.5, normalize="tokens")
    truth = objective(LOGITS, LABELS)
    assert torch.isclose(made(LOGITS, LABELS, num_label_tokens=int(truth.num_items)), truth.loss, rtol=1e-12)


def test_what_is_refused(automodel) -> None:
    with pytest.raises(ValueError, match="does not count the numbers of a step"):
        nemo.loss_of(objective_of("smmd", normalize="numeric"))
    with pytest.raises(ValueError, match="expected whole_sequences=True"):
        nemo.loss_of(objective_of("number"))
    with pytest.raises(TypeError, match="expected a NumericObjective"):
        nemo.loss_of(LOSSES["smmd"](VOCAB))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="smd"):
        nemo.build_loss("org/model", numeric_loss="smd")


def test_nemos_loader_takes_the_yaml(monkeypatch, tmp_path) -> None:
    pytest.importorskip("nemo_automodel.components.loss.masked_ce", reason="nemo_automodel is not installed")
    loader: Any = pytest.importorskip("nemo_automodel.components.config.loader")
    from nemo_automodel.components.loss import build_loss_config

    nemo._kind.cache_clear()
    tokenizer_of_model(monkeypatch)
    text = (nemo.__doc__ or "").split("::\n\n")[1].split("\n\n")[0].replace("Qwen/Qwen3-0.6B", "org/model")
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    section = loader.load_yaml_config(tmp_path / "recipe.yaml").loss_fn.to_dict()
    made = build_loss_config(section.pop("_target_"), **section).build()
    truth = objective_of("smmd", weight=0.3)(LOGITS, LABELS)
    assert torch.isclose(made(LOGITS, LABELS, num_label_tokens=int(truth.num_items)), truth.loss, rtol=1e-12)


def test_without_a_numeric_term_it_is_nemos_own_loss() -> None:
    """By what its recipe calls."""
    own = pytest.importorskip("nemo_automodel.components.loss.masked_ce", reason="nemo_automodel is not installed")
    from nemo_automodel.components.loss import build_loss_config
    from nemo_automodel.components.loss.utils import calculate_loss

    nemo._kind.cache_clear()
    ours = build_loss_config(nemo.loss_of, objective=objective_of("smmd", weight=0.0)).build()
    given = {"labels": LABELS, "num_label_tokens": 11, "hidden_states": None, "model": None, "lm_weight": None}
    results = []
    for loss_fn in (own.MaskedCrossEntropy(), ours):
        assert isinstance(loss_fn, own.MaskedCrossEntropy)
        logits = LOGITS.float().requires_grad_()
        value = calculate_loss(loss_fn, logits=logits, **given)
        results.append((value.detach(), *torch.autograd.grad(value, logits)))
    assert torch.isclose(results[1][0], results[0][0], rtol=1e-6)
    assert torch.allclose(results[1][1], results[0][1], rtol=1e-5, atol=1e-8)
    ce = F.cross_entropy(LOGITS.flatten(0, 1), LABELS.flatten(), reduction="sum") / 11
    assert torch.isclose(results[0][0].double(), ce, rtol=1e-6)
