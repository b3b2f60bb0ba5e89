"""``term_numbers``: the numeric term reads some numbers of an answer, and cross-entropy still reads all tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from numerate.lab.data import WordProblems
from numerate.lab.data.settings import make_task
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.masks import check_term_numbers
from numerate.lab.training.prepare import check_run, run_data
from numerate.lab.training.run import run

RESULTS = r"= (\d+)\n"
WORDS: dict[str, Any] = {"task": "word_problems", "task_settings": {"steps": 2}, "batch_size": 4, "train_examples": 16}
WORDS |= {"steps": 1, "eval_examples": 2, "eval_splits": ["interpolate"], "max_new_tokens": 2, "log_every": 1}


def config(**settings: Any) -> RunConfig:
    return checked(RunConfig, {**WORDS, **settings})


@pytest.mark.parametrize("model", ["tiny", "tiny-3", "smollm2"])
@pytest.mark.parametrize("term_numbers", ["answer", RESULTS])
def test_the_mask_is_on_the_numbers_that_are_meant(model: str, term_numbers: str) -> None:
    own = config(loss="smmd", model="tiny" if model == "smollm2" else model, term_numbers=term_numbers)
    loaded = load_model(own.model)
    if model == "smollm2":
        from numerate.tokenizers import load_tokenizer

        loaded.tokenizer = load_tokenizer("smollm2")
    rows, _ = run_data(own, make_task(own), loaded)
    for place in range(4):
        row = rows[place]
        assert len(row["position_weights"]) == len(row["input_ids"])
        text = loaded.tokenizer.decode([token for token in row["labels"] if token >= 0], skip_special_tokens=True)
        lines = [line.split()[-1] for line in text.split("\n")]  # "39 - 11 = 28", then "#### 28"
        meant = lines[-1:] if term_numbers == "answer" else lines[:-1]
        read = [token for token, weight in zip(row["labels"], row["position_weights"], strict=True) if weight]
        assert {*row["position_weights"]} == {0.0, 1.0}
        assert loaded.tokenizer.decode(read).replace(" ", "") == "".join(meant)


@pytest.mark.parametrize("loss", ["smmd", "ntil"])  # of tokens, and of numbers
def test_a_run_is_trained_with_the_mask(loss: str, tmp_path: Path) -> None:
    """The first logged values are those of the masked objective, at the initial weights."""
    own = config(loss=loss, term_numbers="answer")
    run(own, tmp_path / "answer")
    run(config(loss=loss), tmp_path / "all")
    (masked,), (whole,) = (read_jsonl(tmp_path / name / "curve.jsonl") for name in ("answer", "all"))
    loaded, task = load_model("tiny", seed=0), make_task(own)
    objective = check_run(own, task, loaded)
    rows, _ = run_data(own, task, loaded)
    batch = collate([rows[place] for place in range(4)], pad=loaded.pad)
    weights, labels = batch.pop("position_weights"), batch.pop("labels")
    assert objective is not None
    with torch.no_grad():
        out = objective(loaded.model(**batch).logits, labels, position_weights=weights, shift=True)
    assert masked["loss/numeric"] == pytest.approx(float(out.numeric), rel=1e-4)
    assert masked["loss/cross_entropy"] == pytest.approx(whole["loss/cross_entropy"], rel=1e-6)
    assert masked["loss/numeric"] != pytest.approx(whole["loss/numeric"], rel=1e-3)


def test_the_default_is_no_part_of_a_hash() -> None:
    assert "term_numbers" not in config(loss="smmd").deciding
    assert config(loss="smmd", term_numbers="answer").deciding["term_numbers"] == "answer"


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"term_numbers='=\(' is not a pattern .*: expected all, answer or a regular expression"):
        config(term_numbers="=(")
    with pytest.raises(
        ValueError, match=r"term_numbers='answr' matches nothing in the first 100 training answers, such as '.*#### "
    ):
        check_term_numbers("answr", WordProblems(), TaskFormat())


@pytest.mark.parametrize("settings", [{"loss": "ce"}, {"loss": "smmd", "weight": 0.0}])
def test_a_run_is_trained_with_heavier_numbers(settings: dict[str, Any], tmp_path: Path) -> None:
    """The first logged loss is the cross-entropy at the initial weights in which numeric tokens count three times."""
    own = config(number_weight=3.0, **settings)
    run(own, tmp_path)
    (logged,) = read_jsonl(tmp_path / "curve.jsonl")
    loaded = load_model("tiny", seed=0)
    rows, _ = run_data(config(loss="ce"), make_task(own), loaded)
    batch = collate([rows[place] for place in range(own.batch_size)], pad=loaded.pad)
    labels = batch["labels"][:, 1:]
    with torch.no_grad():
        logits = loaded.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # 0 where there is no label
    digits = torch.tensor([token for token in range(len(loaded.tokenizer)) if loaded.tokenizer.decode([token]).isdigit()])
    weights = torch.where(torch.isin(labels, digits), 3.0, 1.0) * (labels >= 0)
    assert 0 < torch.isin(labels, digits).sum() < (labels >= 0).sum()
    assert logged["loss"] == pytest.approx(float((weights * each).sum() / weights.sum()), rel=1e-5)
