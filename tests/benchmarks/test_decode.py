"""What decoding costs: what it counts and how it judges a distribution."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
import torch
from benchmarks.__main__ import app
from benchmarks.decode import bench_decode, counted, covers, half_gini, mean_crps
from benchmarks.workloads import decode_workload
from typer.testing import CliRunner

from benchmarks import workloads
from numerate import NumberDistribution


def decimals(numbers: list[int]) -> list[Decimal]:
    return [Decimal(number) for number in numbers]


def test_crps_is_that_of_the_distribution():
    found = NumberDistribution([1, 4, 9], [0.2, 0.5, 0.3])
    drawn = [2, 4, 20]
    assert mean_crps(found, decimals(drawn)) == pytest.approx(sum(found.crps(y) for y in drawn) / 3)


def test_excess_is_zero_for_the_exact_distribution_and_1_over_n_for_samples():
    random = np.random.default_rng(0)
    values, weights = np.arange(40), random.dirichlet(np.ones(40))
    exact = NumberDistribution(values.tolist(), weights)
    spread = sum(weights[i] * weights[j] * abs(i - j) for i in range(40) for j in range(40)) / 2
    exacts, sampled = [], []
    for _ in range(300):
        drawn = decimals(random.choice(40, 64, p=weights).tolist())
        samples = NumberDistribution.from_samples(random.choice(40, 8, p=weights).tolist())
        exacts.append((mean_crps(exact, drawn) - half_gini(drawn)) / spread)
        sampled.append((mean_crps(samples, drawn) - half_gini(drawn)) / spread)
    assert np.mean(exacts) == pytest.approx(0, abs=4 * np.std(exacts) / 300**0.5)
    assert np.mean(sampled) == pytest.approx(1 / 8, abs=4 * np.std(sampled) / 300**0.5)


def test_covers_leaves_out_half_a_per_cent_on_each_side():
    found = NumberDistribution([0, 1, 2, 3], [0.004, 0.5, 0.492, 0.004])
    assert covers(found, decimals([0, 1, 2, 3])) == 0.5


def test_passes_are_counted():
    layer = torch.nn.Linear(2, 2)
    with counted(layer) as count:
        layer(torch.ones(3, 2))
        layer(torch.ones(4, 2))
    layer(torch.ones(5, 2))
    assert (count.passes, count.sequences) == (2, 7)


@pytest.fixture
def untrained(monkeypatch):
    """Tiny models without training."""
    monkeypatch.setattr(workloads, "train", lambda *_, **__: {})


def test_a_small_bench(untrained):
    workload = decode_workload("tiny", prompts=6, steps=1)
    result = bench_decode(workload, widths=(2, 4), samples=3, reference=8, batch_size=4, repeats=1, many=9)
    costs = {cost.name: cost for cost in result.costs}
    assert [*costs] == ["greedy", "3 samples", "width 2", "width 4"]
    assert costs["greedy"].to_greedy == costs["3 samples"].to_samples == 1
    assert costs["greedy"].passes == 2 * workload.max_new_tokens  # two batches; without training hardly any answer ends
    assert costs["3 samples"].sequences == 3 * costs["greedy"].sequences
    assert costs["width 2"].sequences < costs["width 4"].sequences <= 4 * costs["width 4"].passes * 4
    assert all(cost.peak_mib > 0 for cost in result.costs)
    assert 0 < costs["width 4"].covered <= 1
    assert 0 <= costs["width 4"].covers <= 1


def test_command(untrained, tmp_path):
    figures, picture = tmp_path / "new" / "decode.json", tmp_path / "new" / "decode.png"
    options = ["--prompts", "3", "--samples", "4", "--reference", "4", "--width", "2"]
    options += ["--width", "3", "--repeats", "1", "--many", "4"]
    result = CliRunner().invoke(app, ["decode", *options, "--json", str(figures), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert [cost["name"] for cost in json.loads(figures.read_text())["costs"]] == ["greedy", "4 samples", "width 2", "width 3"]
    assert picture.read_bytes().startswith(b"\x89PNG")
