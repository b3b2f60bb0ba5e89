"""The tab "a model's answer": its numbers are those of the library, and only safe models are offered."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra lab is not installed")

from pydantic import ValidationError

from numerate import decode
from numerate.answers import METRICS
from numerate.decode.grammar import ANY_NUMBER
from numerate.distribution import NumberDistribution
from numerate.lab.data.regression import Row
from numerate.lab.models.loading import load_model
from numerate.lab.prediction.answering import draw_seed
from numerate.playground import answer, models
from numerate.playground.answer import DECIDED, RULES, AnswerRequest, compute
from numerate.playground.models import FIRST_ROW, SHIPPED, SHIPPED_NAME, find_models, open_model

ROW = {"carat": "0.7", "cut": "Ideal", "color": "G", "clarity": "VS1"}
ROW_LINE = "0.7 Ideal G VS1"


@pytest.fixture(scope="module")
def shipped() -> NumberDistribution:
    """What the library itself finds for the row."""
    loaded = load_model(SHIPPED)
    low, high = map(Fraction, json.loads((SHIPPED / "numerate.json").read_text())["answers"])
    options = {"width": 256, "grammar": replace(ANY_NUMBER, lowest=low, highest=high), "end_token_ids": [loaded.end]}
    options["seed"] = [draw_seed(Row(ROW_LINE, ""))]
    return decode.distribution(loaded.model, [f"{ROW_LINE}\n"], loaded.tokenizer, **options)[0]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return compute(AnswerRequest(cells=ROW), tmp_path_factory.mktemp("runs"))


def _run(folder: Path, **config: object) -> Path:
    """A run with the weights of the shipped model, as ``numerate train`` leaves it."""
    folder.mkdir(parents=True)
    settings = {"model": "tiny", "task": "regression", "task_settings": {"target": "price"}, "data": "gone.csv", **config}
    (folder / "config.json").write_text(json.dumps(settings))
    shutil.copytree(SHIPPED, folder / "model")
    return folder


def test_summaries_are_those_of_the_library(shown, shipped):
    assert shown["prompt"] == ROW_LINE
    answers = {one["rule"]: one["value"] for one in shown["answers"]}
    for rule in RULES[1:]:
        assert answers[rule] == pytest.approx(float(shipped.decide(rule)), rel=1e-9)
    assert [end["value"] for end in shown["interval"]] == [float(end) for end in shipped.interval(0.9)]
    assert shown["shares"]["covered"] == pytest.approx(shipped.covered, rel=1e-6)
    assert sum(share for name, share in shown["shares"].items() if name != "drawn") == pytest.approx(1, abs=1e-6)


def test_bars_are_the_whole_distribution(shown, shipped):
    assert sum(bar["p"] for bar in shown["bars"]) == pytest.approx(1)
    inner = [bar for bar in shown["bars"] if bar["low"] is not None and bar["high"] is not None]
    for bar in inner:
        held = shipped.probabilities[(shipped.floats >= bar["low"]) & (shipped.floats < bar["high"])].sum()
        assert bar["p"] == pytest.approx(held, abs=1e-6)
    assert len(inner) > 10


@pytest.mark.parametrize("metric", [name for name in DECIDED if name != "exact"])
def test_every_metric_has_its_decision(shown, shipped, metric):
    (decision,) = [one for one in shown["decisions"] if one["metric"] == metric]
    assert decision["value"] == pytest.approx(float(shipped.decide(DECIDED[metric])), rel=1e-9)
    kept = shipped.trimmed(relative=True)
    greedy = shown["answers"][0]["value"]
    for name, x in (("expected", shipped.decide(DECIDED[metric])), ("expected_of_greedy", greedy)):
        errors = kept.floats - float(x)
        scores = [METRICS[metric](value, x) for value in kept.values] if metric in METRICS else errors**2
        mean = scores @ kept.probabilities
        assert decision[name] == pytest.approx(mean if metric in METRICS else math.sqrt(mean), rel=1e-6)
    lower = decision["expected"] <= decision["expected_of_greedy"] * (1 + 1e-9)
    assert lower is not decision["higher_is_better"] or decision["expected"] == decision["expected_of_greedy"]


def test_the_greedy_answer_is_that_of_generate(shown):
    loaded = load_model(SHIPPED)
    prompt = loaded.tokenizer(f"{ROW_LINE}\n", return_tensors="pt")
    tokens = loaded.model.generate(
        prompt["input_ids"], do_sample=False, max_new_tokens=8, eos_token_id=loaded.end, pad_token_id=loaded.pad
    )
    written = loaded.tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert (shown["answers"][0]["rule"], shown["answers"][0]["text"]) == ("greedy", written.strip())


def test_a_greedy_answer_without_a_number(tmp_path, monkeypatch):
    model = open_model("", tmp_path)
    monkeypatch.setattr(model.answering, "greedy", lambda rows: ["no idea"])
    seen = compute(AnswerRequest(line="0.9 Ideal G VS1", rule="greedy"), tmp_path)
    assert seen["answers"][0] == {"rule": "greedy", "text": None, "value": None, "off": None}
    assert {one["expected_of_greedy"] for one in seen["decisions"]} == {None}


def test_stray_values_do_not_dominate_expected_scores():
    """The model once expected a relative error of 1,190 % of its best answer, for 0.1 % on the number 1."""
    found = NumberDistribution([1, 9900, 10_000, 10_100], [0.001, 0.3, 0.4, 0.299])
    seen = answer._stray(found, kept := found.trimmed(relative=True))
    assert seen == {"share": pytest.approx(0.001), "top": "1", "relative_error": pytest.approx(10, rel=0.01)}
    assert answer._expected(kept, "relative_error", found.decide("relative")) < 0.01
    assert answer._stray(kept, kept) is None


def test_the_best_exact_answer_is_not_shown_where_it_was_sampled(shown, shipped):
    assert shipped.drawn > shipped.covered / 2
    assert "exact" not in {one["metric"] for one in shown["decisions"]}
    exact = NumberDistribution([1, 2], [0.4, 0.6])
    assert answer._decisions(exact, exact, None)[1]["text"] == "2"


def test_the_tree_splits_the_probability(shown):
    def check(branch: dict, whole: float) -> None:
        assert sum(child["p"] for child in branch["children"]) + branch["others_p"] <= whole + 1e-6
        assert [child["p"] for child in branch["children"]] == sorted((child["p"] for child in branch["children"]), reverse=True)
        for child in branch["children"]:
            assert child["text"] == branch["text"] + child["piece"]
            if not child["drawn"]:  # otherwise its children share the weight of those that it stands for
                check(child, child["p"])

    root = shown["tree"]
    check(root, 1.0)
    first = sum(child["p"] for child in root["children"]) + root["others_p"]
    assert first == pytest.approx(1 - shown["shares"]["no_number"], abs=0.02)
    assert any(child["children"] for child in root["children"])


def test_a_narrow_search_says_what_it_left(tmp_path):
    wide, narrow = (compute(AnswerRequest(cells=ROW, covered=covered), tmp_path)["shares"] for covered in (1.0, 0.6))
    assert wide["not_searched"] < 1e-6
    assert narrow["not_searched"] > 0.1


def test_a_typed_line_is_asked_as_it_is(tmp_path):
    typed = compute(AnswerRequest(line=ROW_LINE), tmp_path)
    values = [
        [one["text"] for one in compute(AnswerRequest(**asked), tmp_path)["answers"]]
        for asked in ({"line": ROW_LINE}, {"cells": ROW})
    ]
    assert values[0] == values[1]
    assert typed["truth"] is None
    assert compute(AnswerRequest(line="ä\u0000😀"), tmp_path)["values"] > 0  # unknown characters


def test_the_first_view_is_a_test_row_with_its_truth(tmp_path):
    first = compute(AnswerRequest(), tmp_path)
    example = first["examples"][0]
    assert first["cells"] == example["cells"] == FIRST_ROW
    for one in first["answers"]:
        assert one["off"] == pytest.approx(one["value"] / first["truth"]["value"] - 1, abs=1e-9)
    assert first["answers"][0]["off"] < 10 * first["answers"][1]["off"] < 0  # the row was chosen for this
    assert first["truth"]["text"] == example["truth"]
    low, high = (end["value"] for end in first["interval"])
    assert first["truth"]["inside"] is (low <= first["truth"]["value"] <= high)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "../secret"}, "was not found"),
        ({"cells": {"weight": "1"}}, "was not trained on"),
        ({"cells": {"carat": "1"}}, "cut is empty"),
        ({"cells": {**ROW, "carat": " "}}, "carat is empty"),
    ],
)
def test_what_cannot_be_asked(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        compute(AnswerRequest(**changes), tmp_path)


def test_requests_are_bounded():
    cells = {str(k): "1" for k in range(65)}
    for changes in ({"line": "1" * 501}, {"width": 513}, {"width": 0}, {"covered": 0.1}, {"level": 1.0}, {"cells": cells}):
        with pytest.raises(ValidationError):
            AnswerRequest(**changes)


def test_trained_runs_are_found(tmp_path):
    assert list(find_models(_run(tmp_path / "mine"))) == [SHIPPED_NAME, "mine"]  # the folder may itself be a run
    _run(tmp_path / "compared" / "cells" / "abc")
    assert {*find_models(tmp_path)} == {SHIPPED_NAME, "mine", "compared/cells/abc"}
    found = compute(AnswerRequest(model="mine", cells=ROW), tmp_path)
    assert [one["off"] for one in found["answers"]] == [None] * len(RULES)
    assert found["examples"] == []  # its table is not here
    assert [column["name"] for column in found["columns"]] == [*ROW]


def test_weights_that_were_moved_are_found(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "moved")
    assert list(find_models(tmp_path)) == [SHIPPED_NAME, "moved"]
    assert list(find_models(tmp_path / "moved")) == [SHIPPED_NAME, "moved"]
    found = compute(AnswerRequest(model="moved", cells=ROW), tmp_path)
    assert found["measures"]["relative_error, median"] < 0.1
    asked = tmp_path / "moved" / "numerate.json"
    asked.write_text(json.dumps(json.loads(asked.read_text()) | {"base": {"model": "somebody/model", "seed": 0}}))
    assert list(find_models(tmp_path)) == [SHIPPED_NAME]


@pytest.mark.parametrize(
    ("config", "remove"),
    [
        ({"trust_remote_code": True}, ""),
        ({"adapter": "lora", "model": "somebody/model"}, ""),  # its base would come from the network
        ({}, "model/model.safetensors"),
        ({}, "config.json"),
    ],
)
def test_unsafe_or_incomplete_runs_are_not_offered(tmp_path, config, remove):
    folder = _run(tmp_path / "bad", **config)
    if remove:
        (folder / remove).unlink()
        (folder / "model" / "pytorch_model.bin").write_bytes(b"a pickle")
    assert list(find_models(tmp_path)) == [SHIPPED_NAME]


def _with_members(folder: Path) -> Path:
    """A run whose second member has other weights."""
    from safetensors.torch import load_file, save_file

    _run(folder, members=2)
    shutil.copytree(SHIPPED, member := folder / "model" / "members" / "1")
    weights = load_file(member / "model.safetensors")
    save_file({name: 1.05 * weight for name, weight in weights.items()}, member / "model.safetensors", {"format": "pt"})
    return folder


def test_a_pool_and_the_tree_of_its_first_member(tmp_path, shown):
    from numerate.lab.models.loading import ModelPool

    folder = _with_members(tmp_path / "pool")
    pooled = compute(AnswerRequest(model="pool", line=ROW_LINE), tmp_path)
    alone = compute(AnswerRequest(line=ROW_LINE), tmp_path)
    loaded = open_model("pool", tmp_path).answering.loaded
    assert isinstance(loaded.pool, ModelPool)
    low, high = map(Fraction, json.loads((SHIPPED / "numerate.json").read_text())["answers"])
    options = {"width": pooled["width"], "grammar": replace(ANY_NUMBER, lowest=low, highest=high), "end_token_ids": [loaded.end]}
    expected = decode.distribution([*loaded.pool.models], [f"{ROW_LINE}\n"], loaded.tokenizer, **options)[0]
    assert pooled["members"] == 2
    assert pooled["shares"]["covered"] == pytest.approx(expected.covered, abs=1e-5)
    assert {one["rule"]: one["text"] for one in pooled["answers"]}["median"] == str(expected.median)
    assert pooled["bars"] != alone["bars"]
    assert alone["members"] == 1
    assert (pooled["answers"][0], pooled["tree"]["text"]) == (alone["answers"][0], "")  # greedy and tree: the first member's
    assert [child["text"] for child in pooled["tree"]["children"]] == [child["text"] for child in alone["tree"]["children"]]
    (folder / "model" / "members" / "1" / "model.safetensors").rename(folder / "model" / "members" / "1" / "model.bin")
    assert list(find_models(tmp_path)) == [SHIPPED_NAME]


def test_members_outside_of_the_folder_are_not_offered(tmp_path):
    _with_members(tmp_path / "elsewhere" / "pool")
    runs = tmp_path / "runs"
    _run(runs / "pool", members=2)
    (runs / "pool" / "model" / "members").symlink_to(tmp_path / "elsewhere" / "pool" / "model" / "members")
    assert list(find_models(runs)) == [SHIPPED_NAME]


def test_a_model_is_loaded_once_and_few_are_kept(tmp_path):
    first = open_model("", tmp_path)
    assert open_model(SHIPPED_NAME, tmp_path) is first
    for name in ("a", "b", "c"):
        _run(tmp_path / name)
        open_model(name, tmp_path)
    assert len(models._KEPT) <= models._MOST_KEPT
    assert open_model("", tmp_path) is not first


def test_a_large_model_is_searched_less_widely(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_MOST_PRODUCTS", 78_768 * 20)
    models._KEPT.clear()
    assert compute(AnswerRequest(width=512, cells=ROW), tmp_path)["width"] == 20
    models._KEPT.clear()


def test_without_transformers_the_tab_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"numerate\[lab\]"):
        compute(AnswerRequest(), tmp_path)


def test_the_shipped_model_is_small_and_good():
    files = {file.name: file.stat().st_size for file in SHIPPED.iterdir()}
    assert sum(files.values()) < 1 << 20
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl", ".py"))]
    measures = open_model("", Path("nowhere")).measures
    assert measures["relative_error, median"] < 0.1
    assert answer.SHOWN_BRANCHES > 0
