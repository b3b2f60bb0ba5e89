"""Heads that predict a number: runs like any other, on the same rows, with distributions that rules decide from."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from numerate.lab.data import TASKS
from numerate.lab.data.settings import make_task
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import LoadedModel, load_encoder, load_model
from numerate.lab.training.config import HEADS, RunConfig, checked
from numerate.lab.training.heads import KINDS, QUANTILES, SIGMA, HeadedModel, bin_edges, hl_gauss_targets, with_head
from numerate.lab.training.prepare import check_run, run_data, run_examples
from numerate.lab.training.run import run

FEW: dict[str, Any] = {"task": "regression", "steps": 2, "batch_size": 4, "train_examples": 40, "eval_examples": 6}
FEW |= {"eval_splits": ["interpolate"], "decide": ["median", "mean", "relative"]}


def config(**settings: Any) -> RunConfig:
    return checked(RunConfig, {**FEW, **settings})


def lines(folder: Path) -> Path:
    """A table whose answer has one decimal and depends on its one column."""
    path = folder / "lines.csv"
    path.write_text("x,y\n" + "".join(f"{x},{7 * x + x * x % 31}.5\n" for x in range(10, 400)), encoding="utf-8")
    return path


def test_every_head_has_a_name() -> None:
    assert tuple(KINDS) == HEADS


def test_targets_of_a_histogram() -> None:
    """They sum to one, and their mean is the label, within the training range and at its ends."""
    numbers = torch.linspace(-3, 5, 201)
    edges = bin_edges(numbers)
    targets = hl_gauss_targets(numbers, edges)
    width = float(edges[1] - edges[0])
    torch.testing.assert_close(targets.sum(-1), torch.ones(201))
    means = targets @ ((edges[1:] + edges[:-1]) / 2)
    assert float((means - numbers).abs().max()) < 0.05 * width
    spread = (targets @ ((edges[1:] + edges[:-1]) / 2).square() - means.square()).sqrt()
    # A bin adds the variance of an even distribution to that of the Gaussian.
    torch.testing.assert_close(spread[100], torch.tensor(width * math.sqrt(SIGMA**2 + 1 / 12)), rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_the_loss_is_least_at_the_truth(kind: str) -> None:
    """Outputs that minimise the loss over normal labels have their mean, and, but for the scalar, their quantiles."""
    torch.manual_seed(0)
    labels = torch.randn(4000)
    head = KINDS[kind](1, labels)
    out = torch.zeros(1, head.outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS([out], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = head.loss(out.expand(len(labels), -1), labels)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    values, p = head.masses(out.detach())
    assert p.sum() == pytest.approx(1, abs=1e-5)
    assert float((values * p).sum()) == pytest.approx(float(labels.mean()), abs=0.02)
    if kind != "scalar_head":
        for level in (0.1, 0.5, 0.9):
            at = int((p[0].cumsum(0) < level).sum())
            assert float(values[0, at]) == pytest.approx(float(Normal(0.0, 1.0).icdf(torch.tensor(level))), abs=0.12)


def test_quantiles_that_cross_are_put_in_order() -> None:
    values, p = KINDS["quantile_head"](1, torch.zeros(3)).masses(torch.arange(QUANTILES).flip(0)[None].float())
    assert values.tolist() == [list(range(QUANTILES))]
    assert p.tolist() == [[1 / QUANTILES] * QUANTILES]


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_a_run_like_any_other(kind: str, tmp_path: Path) -> None:
    """It learns, and its records have answers, measures and decisions, in the decimals of the labels."""
    settings = {"data": str(lines(tmp_path)), "task_settings": {"target": "y"}, "steps": 100, "batch_size": 32}
    own = config(loss=kind, **settings, train_examples=300, eval_examples=60, learning_rate=4e-3)
    result = run(own, tmp_path / "run")
    assert result["label"] == kind
    assert result["splits"] == {"interpolate": {"n": 60}}
    records = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    golds = np.array([float(record["gold"]) for record in records])
    for answers in ([record["decisions"][rule]["answer"] for record in records] for rule in own.decide):
        assert np.abs(golds - np.array(answers, float)).mean() < 0.5 * np.abs(golds - np.median(golds)).mean()
    assert any("." in record["output"] for record in records)
    for record in records:
        assert re.fullmatch(r"-?\d+(\.\d)?", record["output"])
        assert record["measures"]["absolute_error"] == pytest.approx(abs(float(record["output"]) - float(record["gold"])))
        assert record["decisions"]["median"]["answer"] == record["output"]
        assert (record["interval"][0] == record["interval"][1]) == (kind == "scalar_head")


@pytest.mark.parametrize("settings", [{}, {"max_length": 55}, {"validation": True}, {"accumulation": 2}], ids=str)
def test_heads_see_the_batches_of_the_run(settings: dict[str, Any]) -> None:
    """The questions of a run of cross-entropy, in its order; rows that are too long are left out."""
    own, plain = config(loss="scalar_head", **settings), config(loss="ce", **settings)
    task, loaded = make_task(own), load_model("tiny")
    (rows, too_long), (expected, same) = run_data(own, task, headed(own, loaded)), run_data(plain, task, loaded)
    assert too_long == same
    assert (too_long > 0) == ("max_length" in settings)
    scale = headed(own, loaded).model.scale
    for at in range(own.steps * own.accumulation * own.batch_size):
        begin = next(k for k, label in enumerate(expected[at]["labels"]) if label >= 0)
        assert rows[at]["input_ids"] == expected[at]["input_ids"][:begin]
        assert "labels" not in rows[at]
        number = loaded.tokenizer.decode(expected[at]["labels"][begin:-1])
        assert float(scale.restored(np.array(rows[at]["number"]))) == pytest.approx(float(number), rel=1e-9)


def headed(own: RunConfig, loaded: LoadedModel) -> Any:
    task = make_task(own)
    return with_head(loaded, own.loss, task, run_examples(own, task), own.seed, **own.loss_settings)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "lora"])
def test_padding_does_not_change_what_a_head_says(architecture: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(vocab_size=200, n_positions=128, n_embd=8, n_layer=1, n_head=1)
    loaded = load_model("tiny", adapter="lora" if architecture == "lora" else "none")
    if architecture == "gpt2":
        loaded = LoadedModel(**vars(load_encoder("tiny")), model=GPT2LMHeadModel(small))
    own = config(loss="hl_gauss_head")
    with_numbers = headed(own, loaded)
    model: HeadedModel = with_numbers.model.eval()
    rows = with_numbers.encode([(text, None) for text in ("x: 7. y?", "x: 7, z: 12345. y?", "7?")])
    assert len({len(row["input_ids"]) for row in rows}) > 1
    with torch.no_grad():
        together = model(**collate(rows, pad=with_numbers.pad))["out"]
        alone = torch.cat([model(**collate([row], pad=with_numbers.pad))["out"] for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_diverged_still_answers(kind: str, log: bool, weight: float) -> None:
    with_numbers = headed(config(loss=kind, loss_settings={"log": log}), load_model("tiny"))
    torch.nn.init.constant_(with_numbers.model.head.linear.weight, weight)
    for found in with_numbers.model.distributions(collate(with_numbers.encode([("x: 7. y?", None)]), pad=with_numbers.pad)):
        assert float(found.probabilities.sum()) == pytest.approx(1)
        assert found.median.is_finite()


def test_a_run_of_a_head_reads_no_mask(tmp_path: Path) -> None:
    """A comparison may set ``term_numbers`` for its losses, and have a head beside them."""
    assert run(config(loss="scalar_head", term_numbers="answer"), tmp_path)["label"] == "scalar_head"


@pytest.mark.parametrize("log", [None, True, False])
def test_the_scale(log: bool | None) -> None:
    loaded = load_model("tiny")
    for numbers, wide in ((np.array([1.0, 2.0, 500.0] * 9), True), (np.array([100.0, 110.0, 120.0]), False)):
        assert HeadedModel(loaded.model, "scalar_head", numbers, 0, log=log).scale.log == (wide if log is None else log)
    if log:
        with pytest.raises(ValueError, match="needs positive labels"):
            HeadedModel(loaded.model, "scalar_head", np.array([-1.0, 1.0]), 0, log=log)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"soft": {"relative": 0.1}}, "soft is set, and loss='scalar_head' writes no answer"),
        ({"samples": 4}, "samples is set"),
        (
            {"keep_model": True},
            "whose weights are not kept, so that it predicts no other rows: expected another loss, numerate compare",
        ),
        ({"number_weight": 2.0}, "number_weight is set"),
        ({"validate_every": 2}, "validate_every is set"),
        ({"loss_settings": {"bins": 3}}, "bins=3 is not a setting of loss_settings of scalar_head"),
    ],
)
def test_settings_of_written_answers_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        config(loss="scalar_head", **settings)


def test_an_answer_must_be_one_number() -> None:
    own = config(loss="scalar_head", task="grounding", model="tiny-vlm", decide=[])
    assert "grounding" in TASKS
    with pytest.raises(ValueError, match="an answer of the task 'grounding' is"):
        check_run(own, make_task(own), load_encoder("tiny-vlm"))


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task().answer_is == "one number"])
def test_every_task_of_one_number_has_heads(task: str, tmp_path: Path) -> None:
    """With pictures too, and on a circle."""
    model = "tiny-vlm" if TASKS[task].visual else "tiny"
    own = config(loss="quantile_head", task=task, model=model, decide=["median"], steps=1, train_examples=8, eval_examples=2)
    run(own, tmp_path)
    assert all(record["answer"] is not None for record in read_jsonl(tmp_path / "predictions.jsonl"))
