"""The likelihood of numbers and of the rest of the text: right for every task, compared and shown in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from numerate.lab.comparison.compare import compare
from numerate.lab.data import TASKS, Example
from numerate.lab.evaluation.evaluate import evaluate
from numerate.lab.evaluation.likelihood import LIKELIHOODS, NUMBER_NLL, TEXT_NLL, likelihoods
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import encode
from numerate.lab.models.loading import LoadedModel, load_model


def nll_by_kind(loaded: LoadedModel, example: Example) -> dict[bool, list[float]]:
    """One example at a time, one token at a time: of digits (True) and of all other characters."""
    row = encode(loaded, [example])[0]
    inputs = {"input_ids": torch.tensor([row["input_ids"]])}
    if example.picture is not None:
        inputs["pixel_values"] = row["pixels"].float() / 127.5 - 1
    with torch.no_grad():
        logits = loaded.model(**inputs).logits[0]
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for place, label in enumerate(row["labels"]):
        if label >= 0:
            kinds[loaded.tokenizer.decode([label]).isdigit()].append(
                float(F.cross_entropy(logits[place - 1], torch.tensor(label)))
            )
    return kinds


@pytest.mark.parametrize("logits", [1 << 29, 1])  # all answers at once, and one by one
@pytest.mark.parametrize("name", TASKS)
def test_the_likelihoods_of_every_task_with_text(name: str, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numerate.lab.evaluation.evaluate._MOST_LOGITS", logits)
    task = TASKS[name]()
    loaded = load_model("tiny-vlm" if task.visual else "tiny")
    examples = task.examples("interpolate", 3)  # of several lengths, so that some are padded
    records = evaluate(loaded, task, {"interpolate": examples}, max_new_tokens=1)
    for record, example in zip(records, examples, strict=True):
        kinds = nll_by_kind(loaded, example)
        assert record["nll"] == pytest.approx(sum(kinds[True] + kinds[False]), rel=1e-4)
        assert (record["measures"].keys() & LIKELIHOODS.keys()) == (set() if task.answer_is == "one number" else {*LIKELIHOODS})
        if task.answer_is != "one number":
            assert kinds[True]
            assert record["measures"][NUMBER_NLL] == pytest.approx(sum(kinds[True]) / len(kinds[True]), rel=1e-4)
            assert record["measures"][TEXT_NLL] == pytest.approx(sum(kinds[False]) / len(kinds[False]), rel=1e-4)


def test_an_answer_without_tokens_of_a_kind_has_no_cost_of_that_kind() -> None:
    nll = torch.tensor([1.0, 2.0])
    assert likelihoods(nll, torch.tensor([False, False])) == {NUMBER_NLL: 0.0, TEXT_NLL: 1.5}
    assert likelihoods(nll, torch.tensor([True, True])) == {NUMBER_NLL: 1.5, TEXT_NLL: 0.0}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison on word problems, with a mask."""
    folder = tmp_path_factory.mktemp("words")
    quick = {"steps": 2, "batch_size": 4, "train_examples": 16, "eval_examples": 5, "max_new_tokens": 4, "log_every": 1}
    losses = ["ce", {"loss": "ntil", "weight": 3.0}, {"loss": "ntil", "label": "ntil answer", "term_numbers": "answer"}]
    settings = {"eval_splits": ["interpolate"], "task_settings": {"steps": 1}, **quick}
    compare(task="word_problems", model="tiny", losses=losses, seeds=3, out=folder, processes=1, progress=False, **settings)
    return folder


def test_the_likelihoods_are_summarised_and_tested(compared: Path) -> None:
    data = json.loads((compared / "report.json").read_text())
    for name in LIKELIHOODS:
        rows = {row["label"]: row for row in data["scores"] if row["measure"] == name}
        assert rows.keys() == {"ce", "ntil", "ntil answer"}
        for label, row in rows.items():
            cells = [
                cell
                for cell in (compared / "cells").iterdir()
                if json.loads((cell / "config.json").read_text())["label"] == label
            ]
            own = [record["measures"][name] for cell in cells for record in read_jsonl(cell / "predictions.jsonl")]
            assert len(own) == 15
            assert row["value"] == pytest.approx(sum(own) / 15, rel=1e-6)
            assert row["seeds"] == 3
            assert (row["difference"] is None) == (row["p_holm"] is None) == (label == "ce")
        assert rows["ntil"]["difference"] == pytest.approx(rows["ntil"]["value"] - rows["ce"]["value"], abs=1e-9)


def test_the_report_shows_the_likelihoods(compared: Path) -> None:
    page = (compared / "report.html").read_text()
    for title in ("likelihood of numbers (NLL)", "likelihood of the rest of the text (NLL)", *LIKELIHOODS.values()):
        assert title in page or title[:1].upper() + title[1:] in page
    assert "term_numbers" in page
