"""Pictures of losses, calibration and distributions, and the data they show."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.samples import refused
from tests.targets import small

from numerate import LOSSES, NumberDistribution, NumericVocab, plotting
from numerate.calibration import conformal, coverage, pit
from numerate.formats import KINDS
from numerate.inspection import format_tokens
from numerate.plotting import certain_costs, plot_coverage, plot_distributions, plot_formats, plot_loss, plot_reliability

DIGITS = NumericVocab.from_texts({str(d): d for d in range(10)} | {"-": 10}, vocab_size=12)
CHUNKS = NumericVocab.from_texts({text: i for i, text in enumerate([*map(str, range(120)), "00", "007", " 7"])}, vocab_size=130)


class TestCertainCosts:
    @pytest.mark.parametrize("name", LOSSES)
    @pytest.mark.parametrize("vocab", [DIGITS, CHUNKS], ids=["digits", "chunks"])
    def test_what_the_loss_itself_says(self, name: str, vocab: NumericVocab):
        loss = LOSSES[name](vocab)
        costs = certain_costs(loss, 3)
        assert costs.shape == (vocab.size,)
        logits = torch.full((vocab.vocab_size,), -1e4, dtype=torch.float64)
        logits[[*vocab.token_ids.tolist(), *vocab.minus_ids]] = 0.0
        logits[vocab.token_ids[7]] = math.log(1e6 * (vocab.size - 1))
        torch.testing.assert_close(costs[7], loss(logits[None], vocab.token_ids[3:4]), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", LOSSES)
    def test_some_answers_and_a_width(self, name: str):
        loss = LOSSES[name](DIGITS)
        some = torch.tensor([2, 7])
        # Not bit for bit: a processor may add up two rows in another order than ten.
        torch.testing.assert_close(certain_costs(loss, 3, some), certain_costs(loss, 3)[some], rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(certain_costs(loss, 3, width=1e-3), certain_costs(loss, 3), rtol=1e-9, atol=1e-12)

    def test_a_wide_answer_costs_its_spread(self):
        """EMD is the mean distance from the label; the floor of a million to one adds a little."""
        hundred = NumericVocab.from_texts({str(number): number for number in range(100)}, vocab_size=100)
        bell = {number: math.exp(-((number - 50) ** 2) / (2 * 5.0**2)) for number in range(100)}
        wanted = sum(abs(number - 50) * share for number, share in bell.items()) / sum(bell.values())
        cost = certain_costs(LOSSES["emd"](hundred), 50, torch.tensor([50]), width=5.0)
        assert cost.item() == pytest.approx(wanted, rel=1e-5)


class TestPlot:
    @pytest.mark.parametrize("name", LOSSES)
    def test_every_loss_has_a_picture(self, name: str, tmp_path):
        path = plot_loss(CHUNKS, tmp_path / "new" / "folder" / "picture.png", name)
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_one_value_and_negative_ones(self, tmp_path):
        for values in ({0: 5}, {3: -0.5, 4: 0.25, 5: 8}):
            vocab = NumericVocab.from_values(values, vocab_size=6)
            assert "<svg" in plot_loss(vocab, tmp_path / "picture.svg").read_text()

    def test_without_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'numerate\[report\]'"):
            plot_loss(DIGITS, tmp_path / "picture.png")


ND = NumberDistribution
HUGE = 10**400
ANSWERS = [ND.bell(100 + i, width=4) for i in range(40)]
TRUTHS = [100 + i + (7 * i) % 25 - 12 for i in range(40)]


@pytest.fixture
def drawn(monkeypatch) -> list[Any]:
    """The figures that are saved."""
    figures: list[Any] = []
    save = plotting.figures.save
    for module in (plotting.calibration, plotting.format_tokens):
        monkeypatch.setattr(module, "save", lambda figure, path: figures.append(figure) or save(figure, path))
    return figures


class TestCalibration:
    def test_reliability(self, tmp_path, drawn):
        path = plot_reliability(ANSWERS, TRUTHS, tmp_path / "new" / "reliability.png", seed=3)
        assert path.read_bytes().startswith(b"\x89PNG")
        curve, histogram = drawn[0].axes
        x, y = curve.lines[1].get_data()
        positions = pit(ANSWERS, TRUTHS, seed=3)
        for quantile in (0.05, 0.3, 0.5, 0.9):
            assert y[np.searchsorted(x, quantile, side="right") - 1] == pytest.approx((positions <= quantile).mean())
        assert (y[0], y[-1]) == (0, 1)
        assert sum(bar.get_height() for bar in histogram.patches[1:]) == pytest.approx(len(histogram.patches) - 1)
        band = curve.collections[0].get_paths()[0].vertices
        assert band[np.abs(band[:, 0] - 0.5) < 1e-9, 1].max() == pytest.approx(0.5 + 1.96 * math.sqrt(0.25 / 40))

    def test_coverage(self, tmp_path, drawn):
        calibrated = conformal(ANSWERS[:9], TRUTHS[:9], 0.5)
        plot_coverage(ANSWERS, TRUTHS, tmp_path / "coverage.svg", calibrated)
        _, own, held = drawn[0].axes[0].lines
        levels = [k / 20 for k in range(1, 20)]
        assert own.get_data()[1].tolist() == coverage(ANSWERS, TRUTHS, levels).tolist()
        assert held.get_data()[0].tolist() == levels[:18]  # nine rows cannot promise 95 %
        assert held.get_data()[1].tolist() == coverage(ANSWERS, TRUTHS, levels[:18], calibrated).tolist()
        plot_coverage(ANSWERS, iter(TRUTHS), tmp_path / "coverage.pdf", levels=[0.9, 0.5])
        assert drawn[1].axes[0].lines[1].get_data()[0].tolist() == [0.5, 0.9]

    @pytest.mark.parametrize(
        ("answer", "truth"),
        [
            (ND([12, 15], [0.3, 0.7]), 15),
            (ND.bell("84.5", width=0.6), "84.3"),
            (ND.bell(99_900, relative=0.05), 105_000),
            (ND([HUGE, HUGE + 1, HUGE + 5], [0.2, 0.5, 0.3]), HUGE + 3),
            (ND.point("0.00025"), "0.0003"),
            (ND.point(0), 0),
            (ND.from_samples([-5, -5, 6, None]), 6),
            (ND.mixed([ND.bell(3200, width=30), ND.point(HUGE)], [0.995, 0.005]), 3100),
        ],
        ids=str,
    )
    def test_distributions(self, answer: ND, truth: Any, tmp_path, drawn):
        """Ends, median and truth have the order that they should have, on an axis of finite numbers."""
        plot_distributions([answer], tmp_path / "picture.png", [truth])
        axes = drawn[0].axes[0]
        (low, high), (median,), (right, _) = (line.get_xdata() for line in axes.lines)
        left_edge, right_edge = axes.get_xlim()
        assert left_edge < low <= median <= high < right_edge
        assert left_edge < right < right_edge
        exact = [*answer.interval(0.9), ND.point(truth).median]
        assert np.argsort([low, high, right], kind="stable").tolist() == np.argsort(np.array(exact), kind="stable").tolist()
        assert math.isfinite(left_edge)
        assert math.isfinite(right_edge)
        assert len(axes.get_title(loc="left")) < 50

    def test_a_truth_far_outside_is_an_arrow(self, tmp_path, drawn):
        plot_distributions([ND.bell(50, width=2)] * 2, tmp_path / "picture.png", [HUGE, -7000])
        assert [axes.texts[0].get_text() for axes in drawn[0].axes] == ["1000000…000000 (401 digits) →", "← -7000"]
        assert [len(axes.lines) for axes in drawn[0].axes] == [2, 2]

    def test_bad_input(self, tmp_path):
        path = tmp_path / "picture.png"
        refused(ValueError, ["distributions has 0 entries", "1 to 30"], lambda: plot_distributions([], path))
        refused(ValueError, ["distributions has 31", "distributions[:6]"], lambda: plot_distributions([ANSWERS[0]] * 31, path))
        refused(ValueError, ["truths has 1 entries for 2"], lambda: plot_distributions(ANSWERS[:2], path, [1]))
        refused(ValueError, ["titles has 3"], lambda: plot_distributions(ANSWERS[:2], path, titles=["a", "b", "c"]))
        refused(ValueError, ["path.suffix='.bmp'"], lambda: plot_reliability(ANSWERS, TRUTHS, Path("a.bmp")))
        refused(TypeError, ["levels=0.9"], lambda: plot_coverage(ANSWERS, TRUTHS, path, levels=0.9))  # type: ignore[arg-type]
        refused(TypeError, ["distributions contains 3"], lambda: plot_distributions([3], path))  # type: ignore[list-item]
        assert not path.exists()


class TestFormats:
    def test_every_kind_with_its_tokens(self, tmp_path, drawn):
        tokenizers = {kind: small.tokenizer(kind) for kind in small.KINDS}
        path = plot_formats(tokenizers, tmp_path / "new" / "formats.png", "-1234.5")
        assert path.read_bytes().startswith(b"\x89PNG")
        for axes, (title, tokenizer) in zip(drawn[0].axes, tokenizers.items(), strict=True):
            rows = format_tokens(tokenizer, "-1234.5")
            assert [row.kind for row in rows] == [*KINDS]
            texts = [text.get_text() for text in axes.texts]
            assert texts == [text for row in rows for text in (row.kind, row.places, *row.tokens)]
            assert axes.get_title(loc="left") == f"-1234.5, {title}"
            boxes, edge = [patch.get_bbox() for patch in axes.patches], axes.get_xlim()[1]
            assert len(boxes) == sum(len(row.tokens) for row in rows)
            assert all(a.x1 < b.x0 or a.y0 != b.y0 for a, b in pairwise(boxes))  # side by side
            assert max(box.x1 for box in boxes) < edge - 3  # the places stand beside them

    def test_bad_input(self, tmp_path):
        refused(ValueError, ["tokenizers is empty"], lambda: plot_formats({}, tmp_path / "a.png"))
        refused(ValueError, ["path.suffix='.bmp'"], lambda: plot_formats({}, "a.bmp"))
        refused(ValueError, ["number='1e5'"], lambda: plot_formats({"a": small.tokenizer("digits")}, tmp_path / "a.png", "1e5"))
