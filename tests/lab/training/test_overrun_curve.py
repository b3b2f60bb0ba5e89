"""The learning curve holds the probability of digits where a number ends, with soft labels too."""

from __future__ import annotations

import pytest
import torch

from numerate import NumericObjective, NumericVocab, SMMDLoss
from numerate.lab.data import TASKS
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import AnswerTries, SoftAnswers, collate, training_data
from numerate.lab.models.loading import load_model
from numerate.lab.training.trainer import fit


def curve_of(objective, folder, *, soft=False):
    """Train two steps of regression; return the curve, and the figure of the first step by brute force."""
    task, loaded = TASKS["regression"](), load_model("tiny")
    answers = SoftAnswers(AnswerTries(loaded, task.soft_target(relative=0.05)), "drawn", 0) if soft else None
    data, _ = training_data(loaded, task.examples("train", 8), batch_size=4, batches=2, seed=0, max_length=128, soft=answers)
    batch = collate([data[i] for i in range(4)], pad=loaded.pad)
    with torch.no_grad():
        logits = loaded.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double()
    digits = torch.tensor([i for i in range(logits.shape[-1]) if loaded.tokenizer.decode([i]).strip().isdigit()])
    masses = []
    for row, labels in enumerate(batch["labels"].tolist()):
        last = max(t for t, token in enumerate(labels) if token in digits.tolist())  # the answer is one number
        masses.append(logits[row, last].softmax(-1)[digits].sum())  # predicts the label at last + 1
        assert labels[last + 1] != -100
    arguments = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    fit(loaded, data, objective(loaded), arguments, folder)
    return read_jsonl(folder / "curve.jsonl"), float(torch.stack(masses).mean())


def vocab_of(loaded):
    return NumericVocab.from_tokenizer(loaded.tokenizer)


@pytest.mark.parametrize(
    ("make", "soft"),
    [
        (lambda loaded: NumericObjective(SMMDLoss(vocab_of(loaded))), False),
        (lambda loaded: NumericObjective(None, vocab=vocab_of(loaded)), True),
    ],
    ids=["smmd", "soft"],
)
def test_the_curve(make, soft, tmp_path):
    curve, expected = curve_of(make, tmp_path, soft=soft)
    assert [point["step"] for point in curve] == [1, 2]
    assert curve[0]["numeric/overrun"] == pytest.approx(expected, rel=1e-4)
    assert ("loss/numeric" in curve[0]) == (not soft)  # a zero says nothing


@pytest.mark.parametrize("make", [lambda _: NumericObjective(None), lambda _: None], ids=["soft", "ce"])
def test_without_a_vocabulary_there_is_none(make, tmp_path):
    curve, _ = curve_of(make, tmp_path)
    assert not any(name.startswith(("numeric/", "loss/")) for point in curve for name in point)
