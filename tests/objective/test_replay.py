"""Sizes and inputs of recordings, which work without a GPU."""

import pytest
import torch
from benchmarks.losses import bench_labels, bench_vocab
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numerate import LOSSES, NumericObjective, NumericVocab
from numerate.formats import NumberFormat
from numerate.objective.replay import padded_size, recordings


def test_a_recording_has_room_and_is_little_larger():
    for rows in (0, 1, 63, 64, 65, 1000, 1025, 100_000):
        size = padded_size(rows)
        assert rows <= size <= max(rows + 63, rows * 1.25)
        assert size % 64 == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("options", [(), ("position_ids",), ("position_weights", "position_ids")])
@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss(bench_vocab(10, 64)).replayable])
def test_labels_are_read_anew_in_each_replay(name, options, device, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr("numerate.objective.replay.Recording", Repeated)
        monkeypatch.setattr("numerate.objective.from_logits.replays_labels", lambda loss, labels: loss.replayable)
    vocab = bench_vocab(10, 64)
    objective, plain = (NumericObjective(LOSSES[name](vocab), normalize="numeric").to(device) for _ in range(2))
    for seed in range(5):
        labels = bench_labels(vocab, 60, seed).to(device)
        labels[0, :seed] = -100
        call = {
            "position_ids": (torch.arange(60, device=device) % (20 + seed))[None],
            "position_weights": torch.rand(1, 60, device=device),
        }
        call = {name: value for name, value in call.items() if name in options}
        logits = torch.randn(1, 60, 64, device=device, requires_grad=True)
        ours, theirs = objective(logits, labels, **call), plain(logits, labels, **call, with_mass=True)
        torch.testing.assert_close(ours.loss, theirs.loss)
        assert ours.num_units == theirs.num_units
        torch.testing.assert_close(*(torch.autograd.grad(out.loss, logits)[0] for out in (ours, theirs)))
    assert sum(not isinstance(entry, int) for entry in recordings[objective.numeric_loss].values()) == 1
    assert plain.numeric_loss not in recordings


class Repeated:
    """In place of a recording, on a CPU: computes from its own copies of the inputs."""

    def __init__(self, compute, inputs):
        self.compute, self.inputs = compute, [value.clone() for value in inputs]

    def replay(self, inputs):
        for own, value in zip(self.inputs, inputs, strict=True):
            own.copy_(value)
        return self.compute(*self.inputs)


class NothingFromHost(TorchDispatchMode):
    """Refuses tensors of the CPU: a CUDA graph cannot copy them. On the meta device, shapes cannot depend on values either."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor)]
        assert all(value.device.type == "meta" for value in tensors), function
        return result


@pytest.mark.parametrize("form", ["plain", "spaced", "reversed", "grouped", NumberFormat("padded", (1, 9), (0, 5))], ids=str)
@pytest.mark.parametrize("name", ["number", "ntil", "ntl_number"])
def test_what_is_recorded_reads_nothing_from_the_host(name, form):
    texts = {text: i for i, text in enumerate([*"0123456789", ".", "-", ",", " ", "e", "+", "("])}
    loss = LOSSES[name](NumericVocab.from_texts(texts, vocab_size=40, format=form)).to("meta")
    assert loss.replayable
    labels = torch.zeros(2, 30, dtype=torch.long, device="meta")
    z = torch.empty(60, loss.columns.shape[0], device="meta")
    with NothingFromHost():
        targets = loss.targets(labels, position_ids=labels, position_weights=labels.float())
        loss.num_units(targets)
        loss.value_and_grad(z, None, targets)
