"""loop.attach and lightning.attach with soft labels: the long form bit for bit, for every engine, resumed, on two processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from tests.integrations import test_attach
from tests.integrations.test_attach import SEED, Parameters, lightning, objective_of, rows, same, soft_of
from tests.integrations.test_loop import accelerator_of, fabric_of, whole
from tests.integrations.trainers.cases import PROCESSES, allow_fsdp_on_cpu, build, tokenizer
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import DataCollatorForSeq2Seq

from numerate.integrations.loop import Steps, attach
from numerate.targets import DrawnDataset, SoftCollator

pytestmark = test_attach.pytestmark
ACCUMULATE = 2
# Model, optimizer, loader, what `engine=` is, and what replaces `loss.backward`.
Prepared = tuple[nn.Module, Any, Any, Any, Callable[[Tensor], Any]]


def parts(data: Any, collator: Any, wrap: Callable[[nn.Module], nn.Module] = lambda model: model, **options: Any) -> Any:
    model = wrap(build("llama"))
    loader = DataLoader(data, 2 // PROCESSES, collate_fn=collator, **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


@contextlib.contextmanager
def plain(*given: Any, **options: Any) -> Iterator[Prepared]:
    yield *parts(*given, **options), None, Tensor.backward


@contextlib.contextmanager
def sampled(data: Any, collator: Any, wrap: Any) -> Iterator[Prepared]:
    yield *parts(data, collator, wrap, sampler=DistributedSampler(data, seed=SEED)), None, Tensor.backward


@contextlib.contextmanager
def accelerate(*given: Any, **settings: Any) -> Iterator[Prepared]:
    with accelerator_of(ACCUMULATE, **settings) as accelerator:
        model, optimizer, loader = parts(*given)
        yield *accelerator.prepare(model, optimizer, loader), accelerator, accelerator.backward


@contextlib.contextmanager
def fabric(*given: Any) -> Iterator[Prepared]:
    made = fabric_of(**({"devices": 1} if PROCESSES == 1 else {"devices": PROCESSES, "strategy": "ddp"}))
    model, optimizer, loader = parts(*given)
    yield *made.setup(model, optimizer), made.setup_dataloaders(loader), made, made.backward


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


Engine = Callable[..., contextlib.AbstractContextManager[Prepared]]
ENGINES: dict[str, Engine] = {
    "plain": plain,
    "workers": partial(plain, num_workers=1, persistent_workers=True),
    "accelerate": accelerate,
    "fabric": fabric,
}


@contextlib.contextmanager
def accelerate_fsdp(*given: Any) -> Iterator[Prepared]:
    from accelerate import FullyShardedDataParallelPlugin

    allow_fsdp_on_cpu()
    with mock.patch.dict(os.environ):  # the plugin is made known to later Accelerators there
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=0)
        with accelerate(*given, fsdp_plugin=plugin) as prepared:
            yield prepared


TWO: dict[str, Engine] = {
    "ddp": partial(sampled, wrap=ddp),
    "fsdp2": partial(sampled, wrap=sharded),
    "accelerate": accelerate,
    "accelerate_fsdp": accelerate_fsdp,
    "fabric": fabric,
}
NEEDS = {"accelerate": "accelerate", "fabric": "lightning"}


def trained(
    engine: Engine, loss: str | None, *, short: bool, epochs: range = range(2), start: Parameters | None = None
) -> Parameters:
    """Train some epochs, from given parameters on; return the parameters."""
    collator: Any = DataCollatorForSeq2Seq(tokenizer())
    data: Any = rows() if short else DrawnDataset(rows(), soft_of(), seed=SEED)
    with engine(data, collator if short else SoftCollator(collator)) as (model, optimizer, loader, made, backward):
        if start is not None:
            model.load_state_dict(start)
        options: dict[str, Any] = {"accumulate": ACCUMULATE, "engine": made}
        if short:
            weight = {} if loss is None else {"weight": 0.7}
            steps: Any = attach(loader, model, loss, soft=0.1, seed=SEED, **weight, **options)
            steps.epoch = epochs.start
        else:
            steps = Steps(loader, model, objective_of(loss), **options)
        for epoch in epochs:
            for owner in (getattr(loader, "sampler", None), *(() if short else (data, loader))):
                if hasattr(owner, "set_epoch"):
                    owner.set_epoch(epoch)
            for step in steps:
                for batch in step:
                    backward(step.objective(model(batch["input_ids"], batch["attention_mask"]).logits).loss)
                optimizer.step()
                optimizer.zero_grad()
        return {name.removeprefix("module."): whole(value) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("loss", [None, "ntil"])
@pytest.mark.parametrize("name", ENGINES)
def test_one_call_trains_as_the_long_form_bit_for_bit(name, loss):
    pytest.importorskip(NEEDS.get(name, "torch"))
    short = trained(ENGINES[name], loss, short=True)
    assert same(short, trained(ENGINES[name], loss, short=False))
    assert not same(short, trained(ENGINES[name], loss, short=True, epochs=range(1, 3)))  # draws of other epochs


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_that_is_resumed_in_its_second_epoch(name):
    pytest.importorskip(NEEDS.get(name, "torch"))
    first = trained(ENGINES[name], None, short=True, epochs=range(1))
    second = trained(ENGINES[name], None, short=True, epochs=range(1, 2), start=first)
    assert same(second, trained(ENGINES[name], None, short=True))


def on_two_processes() -> dict[str, tuple[Parameters, Parameters]]:
    runs: dict[str, Callable[..., Parameters]] = {name: partial(trained, engine, "smmd") for name, engine in TWO.items()}
    runs["lightning"] = partial(lightning, "smmd", strategy="ddp", devices=PROCESSES)
    found = {}
    for name, run in runs.items():
        found[name] = (run(short=True), run(short=False))
        dist.barrier()
    return found


def check_two_processes(found: dict[str, tuple[Parameters, Parameters]]) -> None:
    assert found.keys() == {*TWO, "lightning"}
    for name, (short, long) in found.items():
        assert same(short, long), name
    one_process = trained(plain, "smmd", short=True)  # accelerate gives two processes the rows that follow each other
    for name in ("accelerate", "accelerate_fsdp"):
        for parameter, value in found[name][0].items():
            torch.testing.assert_close(value, one_process[parameter], rtol=1e-9, atol=1e-12, msg=f"{name}: {parameter}")
