"""Runs in a format: the model is asked and answers in it, everything else sees ordinary numbers, and the folder keeps it."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from numerate.formats import KINDS
from numerate.lab.data import TASKS
from numerate.lab.data.settings import make_task
from numerate.lab.files.records import jsonable, read_jsonl
from numerate.lab.models.encoding import encode
from numerate.lab.prediction.answering import Answering, find_source
from numerate.lab.prediction.predict import predict
from numerate.lab.prediction.train import train
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.kept_runs import evaluate, load_run
from numerate.lab.training.prepare import check_run, load_run_model, run_data, run_encoder
from numerate.lab.training.run import run
from numerate.losses import LOSSES
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

SUMS = {"difficulty": 2, "longest": 1, "operations": "+", "signed": False, "wording": "bare"}
FEW = {"steps": 2, "batch_size": 4, "train_examples": 60, "eval_examples": 3, "log_every": 1, "eval_batch_size": 4}


def quick(**settings):
    return checked(RunConfig, {"task": "arithmetic", "task_settings": SUMS, **FEW, **settings})


def rents(path):
    rows = "\n".join(f"{20 + i},{i % 4},{300 + 37 * i % 900}.5" for i in range(40))
    path.write_text(f"area,rooms,rent\n{rows}\n")
    return path


def texts(config):
    """The rows that a model is trained on, as text."""
    task = make_task(config)
    loaded = load_run_model(config, run_encoder(config, task))
    rows = encode(loaded, task.examples("train", 3, seed=config.seed))
    return [loaded.tokenizer.decode(row["input_ids"]).replace("\n", " -> ") for row in rows]


def test_rows_are_written_in_the_format():
    plain = texts(quick())
    assert texts(quick(format="plain")) == plain
    assert plain[0] != texts(quick(format="padded"))[0]
    assert all(len(text) == len("012+034= -> 046<eos>") for text in texts(quick(format="padded")))
    spaced = texts(quick(format="spaced"))
    assert [text.replace(" ", "").replace("->", " -> ") for text in spaced] == [
        text.replace(" ", "").replace("->", " -> ") for text in plain
    ]


OF_TEXT = [(name, own().formats) for name, own in TASKS.items() if not own.visual]


@pytest.mark.parametrize(
    ("task", "kind"),  # each task as it is and in a third of its formats, of which the next task has others
    [(task, kind) for i, (task, kinds) in enumerate(OF_TEXT) for j, kind in enumerate(kinds) if j == 0 or (i + j) % 3 == 0],
)
def test_every_task_of_text_runs_in_several_formats(task, kind, tmp_path):
    soft = {"loss": "soft"} if TASKS[task].answer_is == "one number" else {}
    decide = {"decide": ["mode"]} if soft else {"samples": 2, "decide": ["mode"], "max_new_tokens": 20}
    config = checked(RunConfig, {**FEW, "task": task, "format": kind, "decide_width": 4, **decide, **soft})
    run(config, tmp_path)
    for record in read_jsonl(tmp_path / "predictions.jsonl"):
        assert {TASKS[task].measures[0], "parsed"} < {*record["measures"]}
        assert bool(record["digits"]) == ("exponent" not in kind)  # whose digits have no places


@pytest.mark.parametrize("kind", ["padded", "padded+reversed", "exponent", "spaced"])
def test_a_moved_folder_predicts_in_its_format(kind, tmp_path):
    data = rents(tmp_path / "rents.csv")
    settings = {"steps": 60, "batch_size": 16, "learning_rate": 0.01, "eval_examples": 3}
    trained = train(data=data, target="rent", format=kind, out=tmp_path / "run", **settings)
    kept = json.loads((trained.model / "numerate.json").read_text())
    assert kept["format"]["kind"] == kind
    card = (trained.model / "README.md").read_text()
    assert f"Numbers are written in the format `{kind}`" in card
    first = predict(trained.folder, data, tmp_path / "run.csv", decide="mode", limit=6)
    moved = tmp_path / "elsewhere"
    shutil.copytree(trained.model, moved)
    shutil.rmtree(trained.folder)
    second = predict(moved, data, tmp_path / "moved.csv", decide="mode", limit=6)
    assert first.path.read_text() == second.path.read_text()
    assert not first.problems
    answering = Answering(find_source(str(moved)), "greedy", lambda found: found.interval(0.9))
    said = answering.greedy([answering.source.questions.ask({"area": 30, "rooms": 2}, tmp_path)])[0]
    assert 0 <= float(said) < 10_000  # in ordinary notation
    predict(moved, data, tmp_path / "same.csv", format=kind, limit=1)
    with pytest.raises(ValueError, match="format='grouped' does not belong to model=.*, which was trained in"):
        predict(moved, data, tmp_path / "other.csv", format="grouped", limit=1)


def test_sums_from_a_moved_folder(tmp_path):
    """The model is asked in its format about a prompt, and evaluated again in the width of its training."""
    config = quick(format="padded", keep_model=True)
    run(config, tmp_path / "run")
    first = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    assert jsonable(evaluate(tmp_path / "run", {}, tmp_path / "again")) == first
    harder = evaluate(tmp_path / "run", {"task_settings": {"difficulty": 4}}, tmp_path / "harder")
    assert max(len(record["gold"]) for record in harder) > 3
    assert load_run(tmp_path / "run", config).format.settings["digits"] == (1, 3)
    shutil.copytree(tmp_path / "run" / "model", tmp_path / "moved")
    answering = Answering(find_source(str(tmp_path / "moved")), "mode", lambda found: found.interval(0.9))
    assert answering.loaded.prompt("12+3=") == "012+003=\n"
    (tmp_path / "moved" / "numerate.json").unlink()
    (tmp_path / "run" / "model" / "numerate.json").unlink()
    with pytest.raises(
        ValueError, match=r"numerate.json does not say how numbers are written in format='padded' .*: train again"
    ):
        load_run(tmp_path / "run", config)


def test_a_model_that_was_not_trained_here(tmp_path):
    rows = rents(tmp_path / "rents.csv")
    with pytest.raises(ValueError, match="format='padded' has no width, and model='tiny' keeps none: expected the most digits"):
        predict("tiny", rows, tmp_path / "out.csv", target="rent", format="padded", limit=1)
    predict("tiny", rows, tmp_path / "out.csv", target="rent", format="padded:3.1", decide="mode", limit=2, width=2)
    lines = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert all(0 <= float(line.split(",")[3].lstrip("-")) < 1000 for line in lines)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_reads_every_format_or_refuses_it(name):
    """Complete numbers and places are those of the ordinary number; the power of ten first has none."""
    for kind in KINDS:
        config = quick(loss=name, format=kind)
        task = make_task(config)
        encoder = run_encoder(config, task)
        loss = LOSSES[name](NumericVocab.from_tokenizer(encoder.tokenizer))
        if "exponent" in kind and (loss.level == "number" or loss.places != "uniform"):
            with pytest.raises(
                ValueError, match=r"reads complete numbers, and the vocabulary has format='exponent.*Expected another"
            ):
                check_run(config, task, encoder)
            continue
        objective = check_run(config, task, encoder)
        if loss.level == "number":
            rows = encode(load_run_model(config, encoder), task.examples("train", 6))
            values = [
                NumberSpans.from_labels(torch.tensor([row["labels"]]), objective.numeric_loss.vocab).values.tolist()
                for row in rows
            ]
            assert values == [[float(example.answer)] for example in task.examples("train", 6)]


@pytest.mark.parametrize("kind", ["reversed", "padded+spaced", "grouped"])
def test_places_of_digits_are_those_of_the_ordinary_number(kind, tmp_path):
    run(quick(loss="number", format=kind), tmp_path)
    for record in read_jsonl(tmp_path / "predictions.jsonl"):
        places = {digit["place"] for digit in record["digits"]}
        assert places >= set(range(len(record["gold"])))
        assert ("padded" in kind) or len(places) == len(record["gold"])
    assert all(point["loss"] < 100 for point in read_jsonl(tmp_path / "curve.jsonl"))


def test_a_pattern_of_the_term_matches_what_is_written():
    config = quick(loss="emd", format="padded+spaced", term_numbers=r"[0-9](?: [0-9])+")
    task = make_task(config)
    check_run(config, task, run_encoder(config, task))
    for wrong, message in (
        (r"[0-9]{2}", "matches nothing in the first"),
        ("answer", "finds the last number of plain or padded text"),
    ):
        config = quick(loss="emd", format="padded+spaced", term_numbers=wrong)
        with pytest.raises(ValueError, match=message):
            check_run(config, task, run_encoder(config, task))


def test_numbers_that_do_not_fit_are_counted(tmp_path):
    result = run(quick(format="padded", eval_splits=["interpolate", "extrapolate"]), tmp_path)
    assert result["notes"] == [
        "Numbers in 3 of 6 test rows do not fit into the width of 'padded' (digits (1, 3), decimals (0, 0)): they have their own."
    ]
    config = quick(format="padded:1")
    task = make_task(config)
    with pytest.raises(ValueError, match=r"format='padded:1.0' is too narrow for '\d+' in a training row"):
        check_run(config, task, run_encoder(config, task))


def test_clocks_and_boxes_in_a_format(tmp_path):
    """The times and coordinates of training rows, their soft labels and the answers are padded; records are not."""
    few = {
        "model": "tiny-vlm",
        "format": "padded",
        "loss": "soft",
        "train_examples": 20,
        "eval_examples": 2,
        "max_new_tokens": 25,
    }
    boxes = {"task": "grounding", "task_settings": {"form": "thousandths", "objects": [1, 1], "wording": "bare"}}
    for name, own in {
        "clock": {"task": "clock", "task_settings": {"wording": "bare"}, "decide": ["mode"]},
        "boxes": boxes,
    }.items():
        config = checked(RunConfig, {**FEW, **few, **own})
        task = make_task(config)
        loaded = load_run_model(config, run_encoder(config, task))
        rows, _ = run_data(config, task, loaded)
        for position in range(4):
            ids = [token for token in rows[position]["labels"] if token >= 0]
            text = loaded.tokenizer.decode(ids).removesuffix("<eos>")
            assert re.fullmatch(r"\d\d_\d\d" if name == "clock" else r"\[\d{3,4}(, \d{3,4}){3}\]", text), text
        run(config, tmp_path / name)
        for record in read_jsonl(tmp_path / name / "predictions.jsonl"):
            assert not re.search(r"\b0\d", record["gold"].partition("_")[0])


def test_settings_of_older_runs_have_the_same_hash():
    assert quick().hash == quick(format="plain").hash
    assert "format" not in quick().used
    assert quick(format="spaced+padded").format == "padded+spaced"
    assert quick(format="padded").name == "ce padded"
    assert quick(format="padded", loss="soft").name == "soft padded"
    with pytest.raises(ValueError, match="format is set, and loss='scalar_head' writes no answer"):
        quick(format="padded", loss="scalar_head")
