"""torchtitan: its losses with an objective are those of one device, with shards, cut sequences and a head that FSDP2 shards.

Stand-ins have the documented signatures. Run by `torchrun`, this file is one of two processes, with them or torchtitan itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.integrations.trainers.launch import torchrun
from tests.samples import BATCHES, VOCABS
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from numerate import LOSSES, NumericObjective
from numerate.integrations import torchtitan
from numerate.objective import CutSequence

VOCAB, SIZE, H = VOCABS["chunks"], VOCABS["chunks"].vocab_size + 1, 6  # uneven shards
LABELS = F.pad(BATCHES["chunks"], (0, -BATCHES["chunks"].shape[1] % 4), value=-100)
TOKENS = (LABELS != -100).sum()
STAND_INS = ("torchtitan", "torchtitan.components", "torchtitan.components.loss", "torchtitan.distributed.utils")
STAND_INS += ("torchtitan.distributed", "torchtitan.distributed.spmd_types", "spmd_types")


class State:
    """What a backend of torchtitan knows."""

    backend = "spmd_types"
    mesh: Any = None
    checking = False


def stand_ins() -> dict[str, ModuleType]:
    """Return modules with the names that the adapter reads."""

    class BaseLoss:
        class Config:
            def build(self, **arguments: Any) -> Any:
                return self._owner(self, **arguments)

        def __init_subclass__(cls) -> None:
            cls.Config._owner = cls  # type: ignore[attr-defined]

    class ChunkedLossWrapper(BaseLoss):
        class Config(BaseLoss.Config):
            pass

        def set_lm_head(self, lm_head: nn.Module) -> None:
            self.lm_head = lm_head

    modules = {name: ModuleType(name) for name in STAND_INS}
    vars(modules["torchtitan.components.loss"]).update(BaseLoss=BaseLoss, ChunkedLossWrapper=ChunkedLossWrapper)
    vars(modules["spmd_types"]).update(is_type_checking=lambda: State.checking)
    vars(modules["torchtitan.distributed.utils"]).update(get_spmd_backend=lambda: State.backend)
    vars(modules["torchtitan.distributed.spmd_types"]).update(
        current_spmd_mesh=lambda: State.mesh,
        spmd_mesh_size=lambda name: State.mesh[name].size() if name in getattr(State.mesh, "mesh_dim_names", ()) else 1,
    )
    return modules


@pytest.fixture
def titan(monkeypatch) -> Iterator[type[State]]:
    torchtitan._kinds.cache_clear()
    for name, module in stand_ins().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("backend", "mesh", "checking"):
        monkeypatch.setattr(State, name, getattr(State, name))
    yield State
    torchtitan._kinds.cache_clear()


def objective_of(name: str) -> NumericObjective:
    return NumericObjective(LOSSES[name](VOCAB), weight=0.7, normalize="tokens")


def whole() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"hidden": (*LABELS.shape, H), "weight": (SIZE, H)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def head_of(weight: Tensor) -> nn.Linear:
    head = nn.Linear(H, weight.shape[0], bias=False, dtype=weight.dtype)
    head.weight.data.copy_(weight)
    return head


def one_device(objective: NumericObjective) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and the gradients of hidden states and the head."""
    given = {name: value.requires_grad_() for name, value in whole().items()}
    loss = objective(given["hidden"] @ given["weight"].T, LABELS).loss
    return (loss.detach(), *torch.autograd.grad(loss, list(given.values())))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("fused", [False, True])
def test_the_loss_is_that_of_the_objective(titan, name: str, fused: bool) -> None:
    """Of two micro-batches, divided by the label tokens of both; and the sum, in validation."""
    objective = objective_of(name)
    loss, d_hidden, d_weight = one_device(objective)
    config = torchtitan.loss_config(objective, vocab_size=SIZE, fused=fused)
    made = config.build(compile_config=None)
    hidden, head = whole()["hidden"].requires_grad_(), head_of(whole()["weight"])
    if fused:
        made.set_lm_head(head)
    total = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 1), slice(1, None)):
        value, metrics = made(hidden[rows] if fused else head(hidden[rows]), LABELS[rows], TOKENS, positions=None)
        assert metrics == {}
        value.backward()
        total += value.detach()
    assert torch.isclose(total, loss, rtol=1e-12)
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert torch.allclose(hidden.grad, d_hidden, rtol=1e-9, atol=1e-13)
    assert torch.allclose(head.weight.grad, d_weight, rtol=1e-9, atol=1e-13)
    assert "forward" not in vars(head)
    with torch.no_grad():
        summed, _ = made(hidden if fused else head(hidden), LABELS)
    assert torch.isclose(summed / TOKENS, loss, rtol=1e-12)


def test_what_is_refused(titan) -> None:
    number = objective_of("number")
    with pytest.raises(ValueError, match="normalize='numeric': torchtitan does not count"):
        torchtitan.loss_config(NumericObjective(LOSSES["smmd"](VOCAB)), vocab_size=SIZE)
    with pytest.raises(TypeError, match="expected a NumericObjective"):
        torchtitan.loss_config(LOSSES["smmd"](VOCAB), vocab_size=SIZE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no effect with fused=True"):
        torchtitan.loss_config(number, vocab_size=SIZE, order="zigzag")
    logits = torch.zeros(*LABELS.shape, SIZE)
    made = torchtitan.loss_config(number, vocab_size=SIZE, fused=False).build()
    with pytest.raises(NotImplementedError, match="without MTP layers"):
        made([logits, logits], LABELS)
    with pytest.raises(RuntimeError, match="expected set_lm_head"):
        torchtitan.loss_config(number, vocab_size=SIZE).build()(logits, LABELS)
    mesh = {"cp": SimpleNamespace(size=lambda: 2)}
    titan.mesh = type("Mesh", (), {"mesh_dim_names": ("cp",), "__getitem__": lambda self, name: mesh[name]})()
    for fused in (False, True):
        cut = torchtitan.loss_config(number, vocab_size=SIZE, fused=fused).build()
        cut.lm_head = nn.Linear(1, 1)
        with pytest.raises(NotImplementedError, match="context parallelism over 2 processes cuts numbers"):
            cut(logits, LABELS)
    assert torchtitan.loss_config(objective_of("smmd"), vocab_size=SIZE, fused=False).build()(logits, LABELS)[0] > 0
    titan.backend, titan.mesh = "partial_dtensor", None
    with pytest.raises(NotImplementedError, match="gives a loss no sign whether"):
        made(logits, LABELS)
    titan.checking = True
    with pytest.raises(NotImplementedError, match="spmd_typechecking"):
        made(logits, LABELS)


def test_the_command_line_of_torchtitan_takes_the_config() -> None:
    tyro = pytest.importorskip("tyro", reason="tyro is not installed")
    pytest.importorskip("spmd_types", reason="spmd_types is not installed")
    components = pytest.importorskip("torchtitan.components.loss", reason="torchtitan is not installed")
    objective = objective_of("smmd")
    torchtitan._kinds.cache_clear()
    given = torchtitan.loss_config(objective, vocab_size=SIZE)
    trainer: Any = make_dataclass("Trainer", [("loss", components.BaseLoss.Config), ("steps", int, 3)])
    parsed = tyro.cli(trainer, args=["--steps", "5"], default=trainer(given))
    assert parsed.steps == 5
    assert parsed.loss.build(compile_config=None).config.objective() is objective
    json.dumps(parsed.loss.to_dict())


@pytest.mark.launch
def test_on_two_processes() -> None:
    torchrun(__file__, "stand-in")


@pytest.mark.launch
@pytest.mark.skipif(
    find_spec("torchtitan") is None or find_spec("spmd_types") is None, reason="torchtitan or spmd_types is not installed"
)
def test_with_torchtitan() -> None:
    torchrun(__file__, "torchtitan")


# One of two processes


def main() -> None:
    dist.init_process_group("gloo")
    if sys.argv[1] == "stand-in":
        sys.modules.update(stand_ins())
    for name in ("smmd", "number", "ntil"):
        for fused in (False, True):
            check_shards(name, fused)
        check_cut(name)
        check_fsdp(name)
    check_dtensors()
    if sys.argv[1] == "torchtitan":
        check_own_losses()
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def on_mesh(axis: str) -> Iterator[Any]:
    """Set the mesh that the backend knows."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(axis,))
    if sys.argv[1] == "torchtitan":
        from torchtitan.distributed.spmd_types import set_current_spmd_mesh

        with set_current_spmd_mesh(mesh):
            yield mesh
        return
    State.mesh = mesh
    yield mesh
    State.mesh = None


def check_shards(name: str, fused: bool) -> None:
    """Plain shards, as of spmd_types; its gradient of hidden states is a part of the sum over the processes."""
    loss, d_hidden, d_weight = one_device(objective_of(name))
    made = torchtitan.loss_config(objective_of(name), vocab_size=SIZE, fused=fused).build()
    hidden, head = whole()["hidden"].requires_grad_(), head_of(whole()["weight"].chunk(2)[dist.get_rank()])
    if fused:
        made.set_lm_head(head)
    with on_mesh("tp"):
        value, _ = made(hidden if fused else head(hidden), LABELS, TOKENS)
        value.backward()
    assert torch.isclose(value, loss, rtol=1e-12)
    assert hidden.grad is not None
    assert head.weight.grad is not None
    dist.all_reduce(hidden.grad)
    assert torch.allclose(hidden.grad, d_hidden, rtol=1e-9, atol=1e-13)
    assert torch.allclose(head.weight.grad, d_weight.chunk(2)[dist.get_rank()], rtol=1e-9, atol=1e-13)


def check_cut(name: str) -> None:
    """Context parallelism: the sum over the processes is the loss of whole sequences."""
    loss, d_hidden, _ = one_device(objective_of(name))
    made = torchtitan.loss_config(objective_of(name), vocab_size=SIZE, fused=False, order="zigzag").build()
    with on_mesh("cp") as mesh:
        positions = CutSequence(mesh, "zigzag").positions(LABELS.shape[1] // 2)[dist.get_rank()]
        hidden = whole()["hidden"][:, positions].requires_grad_()
        value, _ = made(hidden @ whole()["weight"].T, LABELS[:, positions], TOKENS)
        value.backward()
    total = value.detach().clone()
    dist.all_reduce(total)
    assert torch.isclose(total, loss, rtol=1e-12)
    assert hidden.grad is not None
    assert torch.allclose(hidden.grad, d_hidden[:, positions], rtol=1e-9, atol=1e-13)


def check_fsdp(name: str) -> None:
    """FSDP2 shards the norm and the head together, as torchtitan does, with other rows on each process; for two steps."""
    from torch.distributed.fsdp import fully_shard

    loss, _, d_weight = one_device(objective_of(name))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.lm_head = nn.Identity(), head_of(whole()["weight"])
            self.first = nn.Linear(H, H, bias=False, dtype=torch.float64)
            nn.init.eye_(self.first.weight)

        def forward(self, hidden: Tensor) -> Any:
            return self.norm(self.first(hidden))

    model = Model()
    fully_shard([model.norm, model.lm_head])
    fully_shard(model)
    for module in (model, model.lm_head):
        module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
    made = torchtitan.loss_config(objective_of(name), vocab_size=SIZE).build()
    made.set_lm_head(model.lm_head)
    rows = slice(0, 1) if dist.get_rank() else slice(1, None)
    for _ in range(2):
        model.zero_grad()
        value, _ = made(model(whole()["hidden"][rows]), LABELS[rows], TOKENS)
        value.backward()
        total = value.detach().clone()
        dist.all_reduce(total)
        assert torch.isclose(total, loss, rtol=1e-12)
        grad: Any = model.lm_head.weight.grad
        assert torch.allclose(grad.full_tensor(), d_weight, rtol=1e-9, atol=1e-13)
        assert model.first.weight.grad is not None


def check_dtensors() -> None:
    """As of partial_dtensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    loss, d_hidden, d_weight = one_device(objective_of("smmd"))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for fused in (False, True):
        made = torchtitan.loss_config(objective_of("smmd"), vocab_size=SIZE, fused=fused).build()
        head = nn.Linear(H, SIZE, bias=False, dtype=torch.float64)
        head.weight = nn.Parameter(distribute_tensor(whole()["weight"], mesh, [Shard(0)]))
        hidden = distribute_tensor(whole()["hidden"], mesh, [Replicate()]).requires_grad_()
        if fused:
            made.set_lm_head(head)
        value, _ = made(hidden if fused else head(hidden), LABELS, TOKENS)
        value.backward()
        assert torch.isclose(value, loss, rtol=1e-12)
        grads: Any = (hidden.grad, head.weight.grad)
        for found, truth in zip(grads, (d_hidden, d_weight), strict=True):
            assert torch.allclose(found.full_tensor(), truth, rtol=1e-9, atol=1e-13)


def check_own_losses() -> None:
    """With weight 0, torchtitan's losses: whole, in chunks, and of plain shards."""
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss

    objective = NumericObjective(LOSSES["smmd"](VOCAB), weight=0.0, normalize="tokens")
    for axis, fused in (("tp", False), ("tp", True), ("dp", False), ("dp", True)):
        weight = whole()["weight"].float()
        own: Any = CrossEntropyLoss.Config(global_vocab_size=SIZE)
        own = (ChunkedLossWrapper.Config(num_chunks=2, loss_fn=own) if fused else own).build(compile_config=None)
        ours = torchtitan.loss_config(objective, vocab_size=SIZE, fused=fused).build(compile_config=None)
        assert isinstance(ours, ChunkedLossWrapper) == fused
        results = []
        for loss in (own, ours):
            hidden = whole()["hidden"].float().requires_grad_()
            head = head_of(weight.chunk(2)[dist.get_rank()] if axis == "tp" else weight)
            if fused:
                loss.set_lm_head(head)
            with on_mesh(axis):
                value, _ = loss(hidden if fused else head(hidden), LABELS, TOKENS)
                value.backward()
            assert hidden.grad is not None
            if axis == "tp":
                dist.all_reduce(hidden.grad)
            results.append((value.detach(), hidden.grad, head.weight.grad))
        for found, truth in zip(results[1], results[0], strict=True):
            assert torch.allclose(found, truth, rtol=1e-5, atol=1e-7), (axis, fused)


if __name__ == "__main__":
    main()
