"""Soft labels in the lab: their settings, the rows that are drawn, runs, comparisons, and several people's ratings."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from numerate.formats import KINDS
from numerate.lab.comparison.cells import tuning_trials
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data import TASKS, Example, Regression
from numerate.lab.data.settings import make_task
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import AnswerTries, SoftAnswers, collate, encode
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.training.checking import soft_target
from numerate.lab.training.config import SOFT, RunConfig, checked
from numerate.lab.training.prepare import check_run, load_run_model, run_encoder
from numerate.lab.training.run import run
from numerate.targets import AnswerDistribution, Bell
from numerate.targets.soft_targets import SOFT_FIELDS, SoftTargets

QUICK = {"task": "regression", "steps": 4, "batch_size": 8, "train_examples": 32, "eval_examples": 4, "log_every": 1}
QUICK |= {"eval_splits": ["interpolate"]}


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


def quick(**settings):
    return checked(RunConfig, {**QUICK, **settings})


@pytest.mark.parametrize("model", ["tiny", "tiny-3"])
@pytest.mark.parametrize("kind", KINDS)
def test_soft_labels_in_a_format_have_the_probabilities_of_the_bell(kind, model):
    """Along the tokens of each written answer, the targets multiply to its probability; nothing else is written."""
    config = quick(loss="soft", format=kind, model=model, soft={"relative": 0.02})
    task = make_task(config)
    encoder = run_encoder(config, task)
    target, example = soft_target(config, task), task.examples("train", 1)[0]
    loaded = load_run_model(config, encoder)
    trie, bell = AnswerTries(loaded, target).of(example), target(example)
    for text, p in zip(bell.texts, bell.probabilities, strict=True):
        (ids,) = loaded.answer_tokens([text])
        path = trie.path([*ids, loaded.end])
        along = math.prod(choices[token] for token, choices in zip(path.token_ids, path.targets, strict=True))
        assert along == pytest.approx(p, abs=1e-9)
        assert encoder.format.read(loaded.tokenizer.decode(ids)) == text
    assert sum(bell.probabilities) == pytest.approx(1)


def outcome(config, folder):
    run(config, folder)
    curve = [{name: value for name, value in point.items() if name != "seconds"} for point in read_jsonl(folder / "curve.jsonl")]
    return read_jsonl(folder / "predictions.jsonl"), curve


# Settings


def test_a_name_stands_for_its_settings():
    for name, path in SOFT.items():
        config = quick(loss=name)
        assert config.name == name
        assert config.loss == "ce"
        assert config == quick(soft={"path": path, "relative": 0.05})
        assert checked(RunConfig, config.model_dump(mode="json")) == config
        assert checked(RunConfig, json.loads(json.dumps({**config.used, "label": config.name}))).hash == config.hash
    assert quick(loss="emd", soft={"path": "fixed"}).name == "emd+soft_fixed"
    assert quick(loss="soft", label="mine").name == "mine"
    assert len({quick(loss=name).hash for name in ("ce", *SOFT)} | {quick(loss="soft", soft={"relative": 0.1}).hash}) == 5


def test_the_width_suits_the_task():
    assert quick(loss="soft").soft.spread == {"relative": 0.05}
    assert quick(loss="soft", task="clock").soft.spread == {"width": 2.0}
    assert quick(loss="soft", task="grounding").soft.spread == {"width": 0.01}
    assert quick(loss="soft", task="grounding", task_settings={"form": "locations"}).soft.spread == {"width": 10.24}
    assert quick(loss="soft", soft={"width": 3}).soft.spread == {"width": 3.0}
    rated = {"target": "rating", "average": "mean"}
    assert quick(loss="soft", task_settings=rated, data="x.csv").soft.spread == {}


@pytest.mark.parametrize("width", ["width", "relative"])
def test_a_width_of_zero_is_the_very_same_run(width):
    for loss in ("soft", "soft_fixed", "soft_jitter", "ce"):
        config = quick(loss=loss, soft={width: 0})
        assert config == quick()
        assert config.hash == quick().hash
        assert config.name == "ce"
    assert quick(loss="emd", soft={width: 0.0}) == quick(loss="emd")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"soft": {"widht": 1}}, "widht=1 is not a setting of soft labels: .*Did you mean 'width'"),
        ({"soft": {"width": "wide"}}, "soft.width='wide'"),
        ({"soft": {"width": 1, "relative": 0.1}}, "soft.width=1 and soft.relative=0.1 are both set"),
        ({"soft": {"width": -1}}, "soft.width=-1: input should be greater than or equal to 0"),
        ({"soft": {"hard": 1.0}}, "soft.hard=1.0: input should be less than 1"),
        ({"soft": {"path": "drwan"}}, "soft.path='drwan': input should be 'drawn', 'fixed' or 'jitter'"),
        ({"soft": {"step": 0}}, "soft.step=0: input should be greater than 0"),
        ({"soft": 0.05}, "soft=0.05 is not a mapping: expected its settings"),
        ({"loss": "soft", "soft": {"path": "fixed"}}, "loss='soft' has the path 'drawn', and soft.path='fixed'"),
        ({"loss": "sofd"}, "loss='sofd' is not known: .*'soft_jitter'.*Did you mean 'soft'"),
        ({"loss": "soft", "loss_settings": {"sigma": 1}}, "not supported for loss='ce'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        quick(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"task": "grounding", "model": "tiny-vlm", "soft": {"relative": 0.1}},
            "relative has no meaning for coordinates, set the",
        ),
        ({"task": "scene_text", "model": "tiny-vlm", "soft": {"width": 5}}, "the width is not below 1, the side of the picture"),
        ({"task": "word_problems"}, "soft.relative=0.05.* is a worked solution. Expected a task whose answers are numbers"),
        ({"task": "clock", "model": "tiny-vlm", "soft": {"relative": 0.1}}, "is a time, for which relative has no meaning"),
        ({"task": "clock", "model": "tiny-vlm", "soft": {"width": 1, "step": 7}}, "step=7.0 does not divide period=720"),
    ],
)
def test_tasks_without_such_labels_are_refused_before_training(settings, message):
    config = quick(**{"loss": "soft", **settings})
    with pytest.raises(ValueError, match=message):
        check_run(config, make_task(config), load_encoder(config.model))


def test_answers_that_are_no_numbers_keep_their_labels(tmp_path):
    file = tmp_path / "t.jsonl"
    answers = ["yes 3", *map(str, range(100, 130))]
    file.write_text(
        "".join(f'{{"prompt": "q{i}", "answer": "{answer}", "split": "train"}}\n' for i, answer in enumerate(answers))
    )
    task = Regression.from_files(file)
    target = task.soft_target(relative=0.05)
    assert target(Example("", "yes 3")).texts == ("yes 3",)
    assert len(target(Example("", "129"))) > 5
    assert task.answers_in_words() == ["yes 3"]
    file.write_text("".join(f'{{"prompt": "q{i}", "answer": "about {i}", "split": "train"}}\n' for i in range(12)))
    with pytest.raises(ValueError, match="no training answer of the task 'regression' is a plain number: the first is 'about 0'"):
        Regression.from_files(file).soft_target(relative=0.05)


# Rows

EXAMPLE = Example("1+1=", "99")
TARGET = AnswerDistribution(["98", "99", "100", "-1"], [0.3, 0.4, 0.2, 0.1])


def soft_row(loaded, path="drawn", position=0, target=TARGET, seed=0):
    (row,) = encode(loaded, [EXAMPLE])
    return row, SoftAnswers(AnswerTries(loaded, lambda example: target, with_label=path == "fixed"), path, seed).row(
        row, EXAMPLE, position
    )


def entries(loaded, row):
    """Return ``{position: {text: probability}}``."""
    found: dict[int, dict[str, float]] = {}
    for position, token, p in zip(*(row[name] for name in SOFT_FIELDS), strict=True):
        found.setdefault(position, {})[loaded.tokenizer.decode([token])] = pytest.approx(p)
    return found


def test_a_drawn_answer_and_the_targets_along_it(tiny):
    (plain,) = encode(tiny, [EXAMPLE])
    soft = SoftAnswers(AnswerTries(tiny, lambda example: TARGET), "drawn", seed=3)
    rows = [soft.row(plain, EXAMPLE, position) for position in range(4000)]
    assert rows[7] == soft.row(plain, EXAMPLE, 7)
    texts = Counter(tiny.tokenizer.decode(row["input_ids"]) for row in rows)
    for text, p in zip(TARGET.texts, TARGET.probabilities, strict=True):
        assert texts[f"1+1=\n{text}<eos>"] / 4000 == pytest.approx(p, abs=0.03)  # four standard errors
    begin = plain["labels"].count(-100)
    by_text = {tiny.tokenizer.decode(row["input_ids"][begin:-1]): entries(tiny, row) for row in rows}
    first = {"9": 0.7, "1": 0.2, "-": 0.1}
    assert by_text["99"] == by_text["98"] == {begin: first, begin + 1: {"8": 3 / 7, "9": 4 / 7}}
    assert by_text["100"] == by_text["-1"] == {begin: first}
    for row in rows[:20]:
        assert row["labels"] == [-100] * begin + row["input_ids"][begin:]
        assert row["input_ids"][:begin] == plain["input_ids"][:begin]


def test_the_other_paths(tiny):
    plain, fixed = soft_row(tiny, "fixed")
    assert {name: fixed[name] for name in plain} == plain
    begin = plain["labels"].count(-100)
    assert entries(tiny, fixed)[begin + 1] == {"8": 3 / 7, "9": 4 / 7}
    for position in range(5):
        drawn, jitter = (soft_row(tiny, path, position)[1] for path in ("drawn", "jitter"))
        assert not set(SOFT_FIELDS) & jitter.keys()
        assert jitter == {name: value for name, value in drawn.items() if name not in SOFT_FIELDS}
    without = AnswerDistribution(["98", "97"], [0.5, 0.5])  # bounds may leave the label out
    _, kept = soft_row(tiny, "fixed", target=without)
    assert entries(tiny, kept)[begin + 1] == {"9": 1 / 3, "8": 1 / 3, "7": 1 / 3}


def test_a_certain_target_is_the_label(tiny):
    for path in ("drawn", "fixed", "jitter"):
        plain, row = soft_row(tiny, path, target=AnswerDistribution.point("99"))
        assert {name: row[name] for name in plain} == plain
        assert not row.get(SOFT_FIELDS[0])


def test_soft_fields_of_a_batch(tiny):
    rows = [soft_row(tiny, "fixed")[1], soft_row(tiny, "fixed", target=AnswerDistribution.point("99"))[1]]
    rows[1] = {name: value[1:] if name in ("input_ids", "labels") else value for name, value in rows[1].items()}
    begin = rows[0]["labels"].count(-100)
    for left in (False, True):
        batch = collate(rows[::-1], pad=0, left=left)
        soft = SoftTargets.from_batch(batch)
        assert soft.positions.tolist() == [[-1] * 5, [begin] * 3 + [begin + 1] * 2]
        soft.checked(batch["labels"])
    longer = {**rows[0], "input_ids": [5, *rows[0]["input_ids"]], "labels": [-100, *rows[0]["labels"]]}
    batch = collate([rows[0], {**longer, **{name: [] for name in SOFT_FIELDS}}], pad=0, left=True)
    assert batch[SOFT_FIELDS[0]][0].tolist() == [begin + 1] * 3 + [begin + 2] * 2
    only = collate([{**rows[1], **{name: [] for name in SOFT_FIELDS}}], pad=0)
    assert only[SOFT_FIELDS[0]].tolist() == [[-1]]


def test_distributions_made_in_advance_are_the_same(tiny):
    """Forked processes make those of all examples once, before the workers of a data loader would each make them."""
    examples = [Example("", answer) for answer in ("1500", "20", "1500", "7.25")]
    tries = AnswerTries(tiny, lambda example: Bell(relative=0.05)(example.answer), with_label=True)
    tries.expect(examples)
    tries.make_expected(2)
    tries._make = tries._kept = None  # everything is there
    alone = AnswerTries(tiny, lambda example: Bell(relative=0.05)(example.answer), with_label=True)
    for example in examples:
        made, own = tries.of(example), alone.of(example)
        assert made.sequences == own.sequences
        assert made.probabilities.tolist() == own.probabilities.tolist()
    tries.make_expected(2)  # nothing is left to make


# Runs


def test_a_run_with_soft_labels(tmp_path):
    _, curve = outcome(quick(loss="soft", keep_model=True), tmp_path)
    assert curve[0].keys() == {"step", "loss", "learning_rate", "grad_norm", "numeric/overrun"}
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["label"] == "soft"
    assert settings["soft"]["relative"] == 0.05
    card = (tmp_path / "model" / "README.md").read_text()
    assert "cross-entropy on soft labels (path drawn, relative 0.05, shape gaussian)" in card


def test_bells_that_hold_the_label_alone_change_nothing(tmp_path):
    """All of the machinery, with a width that is too narrow to matter: bit for bit what cross-entropy gives."""
    plain = outcome(quick(), tmp_path / "ce")
    assert outcome(quick(loss="soft_jitter", soft={"width": 1e-6}), tmp_path / "jitter") == plain
    predictions, curve = outcome(quick(loss="soft", soft={"width": 1e-6}), tmp_path / "soft")
    assert [point["loss"] for point in curve] == pytest.approx([point["loss"] for point in plain[1]], rel=1e-5)
    assert [record["output"] for record in predictions] == [record["output"] for record in plain[0]]
    assert outcome(quick(loss="soft_jitter"), tmp_path / "wide") != plain


@pytest.mark.parametrize("name", [name for name, kind in TASKS.items() if kind.visual])
def test_soft_labels_of_pictures(name, tmp_path):
    settings = {"model": "tiny-vlm", "task": name, "loss": "soft", "steps": 2, "batch_size": 2, "train_examples": 4}
    predictions, curve = outcome(quick(**settings, eval_examples=2), tmp_path)
    assert len(curve) == 2
    assert all(point["loss"] > 0 for point in curve)
    assert set(TASKS[name].measures) <= predictions[0]["measures"].keys()


# Comparisons


@pytest.mark.parametrize(("step", "texts"), [(None, {"11_59", "12_00", "12_01"}), (5, {"11_55", "12_00", "12_05"})])
def test_times_in_steps(step, texts):
    settings = {"width": 1 if step is None else 5, "shape": "uniform", "step": step}
    config = quick(task="clock", model="tiny-vlm", loss="soft", soft=settings)
    target = soft_target(config, make_task(config))
    assert set(target(Example("", "12_00")).texts) == texts


@pytest.mark.parametrize("name", TASKS)
def test_every_task_takes_a_step_or_says_why_not(name):
    task = TASKS[name]()
    settings = {"shape": "gaussian", "hard": 0.0, "lowest": None, "highest": None, "width": 0.5, "relative": None}
    if name == "clock":
        settings["width"] = 5.0
    try:
        task.soft_target(**settings)
    except ValueError:
        with pytest.raises(ValueError, match=f"task '{name}'"):
            task.soft_target(**settings, step=5.0)
        return
    assert callable(task.soft_target(**settings, step=5.0))


def test_settings_of_soft_labels_are_for_losses_that_have_them():
    losses = ["ce", "emd", "soft", "soft_fixed", {"loss": "emd", "soft": {"width": 3, "hard": 0.2}}]
    experiment = read_experiment({"losses": losses, "task": "regression", "seeds": 1, "soft": {"relative": 0.1, "lowest": 0}})
    cells = {cell.name: cell for cell in experiment.cells()}
    assert list(cells) == ["ce", "emd", "soft", "soft_fixed", "emd+soft"]
    assert cells["ce"].soft is cells["emd"].soft is None
    assert cells["soft"].soft.model_dump() == cells["soft_fixed"].soft.model_dump() | {"path": "drawn"}
    assert cells["soft"].soft.spread == {"relative": 0.1}
    assert cells["emd+soft"].soft.spread == {"width": 3.0}
    assert (cells["emd+soft"].soft.lowest, cells["emd+soft"].soft.hard) == (0, 0.2)
    tasks = [{"task": "regression", "soft": {"relative": 0.2}}, {"task": "clock", "soft": {"width": 5}}]
    by_task = read_experiment({"losses": ["ce", "soft"], "tasks": tasks, "seeds": 1}).cells()
    assert [cell.soft and cell.soft.spread for cell in by_task] == [None, {"relative": 0.2}, None, {"width": 5.0}]
    assert read_experiment({"losses": ["emd"], "baseline": "soft", "seeds": 1}).cells()[0].name == "soft"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"losses": ["emd"], "soft": {"width": 1}}, "has no effect, because no loss of the comparison has soft labels"),
        ({"losses": ["ce", "soft"], "soft": {"width": 0}}, "label 'ce' names one run twice"),
        ({"losses": ["soft", {"loss": "soft", "soft": {"width": 1}}]}, "label 'soft' names two different runs"),
    ],
)
def test_wrong_comparisons(settings, message):
    with pytest.raises(ValueError, match=message):
        read_experiment({"task": "regression", **settings})


def test_widths_are_tuned():
    """Each loss gets as many trials, whatever there is to tune; five widths around the one that is set."""
    losses = ["ce", "emd", "soft", "soft_jitter", {"loss": "emd", "soft": {"relative": 0.1}}]
    experiment = read_experiment({"losses": losses, "task": "regression", "seeds": 2})
    for budget in (1, 4, 9):
        trials = {found[0].name: found for found in tuning_trials(experiment, budget).values()}
        assert {len(found) for found in trials.values()} == {budget}
        assert all(len({trial.hash for trial in found}) == budget for found in trials.values())
    for name, middle in (("soft", 0.05), ("soft_jitter", 0.05), ("emd+soft", 0.1)):
        widths = {round(trial.soft.relative / middle, 9) for trial in trials[name]}
        assert widths == {0.2, 0.4, 1.0, 2.0, 4.0}
        assert trials[name][0].soft.path == SOFT[name.removeprefix("emd+")]
    assert all(trial.soft is None for trial in trials["ce"] + trials["emd"])


# Ratings


def rated(folder, text, **settings):
    file = folder / ("t.jsonl" if text.startswith("{") else "t.csv")
    file.write_text(text)
    return Regression.from_files(file, target="rating", **settings)


def test_ratings_in_a_cell(tmp_path):
    rows = [f'good{i},"[1, 2, {i % 3}]",train' for i in range(6)]
    task = rated(tmp_path, "\n".join(["word,rating,split", *rows]), average="mean")
    examples = {example.prompt: example for example in task.examples("train")}
    example = examples["word: good0. rating?"]
    assert example.answer == "1.0"
    assert examples["word: good2. rating?"].answer == "1.7"
    target = task.soft_target(
        **quick(loss="soft", data="x", task_settings={"target": "rating", "average": "mean"}).soft.model_dump()
    )
    answers = target(examples["word: good2. rating?"])
    assert dict(zip(answers.texts, answers.probabilities.round(4).tolist(), strict=True)) == {"1.0": 0.3333, "2.0": 0.6667}
    bell = task.soft_target(width=0.3)(examples["word: good2. rating?"])  # a width that is set: around the mean
    assert "1.6" in bell.texts
    assert "each answer is the mean of 3 ratings, with 1 decimal." in task.notes[0]


def test_ratings_in_columns(tmp_path):
    text = "word,a,b,c,split\nx,1,,3.5,train\ny,2,2,4,train\nz,,,,train\n"
    task = rated(tmp_path, text, raters=("a", "b", "c"), average="median", decimals=0)
    assert {(example.prompt, example.answer) for example in task.examples("train")} == {
        (f"word: {word}. rating?", "2") for word in "xy"
    }
    assert len(task.skipped) == 1
    objects = "".join(json.dumps({"word": str(i), "rating": [i, i + 1, None]}) + "\n" for i in range(12))
    task = rated(tmp_path, objects, average="mean")
    assert task.count("train") + task.count("interpolate") == 12
    assert all(example.answer.endswith(".5") for example in task.examples("train"))
    assert task.numbers(["[1, 2]", None, "x"]) == [1.5, None, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "mode", "target": "x"}, "average='mode' is not known"),
        ({"average": "mean"}, "needs a target"),
        ({"raters": "ab", "target": "x"}, "raters='ab' is one string"),
        ({"decimals": 2}, "decimals=2 is for averages of ratings"),
        ({"average": "mean", "target": "x", "decimals": -1}, "decimals=-1 is out of range"),
    ],
)
def test_wrong_settings_of_ratings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Regression(**settings)


def test_a_run_on_ratings(tmp_path):
    file = tmp_path / "words.csv"
    file.write_text("word,rating\n" + "".join(f'w{i},"[{i % 3}, {i % 3}, {i % 2 - 1}]"\n' for i in range(60)))
    settings = {"data": str(file), "task_settings": {"target": "rating", "average": "mean"}, "samples": 2}
    predictions, _ = outcome(quick(loss="soft", **settings), tmp_path / "run")
    assert "sample_crps" in predictions[0]["measures"]
    config = quick(loss="soft_fixed", **settings)
    with pytest.raises(ValueError, match="the average of several ratings need not be one of them"):
        check_run(config, make_task(config), load_encoder("tiny"))
    bell = quick(loss="soft_fixed", soft={"width": 0.3}, **settings)
    assert check_run(bell, make_task(bell), load_encoder("tiny")) is not None
