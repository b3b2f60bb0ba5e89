"""Lightning: the gradient of a step is that of its whole batch, however it is split."""

from __future__ import annotations

import logging
import warnings
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.integrations.test_loop import LEARNING_RATE, build, collate, examples, objective_of
from tests.integrations.trainers.soft import parts_of
from torch import Tensor

from numerate import NumericObjective
from numerate.integrations.lightning import StepDataLoader, step_counts
from numerate.labels import IGNORE_INDEX, shift_left

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies, at import
    lightning = pytest.importorskip("lightning.pytorch")

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

FIELDS = {"numeric": "both", "tokens": ""}  # of the batches of two processes


class Module(lightning.LightningModule):
    def __init__(self, objective: NumericObjective):
        super().__init__()
        torch.manual_seed(0)
        self.model = build()
        self.objective = objective
        self.steps: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []  # weights and gradients of each step
        self.parts: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch, batch_idx):
        counts = step_counts(self, batch, batch_idx)
        assert set(batch) == {"input_ids", "labels", "row"}
        out = self.objective(self.model(batch["input_ids"]), batch["labels"], shift=True, **counts)
        self.parts.append((out.cross_entropy, out.numeric))
        return out.loss

    def on_before_optimizer_step(self, optimizer):
        state = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.steps.append((state, {name: p.grad.clone() for name, p in self.model.named_parameters()}))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


def fit(objective, accumulate, batch_size, rows=None, loader_accumulate=None, module=None, **settings) -> Module:
    module = module or Module(objective)
    given = {"objective": objective, "accumulate": loader_accumulate or accumulate, "collate_fn": collate}
    loader = StepDataLoader(rows or examples(8), batch_size=batch_size, **given)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=accumulate, **off, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        trainer.fit(module, loader)
    return module


def whole(objective, rows, state) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return gradients and parts of all rows in one batch, by autograd and the plain formula."""
    model = Module(objective).model
    model.load_state_dict(state)
    batch = collate(rows)
    ce, numeric = parts_of(objective, model(batch["input_ids"]), batch["labels"], batch, shift=True)
    (ce + 0.7 * numeric).backward()
    return {name: p.grad for name, p in model.named_parameters()}, ce.detach(), numeric.detach()


def assert_same(grads: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
    for name, grad in truth.items():
        assert (grads[name] - grad).abs().max() <= 1e-6 * grad.abs().max(), name


# Every two settings meet.
@pytest.mark.parametrize(
    ("loss", "normalize", "accumulate", "fields"),
    [
        ("smmd", "numeric", 4, ""),
        ("smmd", "tokens", 1, ""),
        ("ntil", "numeric", 1, ""),
        ("ntil", "tokens", 4, "soft"),
        ("ntil", "numeric", 4, "both"),
        ("none", "tokens", 4, "both"),
    ],
)
def test_a_step_has_the_gradient_of_its_whole_batch(loss, normalize, accumulate, fields):
    objective, rows = objective_of(loss, normalize), examples(8, fields)
    module = fit(objective, accumulate, batch_size=8 // accumulate, rows=rows)
    ((state, grads),) = module.steps
    truth, ce, numeric = whole(objective, rows, state)
    assert_same(grads, truth)
    for part, expected in zip(zip(*module.parts, strict=True), (ce, numeric), strict=True):
        torch.testing.assert_close(torch.stack(part).mean(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("normalize", "limit"), [("numeric", None), ("tokens", 5)])
def test_the_last_step_of_an_epoch_may_be_short(normalize, limit):
    objective = objective_of("ntil", normalize)
    rows = examples(14)
    settings = {} if limit is None else {"limit_train_batches": limit}
    steps = fit(objective, 3, batch_size=2, rows=rows, **settings).steps
    ends = [(0, 6), (6, 12), (12, 14)] if limit is None else [(0, 6), (6, 10)]
    assert len(steps) == len(ends)
    for (state, grads), (start, end) in zip(steps, ends, strict=True):
        # Lightning divides by accumulate_grad_batches even then; the counts correct for it.
        assert_same(grads, whole(objective, rows[start:end], state)[0])


def test_aligned_labels():
    def loaded(rows):
        settings = {"shift": False, "batch_size": 2, "collate_fn": collate}
        (batch,) = StepDataLoader(rows, objective=objective_of("smmd", "numeric"), **settings)
        return batch

    rows = examples(2)
    batch = loaded([row | {"labels": shift_left(row["labels"], IGNORE_INDEX)} for row in rows])
    assert int(batch["step_counts"].counts[0, 0]) == int((batch["labels"] != -100).sum())
    with pytest.warns(UserWarning, match="shift=False, but labels equal input_ids: these are raw labels") as caught:
        loaded(rows)
    assert len(caught) == 1


def test_what_cannot_be_right_is_refused():
    objective = objective_of("smmd", "numeric")
    with pytest.raises(ValueError, match="accumulate=2 .* accumulate_grad_batches=4"):
        fit(objective, 4, batch_size=2, loader_accumulate=2)
    with pytest.raises(ValueError, match="accumulate=0"):
        StepDataLoader(examples(8), objective=objective, accumulate=0)
    strategy = SimpleNamespace(handles_gradient_accumulation=True)
    module = SimpleNamespace(trainer=SimpleNamespace(accumulate_grad_batches=2, strategy=strategy))
    with pytest.raises(ValueError, match="expected batches of a StepDataLoader"):
        step_counts(module, collate(examples(2)), 0)
    batch = next(iter(StepDataLoader(examples(8), objective=objective, accumulate=2, collate_fn=collate)))
    with pytest.raises(NotImplementedError, match="accumulates gradients in its own way"):
        step_counts(module, batch, 0)


class Forgetful(Module):
    """Divides each batch by its own counts."""

    def training_step(self, batch, batch_idx):
        return self.objective(self.model(batch["input_ids"]), shift_left(batch["labels"], IGNORE_INDEX)).loss


class Stream(torch.utils.data.IterableDataset):
    """A dataset without a length: Lightning fetches one batch ahead."""

    def __iter__(self):
        return iter(examples(8))


@pytest.mark.parametrize(("accumulate", "rows"), [(4, None), (1, Stream())], ids=["sized", "stream"])
def test_forgetting_the_counts_is_an_error(accumulate, rows):
    objective = objective_of("smmd", "numeric")
    with pytest.raises(RuntimeError, match=r"took the counts of 0 of [12] batches: .*step_counts\(self, batch, batch_idx\)"):
        fit(objective, accumulate, batch_size=2, rows=rows, module=Forgetful(objective))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_stream_of_unknown_length(accumulate):
    """A batch that was fetched ahead raises no error."""
    objective = objective_of("smmd", "numeric")
    steps = fit(objective, accumulate, batch_size=2, rows=Stream()).steps
    assert len(steps) == 4 // accumulate
    for at, (state, grads) in enumerate(steps):
        assert_same(grads, whole(objective, examples(8)[at * 2 * accumulate : (at + 1) * 2 * accumulate], state)[0])


def test_a_look_at_the_loader_leaves_it_as_it_was():
    objective = objective_of("smmd", "numeric")
    loader = StepDataLoader(examples(8), objective=objective, batch_size=2, collate_fn=collate)
    for _ in range(3):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="took the counts of 0 of 1 batches.* use a plain DataLoader"):
        list(loader)


def on_two_processes() -> dict[tuple[str, int], Any]:
    found = {}
    for normalize, accumulate in product(FIELDS, (1, 2)):
        given = {"rows": examples(8, FIELDS[normalize]), "batch_size": 4 // accumulate, "strategy": "ddp", "devices": 2}
        found[normalize, accumulate] = fit(objective_of("ntil", normalize), accumulate, **given).steps[0]
    return found


def check_two_processes(found: dict[tuple[str, int], Any]) -> None:
    assert len(found) == 4
    for (normalize, _), (state, grads) in found.items():
        assert_same(grads, whole(objective_of("ntil", normalize), examples(8, FIELDS[normalize]), state)[0])
