"""What torch can do deterministically: no loss uses an operation that ``torch.use_deterministic_algorithms(True)`` refuses."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import numerate as nm
from numerate.losses import LOSSES
from numerate.targets.soft_targets import SoftTargets

REFUSED = ("aten.put_", "aten.histc", "aten.bincount", "aten.median", "aten.nll_loss2d", "aten.kthvalue")
VOCAB = nm.NumericVocab.from_texts({**{str(digit): digit for digit in range(10)}, ".": 10, "-": 11}, vocab_size=16)
LABELS = torch.tensor([[1, 2, 10, 3, 12, 11, 4, 5]])
SOFT = SoftTargets(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1, 2, 2, 3]]), torch.full((1, 4), 0.5))


class Refusing(TorchDispatchMode):
    """Note operations that torch refuses on a GPU: those above, and cumulative sums of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        self.count += 1
        sums = name.startswith("aten.cumsum") and args[0].is_floating_point()
        if sums or name.startswith(REFUSED):
            self.refused.add(name)
        return function(*args, **(kwargs or {}))


def gradients(objective, **soft):
    """Return the loss and its gradients from logits, and from hidden states."""
    generator = torch.Generator().manual_seed(0)
    logits, hidden, head = (
        torch.randn(shape, generator=generator).requires_grad_() for shape in ((1, 8, 16), (1, 8, 6), (16, 6))
    )
    losses = [objective(logits, LABELS, **soft).loss, objective.fused(hidden, head, LABELS, impl="torch", **soft).loss]
    return [*losses, *torch.autograd.grad(sum(losses), [logits, hidden, head])]


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", [*LOSSES, "soft"])
def test_deterministic_mode(name, deterministic):
    soft = {"soft": SOFT} if name == "soft" else {}
    objective = nm.NumericObjective(None, vocab=VOCAB) if soft else nm.NumericObjective(LOSSES[name](VOCAB))
    with Refusing() as seen:
        first = gradients(objective, **soft)
    assert seen.count > 50
    assert not seen.refused
    assert all(map(torch.equal, first, gradients(objective, **soft)))


def test_what_is_refused_is_seen():
    with Refusing() as seen:
        torch.ones(3).cumsum(0)
        torch.ones(3).int().cumsum(0)
        torch.ones(3).median()
    assert seen.refused == {"aten.cumsum.default", "aten.median.default"}
