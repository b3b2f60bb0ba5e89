"""torch.compile with inductor: value and gradient of every loss in the objective are those of eager torch.

A compilation takes ten seconds and more, so the default run compiles all losses together, once; ``-m slow`` has every setting
that changes the computation, and ``-m gpu`` the same on a CUDA device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_losses import NAMES, NUMBER_LEVEL
from tests.samples import BATCHES, VOCABS, grad_of, random_logits, relative
from torch.fx.experimental.proxy_tensor import make_fx

import numerate as nm

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # not for sums that are to be exact
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning"),
]


def every_case() -> list[Any]:
    cases = []
    for name in NAMES:
        kinds: list[dict[str, Any]] = [{}, {"numbers": "runs"}] if name in ("ntil", "ntl_number") else [{}]
        places: list[dict[str, Any]] = [{"places": p} for p in ("uniform", "exponential", "linear", "del")]
        for other in kinds if name in NUMBER_LEVEL else places:
            for outside in ("ignore", "penalize"):
                cases.append((name, {"outside": outside, **other}))
    cases += [("smmd", {"variant": "repaired"}), ("ntil", {"average": "sequence"}), ("ntl_was", {"squash": 5.0})]
    cases += [("raft", {"outside": "zero"}), ("digit_entropy", {"variant": "released"})]
    return [pytest.param(name, settings, id="-".join([name, *map(str, settings.values())])) for name, settings in cases]


def check_compiled(name: str, settings: dict[str, Any], device: str, vocab: str = "chunks") -> None:
    torch._dynamo.reset()
    labels = BATCHES[vocab].to(device)
    objective = nm.NumericObjective(nm.LOSSES[name](VOCABS[vocab], **settings)).to(device)
    logits = random_logits(BATCHES[vocab], VOCABS[vocab], torch.float32).to(device).requires_grad_()
    compiled, plain = torch.compile(objective, fullgraph=True)(logits, labels), objective(logits, labels)
    for part in ("loss", "cross_entropy", "numeric"):
        value, expected = getattr(compiled, part), getattr(plain, part)
        assert relative(value - expected, expected) < 2e-6
    grad, expected = grad_of(compiled.loss, logits), grad_of(plain.loss, logits)
    assert relative(grad - expected, expected) < 1e-5


@pytest.mark.compile
@pytest.mark.parametrize("name", ["smmd", "ntl_number"])
def test_generated_code(name: str) -> None:
    """One loss of tokens and one of complete numbers; the others take minutes, and are among the slow tests."""
    check_compiled(name, {}, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), every_case())
def test_every_setting_compiles_on_a_cpu(name: str, settings: dict[str, Any]) -> None:
    check_compiled(name, settings, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "settings"), every_case())
def test_every_setting_compiles_on_cuda(name: str, settings: dict[str, Any]) -> None:
    check_compiled(name, settings, "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_no_loss_takes_a_cumulative_sum_of_probabilities(name: str) -> None:
    """Inductor can get the gradient of a cumsum over a softmax wrong on a CPU; from labels to costs no loss has one."""
    loss, labels = nm.LOSSES[name](VOCABS["chunks"], outside="penalize"), BATCHES["chunks"]
    targets = loss.targets(labels, compact=False)

    def total(logits: torch.Tensor) -> torch.Tensor:
        return loss.per_row(*loss.select(logits, targets), targets).sum()

    graph = make_fx(total)(random_logits(labels, VOCABS["chunks"], torch.float32)).graph
    called = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert "aten.sum.default" in called
    assert not [op for op in called if "cum" in op]
