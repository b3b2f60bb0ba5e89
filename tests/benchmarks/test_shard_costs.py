"""The benchmark of shards measures a gradient of the shard's shape on both sides."""

from __future__ import annotations

import pytest
import torch
from benchmarks.shards import VocabParallelCrossEntropy, bench_shards


def test_cross_entropy_of_one_shard_is_that_of_torch():
    logits = torch.randn(5, 7, dtype=torch.float32, requires_grad=True)
    labels = torch.arange(5)
    truth = torch.nn.functional.cross_entropy(logits, labels)
    loss = VocabParallelCrossEntropy.apply(logits, labels)
    assert torch.isclose(loss, truth)
    (expected,), (found,) = (torch.autograd.grad(value, logits) for value in (truth, loss))
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("hidden_size", [None, 16])
def test_costs(hidden_size):
    result = bench_shards(("smmd", "number"), tokens=64, vocab_size=2048, processes=4, hidden_size=hidden_size, repeats=1)
    assert [cost.loss for cost in result.costs] == ["", "smmd", "number"]
    assert all(cost.ratio > 0 and cost.queued_ratio > 0 and cost.kernels for cost in result.costs)
