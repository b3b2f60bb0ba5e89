"""The tasks for lm-evaluation-harness: on the same answers, every figure is that of `numerate eval`, to the last digit."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from numerate.answers.metrics import METRICS
from numerate.lab.data import TASKS
from numerate.lab.data import settings as run_settings
from numerate.lab.data.splits import training_examples
from numerate.lab.evaluation import evaluate as evaluation
from numerate.lab.evaluation.decisions import GREEDY, SAMPLED
from numerate.lab.evaluation.error_sources import read_decisions
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.harness import scoring
from numerate.lab.models.loading import load_model
from numerate.lab.report.levels import _level
from numerate.lab.report.records import numbers_in
from numerate.lab.wording.decisions import Worth, summary_rows

pytest.importorskip("datasets")

FOLDER = Path(scoring.__file__).parent
FEW = {"train_examples": 50, "eval_examples": 12}
OTHERS = ("I cannot tell.", "NaN", "It is 7.", "7.0", "1e400 or so", "3, or 1/0", "2_55", "", "#### 1,000.")


class Functions(yaml.SafeLoader):
    """Reads the files as the harness does."""


Functions.add_constructor(
    "!function", lambda loader, node: getattr(scoring, loader.construct_scalar(node).removeprefix("scoring."))
)


def config(name):
    own = yaml.load((FOLDER / name).read_text(), Functions)
    return {**config(own.pop("include")), **own} if "include" in own else own


CONFIGS = {file.stem: config(file.name) for file in sorted(FOLDER.glob("[!_]*.yaml"))}
PLAIN = [name for name in CONFIGS if not name.endswith("_samples")]


def harness(name, answers, **metadata):
    """Score answers as the harness does."""
    chosen = CONFIGS[name]
    documents = chosen["custom_dataset"](**chosen["dataset_kwargs"], **chosen["metadata"], **metadata)["test"]
    rows = [chosen["process_results"](document, [answer]) for document, answer in zip(documents, answers, strict=True)]
    how = {metric["metric"]: metric["aggregation"] for metric in chosen["metric_list"]}
    figures = {}
    for key in {key: None for row in rows for key in row}:
        values = [row[key] for row in rows]
        figures[key] = sum(values) / len(values) if how[key] == "mean" else how[key](values)  # what the harness calls mean
    return figures


@pytest.mark.parametrize("split", ["interpolate", "extrapolate"])
@pytest.mark.parametrize("name", PLAIN)
def test_the_figures_are_those_of_numerate_eval(name, split, monkeypatch):
    asked = CONFIGS[name]["dataset_kwargs"]
    settings = run_settings.DataSettings(task=asked["task"], task_settings=asked["settings"], eval_splits=(split,), **FEW)
    task = run_settings.make_task(settings)
    examples = run_settings.tested(settings, task)
    outputs = {e.prompt: (e.answer, *OTHERS)[i % 10] if i else e.answer for i, e in enumerate(examples[split])}
    golds = {e.prompt: e.answer for e in examples[split]}
    draws = {
        prompt: [gold if draw % 3 else (gold, *OTHERS)[(i + draw) % 10] for draw in range(16)] if i % 5 else [gold] * 16
        for i, (prompt, gold) in enumerate(golds.items())
    }
    draws[examples[split][1].prompt] = ["no idea"] * 16

    def generate(loaded, batch, *_, num_return_sequences=1, do_sample, **options):
        return [text for e in batch for text in (draws[e.prompt] if do_sample else [outputs[e.prompt]])]

    monkeypatch.setattr(evaluation, "_generate", generate)
    records = evaluation.evaluate(
        load_model("tiny"),
        task,
        examples,
        fallback=middle_label(task, training_examples(task, 50, 0)),
        samples=16,
        decide=("median",),
        decide_width=2,
    )
    figures, part = evaluation.summarize(records)[split], read_decisions(records)

    def table(decision):  # means are over the examples on which all decisions of an evaluation are finite: here one
        alone = replace(part, measures={GREEDY: part.measures[decision]})
        return {(metric, summary): value for metric, summary, (value,) in summary_rows(alone)}

    greedy = harness(name, list(outputs.values()), split=split, **FEW)
    sampled = harness(f"{name}_samples", list(draws.values()), split=split, **FEW)

    for metric in task.score(examples[split][0], ""):
        assert greedy[metric] == figures[metric], metric
    means = {metric.removeprefix("mean_") for metric in greedy if metric.startswith("mean_")}
    assert means == {metric for metric in figures if metric in METRICS and METRICS[metric].summary == "median"}
    for metric in means:
        assert greedy[f"mean_{metric}"] == table(GREEDY)[metric, "mean"], metric
    for metric in ("sample_parsed", "sample_crps"):
        assert sampled[metric] == figures[metric]
    drawn = table("median" if task.ends_in_number else SAMPLED)
    for metric in task.measures:
        summary = METRICS[metric].summary
        assert sampled[metric] == drawn[metric, summary], metric
        if f"mean_{metric}" in sampled:
            assert sampled[f"mean_{metric}"] == drawn[metric, "mean"], metric
    if task.ends_in_number:
        assert (sampled["coverage"], sampled["crps"]) == (Worth.of([part]).coverage, Worth.of([part]).crps)
    assert 0 < sampled["coverage"] <= 1
    assert ("spearman" in greedy) == (task.period is None)
    if task.period is None:
        numbers, answers = numbers_in(list(golds.values())), numbers_in([record["answer"] for record in records])
        level = _level("ce", "", split, numbers, np.zeros((1, len(numbers))), [answers])
        assert greedy["spearman"] == level.figures["spearman"].typical


@pytest.mark.parametrize("name", PLAIN)
def test_coverage_and_crps_are_those_of_the_samples(name):
    chosen = CONFIGS[name]
    documents = chosen["custom_dataset"](**chosen["dataset_kwargs"], **FEW)["test"]
    task = TASKS[chosen["dataset_kwargs"]["task"]](**chosen["dataset_kwargs"]["settings"])
    for document in list(documents)[:4]:
        gold = float(task.read(document["answer"]))
        near = [task.written(round(gold) % 720 + off) if task.period else f"#### {gold + off!r}" for off in range(-2, 14)]
        row = scoring.scores(document, [near])
        assert row["coverage"] is True  # 13 numbers are above, and 2 below
        assert row["sample_parsed"] == 1
        if not task.period:
            pairs = [(abs(x), abs(x - y)) for x in range(-2, 14) for y in range(-2, 14)]
            expected = float(np.mean([x for x, _ in pairs]) - np.mean([gap for _, gap in pairs]) / 2)
            assert row["crps"] == pytest.approx(expected, rel=1e-6)
            assert row["sample_crps"] == pytest.approx(expected, rel=1e-6)
            assert scoring.scores(document, [[f"#### {gold + off!r}" for off in range(1, 17)]])["coverage"] is False
        broken = scoring.scores(document, [[*near, "none"]])
        assert (broken["sample_crps"], broken["crps"], broken["coverage"]) == (math.inf, row["crps"], True)
        nothing = scoring.scores(document, [["none"] * 3])
        assert (nothing["crps"], nothing["coverage"], nothing["parsed"]) == (None, None, 0)


def test_summaries_of_missing_values_and_ties():
    assert scoring.median([1.0, math.inf, 3.0, 2.0]) == 2.5
    assert scoring.mean([0.1, 0.2, 0.3]) == float(np.mean([0.1, 0.2, 0.3]))
    assert scoring.mean_of_known([1.0, None, math.inf, 4.0, True]) == 2
    assert math.isnan(scoring.mean_of_known([None, math.inf]))
    assert scoring.spearman([("1", "10"), ("2", "10"), ("3", "1e400"), ("1/2", None)]) == pytest.approx(0.9486832980505139)
    assert math.isnan(scoring.spearman([("1", "5"), ("2", "5")]))
    assert math.isnan(scoring.spearman([("1", None), ("1", "5")]))


def test_every_score_has_a_summary_and_its_direction():
    listed = {metric["metric"]: metric for metric in CONFIGS["arithmetic"]["metric_list"]}
    found = set()
    for name, chosen in CONFIGS.items():
        documents = chosen["custom_dataset"](**chosen["dataset_kwargs"], **FEW)
        assert set(documents) == {chosen["fewshot_split"], chosen["test_split"]}
        answer = ["7"] * 3 if name.endswith("_samples") else "7"
        found |= set(chosen["process_results"](documents["test"][0], [answer]))
    assert found == set(listed)
    for name, metric in listed.items():
        if (known := METRICS.get(name.removeprefix("mean_"))) is not None:
            assert metric["higher_is_better"] == known.higher_is_better
    assert listed["coverage"]["higher_is_better"] is None


@pytest.mark.parametrize("name", PLAIN)
def test_samples_ask_the_same_questions(name):
    plain, sampled = CONFIGS[name], CONFIGS[f"{name}_samples"]
    assert (plain["task"], sampled["task"]) == (f"numerate_{name}", f"numerate_{name}_samples")
    differ = {key for key in sampled if sampled[key] != plain.get(key)}
    assert differ == {"task", "tag", "repeats", "filter_list", "generation_kwargs"}
    for key in ("until", "max_gen_toks"):
        assert sampled["generation_kwargs"][key] == plain["generation_kwargs"][key]
    assert sampled["filter_list"] == [{"name": "samples", "filter": []}]  # all of them


def test_metadata_select_settings_and_data(tmp_path):
    (tmp_path / "my.csv").write_text("area,price\n" + "".join(f"{area},{3 * area}\n" for area in range(20, 60)))
    chosen = CONFIGS["table"]["dataset_kwargs"]
    metadata = {"data": str(tmp_path / "my.csv"), "task_settings": {"target": "price"}, "pretrained": "a model"}
    own = scoring.documents(**chosen, **metadata)["test"]
    assert own[0]["prompt"].startswith("area: ")
    assert scoring.scores(own[0], [own[0]["answer"]])["exact"] == 1
    harder = scoring.documents(**CONFIGS["skills_integers"]["dataset_kwargs"], task_settings={"skill": "add"}, **FEW)["test"]
    assert all("+" in row["prompt"] for row in harder)
    with pytest.raises(ValueError, match="split='test'"):
        scoring.documents(**chosen, split="test")


def test_the_command_prints_the_folder():
    told = subprocess.run([sys.executable, "-m", "numerate.lab.harness"], capture_output=True, text=True, check=True).stdout
    assert told == f"{FOLDER}\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_harness_itself_finds_the_same_figures(tmp_path):
    lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    loaded = load_model("tiny")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    names = ["numerate_skills_integers", "numerate_table_samples"]
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=str(tmp_path), device="cpu", batch_size=16),
        tasks=names,
        task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=FEW),
        bootstrap_iters=0,
    )
    for name in names:
        rows = sorted(found["samples"][name], key=lambda row: row["doc_id"])
        mine = harness(name.removeprefix("numerate_"), [row["filtered_resps"][0] for row in rows], **FEW)
        results = found["results"][name].items()
        told = {key.partition(",")[0]: value for key, value in results if "," in key and "stderr" not in key}
        np.testing.assert_equal(told, mine)
    settings = run_settings.DataSettings(
        task="number_skills", task_settings={"notation": "integers"}, eval_splits=("interpolate",), **FEW
    )
    task = run_settings.make_task(settings)
    records = evaluation.evaluate(loaded, task, run_settings.tested(settings, task), max_new_tokens=32)
    for metric, value in evaluation.summarize(records)["interpolate"].items():
        if metric in METRICS:
            assert found["results"][names[0]][f"{metric},none"] == value, metric
