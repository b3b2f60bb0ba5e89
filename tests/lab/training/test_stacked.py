"""Stacked runs are the runs themselves: same batches, same learning curves, same answers, for every loss and built model."""

import json
import math

import pytest
import torch
from PIL import Image

from numerate.lab.comparison.cells import train_cells
from numerate.lab.comparison.compare import compare
from numerate.lab.comparison.executors import _run_apart, run_local
from numerate.lab.evaluation.likelihood import LIKELIHOODS
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.built import scaled
from numerate.lab.models.loading import PIXELS, load_model
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack, stack, stackable, stacks, unstack
from numerate.losses import LOSSES

EASY = {"difficulty": 1, "longest": 2, "operations": "+-", "signed": False, "wording": "bare"}
FEW = {"steps": 4, "batch_size": 4, "train_examples": 60, "eval_examples": 6, "eval_batch_size": 4, "log_every": 2}
# An untrained model would write until the limit.
PICTURES = {"model": "tiny-vlm", "task_settings": {}, "train_examples": 20, "eval_examples": 2, "max_new_tokens": 12}


def config(loss="ce", seed=0, **settings):
    task = {"task": "arithmetic", "task_settings": EASY, "eval_splits": ("interpolate",)}
    return RunConfig(**task | FEW | {"loss": loss, "seed": seed} | settings)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of a run by itself, which is done once for all tests."""
    done = {}

    def folder_of(own):
        key = own.model_dump_json()
        if key not in done:
            done[key] = tmp_path_factory.mktemp("alone")
            run(own, done[key])
        return done[key]

    return folder_of


@pytest.fixture
def both(alone, tmp_path):
    """The files of runs one at a time, and as a stack."""

    def folders(configs):
        together = [tmp_path / str(k) for k in range(len(configs))]
        run_stack(configs, together)
        return zip(map(alone, configs), together, strict=True)

    return folders


def assert_same_curve(one, other):
    points = [read_jsonl(folder / "curve.jsonl") for folder in (one, other)]
    assert len(points[0]) == len(points[1]) >= 2
    for mine, theirs in zip(*points, strict=True):
        assert mine.keys() == theirs.keys()
        assert {name for name in mine if mine[name] is None} == {name for name in theirs if theirs[name] is None}  # infinite
        for name in (name for name in mine if name != "seconds" and mine[name] is not None):
            assert math.isclose(mine[name], theirs[name], rel_tol=2e-4, abs_tol=2e-5), (name, mine, theirs)


def assert_same_answers(one, other):
    records = [read_jsonl(folder / "predictions.jsonl") for folder in (one, other)]
    assert [record["output"] for record in records[0]] == [record["output"] for record in records[1]]
    for mine, theirs in zip(*records, strict=True):
        assert mine.keys() == theirs.keys()
        likely = [
            {"nll": record["nll"]} | {name: record["measures"].pop(name, 0) for name in LIKELIHOODS} for record in (mine, theirs)
        ]
        assert mine["measures"] == theirs["measures"]
        assert likely[0] == pytest.approx(likely[1], rel=1e-3)


def assert_same_files(one, other):
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    costs = [result.pop("cost") for result in results]
    assert results[0] == results[1]
    assert costs[0].keys() | {"stacked"} == costs[1].keys()
    assert costs[0]["parameters"] == costs[1]["parameters"]


@pytest.mark.parametrize("model", BUILT)
def test_a_stack_is_its_models(model, tmp_path):
    """Logits of each model in a stack, with rows in equal parts and in any order, are its own; so are the weights taken out."""
    single = [load_model(model, seed=seed) for seed in range(3)]
    stacked = stack(single)
    ids = torch.randint(4, 90, (6, 7))
    more = {}
    if model == "tiny-vlm":
        (pictures,) = single[0].encode([("", Image.new("RGB", (9, 9), "red"))])
        ids = torch.cat([torch.tensor([pictures["input_ids"]] * 6), ids], 1)
        more["pixel_values"] = scaled(pictures[PIXELS]) * torch.linspace(0.1, 1, 6)[:, None, None, None]
    for owners in ([0, 0, 1, 1, 2, 2], [2, 0, 0, 1, 0, 2], [1, 1, 1, 1, 1, 1]):
        with torch.no_grad():
            together = stacked.model(input_ids=ids, members=torch.tensor(owners), **more).logits
            alone = [
                single[owner].model(input_ids=ids[[row]], **{name: value[[row]] for name, value in more.items()}).logits[0]
                for row, owner in enumerate(owners)
            ]
        torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-4)
    blank = load_model(model, seed=9)
    for index, expected in enumerate(single):
        taken = unstack(stacked, index, blank)
        for name, weight in expected.model.named_parameters():
            assert torch.equal(weight, taken.model.get_parameter(name)), name
    head = stacked.model.get_output_embeddings().weight
    assert head is stacked.model.get_input_embeddings().weight


@pytest.mark.parametrize("loss", ["ce", *LOSSES])
def test_every_loss(loss, both):
    """Two seeds with two weights; the baseline beside them."""
    configs = [config("ce", 0), config(loss, 0, weight=0.3, label="a"), config(loss, 1, weight=1.0, label="b")]
    for one, other in both(configs[loss == "ce" :]):
        assert_same_files(one, other)
        assert_same_curve(one, other)
        assert_same_answers(one, other)


@pytest.mark.parametrize(
    "settings",
    [
        {"soft": {"width": 2.0, "path": "drawn"}},
        {"soft": {"width": 2.0, "path": "fixed"}},
        {"soft": {"width": 2.0, "path": "jitter"}},
        {"loss": "smmd", "soft": {"width": 2.0}},
        {"loss": "ntil", "scale": "match_ce"},
        {"loss": "emd", "normalize": "tokens"},
        {"loss": "emd", "accumulation": 2},
        {"loss": "emd", "decide": ("median", "mean")},
        {"loss": "emd", "validation": True},
        {"loss": "emd", "validate_every": 3},
        {"loss": "emd", "validate_every": 1, "keep_best": True, "choose_by": "absolute_error"},
        {"model": "tiny-3", "loss": "ntil"},
        {"model": "small", "loss": "smmd"},
        PICTURES | {"task": "clock", "loss": "emd", "eval_splits": ("interpolate",)},
        PICTURES | {"task": "grounding", "loss": "soft"},
        PICTURES | {"task": "scene_text", "task_settings": {"words": (1, 1)}, "loss": "soft_fixed"},
    ],
    ids=lambda settings: settings.get("task", "-".join(settings)),
)
def test_every_setting(settings, both):
    shared = {name: value for name, value in settings.items() if name not in ("soft", "loss", "scale", "normalize")}
    configs = [config(**{"seed": 1} | settings), config(**{"seed": 2, "label": "same"} | settings), config(seed=3, **shared)]
    for one, other in both(configs):
        assert_same_files(one, other)
        assert_same_curve(one, other)
        assert_same_answers(one, other)
        if "decide" in settings:
            mine, theirs = (read_jsonl(folder / "predictions.jsonl") for folder in (one, other))
            for a, b in zip(mine, theirs, strict=True):
                assert a["decisions"]["median"] == b["decisions"]["median"]
                means = [float(record["decisions"]["mean"]["answer"]) for record in (a, b)]
                assert means[0] == pytest.approx(means[1], rel=1e-4)
                assert a["crps"] == pytest.approx(b["crps"], rel=1e-3)


def test_each_run_has_its_learning_rate(both):
    configs = [config("emd", seed, learning_rate=rate) for seed, rate in enumerate((4e-3, 1e-3, 1.3e-2))]
    for one, other in both(configs):
        assert_same_curve(one, other)
        assert_same_answers(one, other)


def test_samples_are_drawn_for_each_run(tmp_path):
    run_stack([config(seed=0, samples=3), config(seed=1, samples=3)], [tmp_path / "a", tmp_path / "b"])
    mine, theirs = (read_jsonl(folder / "predictions.jsonl") for folder in (tmp_path / "a", tmp_path / "b"))
    assert [record["samples"] for record in mine] != [record["samples"] for record in theirs]
    for record in [*mine, *theirs]:
        assert len(record["samples"]) == 3
        assert "sample_crps" in record["measures"]


def test_an_interrupted_stack_continues(tmp_path):
    configs = [config("emd", 0, save_every=2), config("ce", 1, save_every=2)]
    folders = [tmp_path / "a", tmp_path / "b"]
    run_stack(configs, [tmp_path / "c", tmp_path / "d"])

    class StopError(Exception):
        pass

    def stop(stage, done, total, figures):
        if done == 3:
            raise StopError

    with pytest.raises(StopError):
        run_stack(configs, folders, progress=stop)
    seen = []
    run_stack(configs, folders, progress=lambda stage, done, total, figures: seen.append((stage, done)))
    assert seen[0] == ("train", 3)
    for folder, whole in zip(folders, (tmp_path / "c", tmp_path / "d"), strict=True):
        assert_same_curve(folder, whole)
        assert_same_answers(folder, whole)
        assert not (folder / "checkpoints").exists()


def test_stacks_hold_runs_that_differ_in_their_own_settings_only():
    sizes = [config("emd", seed, batch_size=size) for seed in range(5) for size in (4, 8)]
    found = stacks([*sizes, config("ce", 0, batch_size=4), config("ce", 0, steps=9)], most=4)
    assert sorted(map(len, found)) == [1, 2, 3, 3, 3]
    for group in found:
        assert len({(one.batch_size, one.steps) for one in group}) == 1
    mixed = stacks([config("ce", 0), config("emd", 0), config("ce", 1), config("emd", 1)], most=10)
    assert [one.loss for one in mixed[0]] == ["ce", "ce", "emd", "emd"]


def test_what_cannot_be_stacked():
    assert stackable(config())
    assert not stackable(config(model="smollm2"))
    assert not stackable(config(adapter="lora"))
    assert not stackable(config(tensorboard=True))
    assert not stackable(config(term_numbers="answer"))
    assert not stackable(config(number_weight=3.0))
    with pytest.raises(ValueError, match="cannot be split among 2 models"):
        stack([load_model("tiny"), load_model("tiny")]).model(input_ids=torch.zeros(3, 4, dtype=torch.long))


def test_a_comparison_of_stacked_runs(tmp_path, monkeypatch):
    """The same comparison, stacked and one at a time: same cells, same table; a second call finds all of them finished."""
    settings = {"losses": ["ce", "emd", "soft"], "seeds": 2, "task": "arithmetic", "task_settings": EASY, "progress": False}
    settings |= FEW | {"eval_splits": ["interpolate"], "soft": {"width": 1.0}, "processes": 1, "validate_every": 2}
    tables = []
    for executor in ("local", "stacked"):
        tables.append(compare(out=tmp_path / executor, executor=executor, **settings).table)
    assert tables[0] == tables[1]
    pages = [(tmp_path / executor / "report.html").read_text() for executor in ("local", "stacked")]
    assert [page.count("Runs were trained as one stack") for page in pages] == [0, 1]
    assert all("Validation: greedy answers" in page for page in pages)
    local, stacked = ({path.name for path in (tmp_path / name / "cells").iterdir()} for name in ("local", "stacked"))
    assert local == stacked
    assert len(stacked) == 6
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "stacked" / "cells").glob("*/result.json")}
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", lambda folder: folder / "report.html")
    assert compare(out=tmp_path / "stacked", executor="stacked", **settings).table == tables[1]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "stacked" / "cells").glob("*/result.json")}


def test_a_stack_without_memory_is_run_in_halves(tmp_path, monkeypatch):
    sizes = []

    def too_large(configs, folders, **options):
        sizes.append(len(configs))
        if len(configs) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return run_stack(configs, folders, **options)

    monkeypatch.setattr("numerate.lab.comparison.cells.run_stack", too_large)
    cells = [config(seed=seed) for seed in range(5)]
    done = []
    run_local(cells, tmp_path, stacked=True, on_done=lambda cell, error: done.append((cell.seed, error)))
    assert sizes == [5, 2, 3, 2]
    assert sorted(done, key=lambda pair: pair[0]) == [(seed, None) for seed in range(5)]


def test_trained_here_and_evaluated_in_other_processes(tmp_path):
    """As on a GPU: the same files as one run at a time; a run that was trained by a process that ended is not trained again."""
    cells = [config("emd", 0), config("ce", 1)]
    train_cells(cells[:1], tmp_path)
    curve = tmp_path / "cells" / cells[0].hash / "curve.jsonl"
    before = curve.stat().st_mtime_ns
    done = []
    _run_apart([cells], tmp_path, 2, lambda cell, error: done.append((cell.seed, error)), lambda *_: None)
    assert sorted(done) == [(0, None), (1, None)]
    assert curve.stat().st_mtime_ns == before
    for cell in cells:
        run(cell, tmp_path / cell.hash)
        (tmp_path / "cells" / cell.hash / ".lock").unlink()
        assert_same_files(tmp_path / cell.hash, tmp_path / "cells" / cell.hash)
        assert_same_curve(tmp_path / cell.hash, tmp_path / "cells" / cell.hash)
        assert_same_answers(tmp_path / cell.hash, tmp_path / "cells" / cell.hash)


def test_a_stack_that_fails_is_reported_for_each_run(tmp_path, monkeypatch):
    def broken(configs, folders, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("numerate.lab.comparison.cells.run_stack", broken)
    failed = []
    run_local([config(seed=0), config(seed=1)], tmp_path, stacked=True, on_done=lambda cell, error: failed.append(str(error)))
    assert failed == ["no such kernel"] * 2
