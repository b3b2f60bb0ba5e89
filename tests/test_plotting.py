"""Pictures of a loss, and the costs they show."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from numerate import LOSSES, NumericVocab, SMMDLoss
from numerate.plotting import certain_costs, plot_loss

DIGITS = NumericVocab.from_texts({str(d): d for d in range(10)} | {"-": 10}, vocab_size=12)
CHUNKS = NumericVocab.from_texts({text: i for i, text in enumerate([*map(str, range(120)), "00", "007", " 7"])}, vocab_size=130)


class TestCertainCosts:
    def test_the_known_values_of_smmd(self):
        costs = certain_costs(SMMDLoss(DIGITS), 0)
        assert costs[0].item() == pytest.approx(0, abs=1e-5)
        assert costs[6].item() == pytest.approx(2.669, abs=1e-3)
        assert costs[9].item() == pytest.approx(2.474, abs=1e-3)

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
    def test_the_right_answer_costs_least(self, name: str):
        assert certain_costs(LOSSES[name](DIGITS), 5).argmin() == 5


class TestPlot:
    @pytest.mark.parametrize("name", LOSSES)
    def test_every_loss_has_a_picture(self, name: str, tmp_path):
        path = plot_loss(CHUNKS, tmp_path / "new" / "folder" / "picture.png", name)
        assert path.read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize("vocab", [DIGITS, NumericVocab.from_values({3: -0.5, 4: 0.25, 5: 8}, vocab_size=6)])
    def test_few_values(self, vocab: NumericVocab, tmp_path):
        svg = plot_loss(vocab, tmp_path / "picture.svg").read_text()
        assert "<svg" in svg

    def test_a_single_value(self, tmp_path):
        plot_loss(NumericVocab.from_values({0: 5}, vocab_size=1), tmp_path / "picture.png")

    def test_an_unknown_loss(self, tmp_path):
        with pytest.raises(ValueError, match=r"loss='smd' is not known.*Did you mean 'smmd'"):
            plot_loss(DIGITS, tmp_path / "picture.png", "smd")

    def test_an_unknown_format(self, tmp_path):
        with pytest.raises(ValueError, match=r"path.suffix='.bmp' is not known: expected one of '.png'"):
            plot_loss(DIGITS, tmp_path / "picture.bmp")

    def test_without_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'numerate\[report\]'"):
            plot_loss(DIGITS, tmp_path / "picture.png")
