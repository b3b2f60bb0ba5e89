"""The benchmarks measure what they say."""

from __future__ import annotations

import json
import time

import pytest
import torch
from benchmarks.__main__ import app
from benchmarks.fused import bench_fused
from benchmarks.losses import bench_labels, bench_losses, bench_vocab
from benchmarks.measure import compare_ms, median_ratio, peak_mib, runtime_ms
from typer.testing import CliRunner

CPU = torch.device("cpu")


def test_times_are_in_milliseconds_taken_in_turns_and_divided_round_by_round():
    assert 20 <= runtime_ms(lambda: time.sleep(0.02), CPU) < 10_000
    calls: list[str] = []
    times = compare_ms({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, repeats=2)
    assert calls == ["a", "b"] * 3  # the first to warm up
    assert {name: len(rounds) for name, rounds in times.items()} == {"a": 2, "b": 2}
    assert median_ratio([2.0, 30.0, 6.0], [1.0, 10.0, 3.0]) == 2.0


def test_peak_counts_what_is_held_at_once():
    def work():
        first = torch.empty(2**20)  # 4 MiB
        del first
        second = torch.empty(2**21)  # 8 MiB
        return second + 1  # and 8 more

    assert peak_mib(work, CPU) == pytest.approx(16, abs=0.1)


@pytest.mark.parametrize("numeric_tokens", [10, 1110])
def test_a_quarter_of_the_labels_are_numeric(numeric_tokens):
    vocab = bench_vocab(numeric_tokens, 4096)
    labels = bench_labels(vocab, 480)
    assert vocab.size == numeric_tokens
    assert (vocab.index_of(labels) >= 0).sum().item() == 120


def test_costs_are_ratios_to_cross_entropy():
    # Loops cost by the token, the loss by the call: 64 tokens are 5 to 9 times faster, 512 are 38 to 85, idle or busy.
    result = bench_losses(["smmd", "number"], tokens=512, vocab_size=2048, repeats=3)
    assert [cost.loss for cost in result.costs] == ["smmd", "number"]
    for cost in result.costs:
        assert cost.peak_ratio == pytest.approx(cost.peak_mib / result.ce_peak_mib)
        assert cost.runtime_ratio > 0
    assert result.ntil_disagreement < 1e-6
    assert result.ntil_speedup > 10


def test_objective_holds_no_more_memory_than_cross_entropy():
    result = bench_losses(tokens=128, vocab_size=16384, repeats=1)
    assert max(cost.peak_ratio for cost in result.costs) <= 1.0


def test_command(tmp_path):
    file = tmp_path / "new" / "losses.json"
    options = ["--loss", "emd", "--tokens", "64", "--vocab-size", "2048", "--repeats", "1", "--json", str(file)]
    result = CliRunner().invoke(app, ["losses", *options])
    assert result.exit_code == 0, result.output
    assert json.loads(file.read_text())["costs"][0]["loss"] == "emd"


class TestFused:
    def test_command(self, tmp_path):
        figures, picture = tmp_path / "new" / "fused.json", tmp_path / "new" / "fused.png"
        options = ["--device", "cpu", "--dtype", "float32", "--shape", "2048x16", "--tokens", "64"]
        options += ["--tokens", "128", "--repeats", "1"]
        options += ["--loss", "smmd", "--numeric-tokens", "10", "--json", str(figures), "--plot", str(picture)]
        result = CliRunner().invoke(app, ["fused", *options])
        assert result.exit_code == 0, result.output
        cases = json.loads(figures.read_text())["cases"]
        assert [case["tokens"] for case in cases] == [64, 128]
        costs = {cost["name"]: cost for cost in cases[0]["costs"]}
        assert costs["three products"]["ratio"] == 1.0
        assert "CE + smmd, frozen head" in costs
        assert costs["CE + smmd, N=10"]["numeric_tokens"] == 10
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_no_speed_for_a_wrong_result(self, monkeypatch):
        monkeypatch.setattr(
            "numerate.objective.chunks.ChunkedHead.write_numeric_columns", lambda *_: None
        )  # the numeric gradient is lost
        with pytest.raises(ArithmeticError, match="no speed is reported"):
            bench_fused(["2048x16"], [64], [10], ["smmd"], dtype="float32", device="cpu", repeats=1)

    def test_what_does_not_fit_is_left_out(self, monkeypatch):
        def too_large(*_):
            raise torch.OutOfMemoryError

        monkeypatch.setattr("benchmarks.fused.Workload.plain_ce", too_large)
        (case,) = bench_fused(["2048x16"], [64], [10], ["smmd"], dtype="float32", device="cpu", repeats=1).cases
        assert case.did_not_fit == ("plain CE",)
        assert "plain CE" not in {cost.name for cost in case.costs}
