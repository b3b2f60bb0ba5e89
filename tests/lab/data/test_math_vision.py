"""Mathematics in pictures: answers follow from the figure, labels touch nothing, and MathVista and MathVision are read."""

from __future__ import annotations

import json
import math
import random
import re
from cmath import phase
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data.base import Example, Split
from numerate.lab.data.math_vision import DrawnProblem, MathVision, arranged, math_question
from numerate.lab.data.math_vision.figures import STYLES, Figure, Layout, laid_out, render, turned
from numerate.lab.data.math_vision.problems import FAMILIES, Draw, Problem
from numerate.lab.data.row_reader import BadData

SPLITS: tuple[Split, ...] = get_args(Split)
BEST = {"exact": 1.0, "parsed": 1.0, "relative_error": 0.0, "within_5": 1.0}
WORST = {"exact": 0.0, "parsed": 0.0, "relative_error": math.inf, "within_5": 0.0}


@cache
def specs(split: Split, n: int, **settings: Any) -> list[DrawnProblem]:
    return list(MathVision(**settings).examples(split, n).specs)


def problem_of(spec: DrawnProblem) -> Problem:
    return FAMILIES[spec.family].build(spec.numbers, spec.names)


def layout_of(spec: DrawnProblem) -> Layout:
    return arranged(problem_of(spec), spec, 384)


def of(figure: Figure, kind: str) -> list[tuple[tuple[complex, ...], str]]:
    return [(mark.points, mark.text) for mark in figure if mark.kind == kind]


def degrees(corner: complex, one: complex, two: complex) -> float:
    return abs(math.degrees(phase((two - corner) / (one - corner))))


def measured(figure: Figure, question: str) -> float:
    """What is asked for, measured in the figure with ruler and protractor; the scale is that of its labels."""
    rulers = [float(text) / abs(b - a) for (a, b), text in of(figure, "side") if text != "x"]
    if rulers:
        assert max(rulers) == pytest.approx(min(rulers)), "drawn to scale"
    scale = rulers[0] if rulers else 1.0
    if match := re.search(r"Find (?:the|its) (area|perimeter|radius|diameter)", question):
        pairs = [(a, b) for (corners, _) in of(figure, "fill") for a, b in pairwise([*corners, corners[0]])]
        radius = sum(abs(rim - centre) for (centre, rim), _ in of(figure, "circle"))
        return {
            "area": abs(sum((a.conjugate() * b).imag for a, b in pairs)) / 2 * scale**2,
            "perimeter": scale * sum(abs(b - a) for a, b in pairs),
            "radius": scale * radius,
            "diameter": 2 * scale * radius,
        }[match[1]]
    found = [abs(b - a) * scale for (a, b), text in of(figure, "side") if text == "x"]
    for points, text in of(figure, "angle"):
        if text == "x°":
            found.append(degrees(*points))
        else:
            assert degrees(*points) == pytest.approx(float(text.rstrip("°"))), "drawn to scale"
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("far", [False, True])
def test_the_answer_is_what_is_measured_in_the_figure(family: str, far: bool) -> None:
    rng = random.Random(f"{family}/{far}")
    for _ in range(15):
        problem = FAMILIES[family].build(FAMILIES[family].draw(Draw(rng, 50, far)), "ABCDE")
        for figure in (problem.figure, turned(problem.figure, 33, True), laid_out(problem.figure, 384).figure):
            assert measured(figure, problem.question) == pytest.approx(float(problem.answer))
        assert all(degrees(*points) == pytest.approx(90) for points, _ in of(problem.figure, "square"))


@pytest.mark.parametrize("split", SPLITS)
def test_labels_touch_nothing(split: Split) -> None:
    for spec in specs(split, 40):
        layout = layout_of(spec)
        assert layout.clear
        assert not any(a.touches(b.at, b.wide, b.high) for a, b in combinations(layout.labels, 2))
        ink = [start + (end - start) * k / 50 for start, end in layout.strokes for k in range(51)]
        assert not any(label.touches(point, gap=2) for label in layout.labels for point in ink)


def test_a_problem_without_room_for_its_labels_is_turned_until_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Layout] = []

    def crowded(figure: Figure, size: int) -> Layout:
        tried.append(laid_out(figure, size)._replace(clear=len(tried) >= 3))
        return tried[-1]

    monkeypatch.setattr("numerate.lab.data.math_vision.laid_out", crowded)
    spec = specs("train", 1)[0]
    found = layout_of(spec)
    assert len(tried) == 4
    assert found is tried[-1]
    assert found.labels != tried[0].labels


@pytest.mark.parametrize("split", SPLITS)
def test_no_ink_lies_under_a_label_and_no_text_beyond_its_room(split: Split) -> None:
    for spec in specs(split, 12):
        layout, style = layout_of(spec), STYLES[spec.style]
        bare = np.asarray(render(layout._replace(labels=[]), style), int)
        full = np.asarray(MathVision().make(spec).image, int)
        assert full.shape == bare.shape
        changed = abs(full - bare).max(-1) > 40
        for label in layout.labels:
            x1, x2 = round(label.at.real - label.wide / 2), round(label.at.real + label.wide / 2)
            y1, y2 = round(label.at.imag - label.high / 2), round(label.at.imag + label.high / 2)
            under = bare[y1:y2, x1:x2].reshape(-1, 3)
            ground = [abs(under - np.array(colour)).max(-1) < 3 for colour in (style.paper, style.fill)]
            assert np.logical_or(*ground).all(), label.text
            assert changed[y1:y2, x1:x2].any(), label.text
            changed[max(0, y1 - 3) : y2 + 3, max(0, x1 - 3) : x2 + 3] = False
        assert not changed.any()


def test_lines_are_drawn_where_the_figure_has_them() -> None:
    for spec in specs("train", 10):
        layout, style = layout_of(spec), STYLES[spec.style]
        pixels = np.asarray(render(layout._replace(labels=[]), style), int)
        for (start, end), _ in of(layout.figure, "line"):
            for at in (start + share * (end - start) for share in (0.2, 0.4, 0.6, 0.8)):
                assert abs(pixels[int(at.imag), int(at.real)] - np.array(style.ink)).max() < 60


def test_extrapolation_has_longer_lengths_and_other_angles() -> None:
    lengths: dict[str, list[int]] = {"near": [], "far": []}
    for split in SPLITS:
        for spec in specs(split, 80):
            problem = problem_of(spec)
            shown = [int(text) for _, text in of(problem.figure, "side") if text != "x"]
            angles = [int(text.rstrip("°")) for _, text in of(problem.figure, "angle") if text != "x°"]
            answer = problem.answer
            lengths["far" if split == "extrapolate" else "near"] += shown
            if angles:
                assert all((angle % 5 == 0) == (split != "extrapolate") for angle in [*angles, answer])
            elif split == "extrapolate":
                assert answer > 50
            elif "Find x" in problem.question or "its" in problem.question:
                assert answer <= 50
    assert max(lengths["near"]) <= 50 < min(lengths["far"])
    assert all(min(spec.numbers[:2]) > 90 for spec in specs("extrapolate", 40, largest=90) if spec.family == "right_triangle")


def test_all_families_appear() -> None:
    assert {spec.family for spec in specs("train", 150)} == set(FAMILIES)


EXAMPLES = [
    MathVision().examples("train", 1)[0],
    Example("?", "C", None, {"choices": ("135°", "140°", "145°")}),
    Example("?", "[3, 5]", None, {"choices": (), "precision": None}),
]


def test_text_without_a_number_scores_worst() -> None:
    for text in ("", "no idea", "x", "°"):
        assert MathVision().score(EXAMPLES[0], text) == WORST
    for text in ("", "no idea", "F", "(Z)"):
        assert MathVision().score(EXAMPLES[1], text) == WORST


@pytest.mark.parametrize(("largest", "size"), [(20, 224), (1000, 512)])
@pytest.mark.parametrize("split", ["train", "extrapolate"])
def test_other_settings_work(largest: int, size: int, split: Split) -> None:
    task = MathVision(largest=largest, size=size)
    for example in task.examples(split, 8):
        assert task.score(example, example.answer) == BEST
        assert example.image is not None
        assert example.image.width == size


# Real data

VISTA = {
    "1": {
        "question": "How long is it?",
        "image": "images/1.jpg",
        "choices": None,
        "unit": "cm",
        "precision": 1.0,
        "answer": "1.2",
        "question_type": "free_form",
        "answer_type": "float",
        "pid": "1",
    },
    "2": {"question": "∠BOC＝（）", "image": "images/1.jpg", "choices": ["135°", "140°", "145°"], "answer": "145°"},
    "3": {"question": "Sum?", "image": "images/1.jpg", "choices": None, "answer": "1000", "answer_type": "integer"},
    "4": {"question": "Which ages?", "image": "images/1.jpg", "choices": None, "answer": "[3, 5]", "answer_type": "list"},
}
VISION = [
    {"id": "4", "question": "How many?\n<image1>", "options": [], "answer": "6", "level": 1, "image": "images/1.jpg"},
    {"id": "5", "question": "Which?", "options": ["A", "B", "D", "F", "G"], "answer": "E", "image": "images/1.jpg"},
    {"id": "6", "question": "Where?", "options": [], "answer": "(3,-4)", "image": "images/1.jpg"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 30), "white").save(tmp_path / "images" / "1.jpg")
    return tmp_path


def examples_of(path: Path) -> tuple[MathVision, dict[str, Example]]:
    task = MathVision.from_files(path)
    assert task.splits == ("interpolate",)
    return task, {example.prompt.split("?")[0].split("\n")[0]: example for example in task.examples("interpolate")}


def test_mathvista_is_read(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "testmini.json").write_text(json.dumps(VISTA, indent=4), "utf-8")
    (folder / "data" / "source.json").write_text("{}", "utf-8")
    task, examples = examples_of(folder)
    assert len(examples) == 4
    length, angle, whole, ages = examples["How long is it"], examples["∠BOC＝（）"], examples["Sum"], examples["Which ages"]
    assert length.prompt == "How long is it? (Unit: cm)\nAnswer with a number with 1 decimal."
    assert length.image.size == (40, 30)
    assert angle.prompt == "∠BOC＝（）\n(A) 135°\n(B) 140°\n(C) 145°\nAnswer with the letter of the choice."
    assert (angle.answer, whole.answer) == ("C", "1000")
    for example in examples.values():
        assert task.score(example, example.answer) == BEST
    for said, right in (("1.2", 1), ("about 1.23 cm", 1), ("1.16", 1), ("1.26", 0), ("1.3", 0)):
        assert task.score(length, said)["exact"] == right, said
    assert task.score(whole, "1,000")["exact"] == 1.0
    assert task.score(whole, "1040") == {"exact": 0.0, "parsed": 1.0, "relative_error": 0.04, "within_5": 1.0}
    assert task.score(ages, "They are [3,5].")["exact"] == 1.0
    assert task.score(ages, "3 and 5") == WORST


@pytest.mark.parametrize(
    "said",
    [
        "C",
        "c.",
        "(C)",
        "145°",
        " 145° ",
        "The answer is C.",
        "The answer is C, because A and B are too small.",
        "So it is (C) 145°",
        r"\boxed{C}",
        r"$\boxed{145°}$",
        "Answer: 145°",
        "**Answer:** (C)",
    ],
)
def test_a_choice_is_a_letter_or_its_text(said: str) -> None:
    assert MathVision().score(EXAMPLES[1], said) == BEST


@pytest.mark.parametrize("said", ["A", "135°", "The answer is B.", "It is (A), not (C)... so (A)", "Answer: 140°"])
def test_another_choice_is_wrong(said: str) -> None:
    assert MathVision().score(EXAMPLES[1], said) == WORST | {"parsed": 1.0}


def test_mathvision_is_read_once_of_two_files(folder: Path) -> None:
    for name, rows in (("test.jsonl", VISION), ("testmini.jsonl", VISION[:2])):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    task, examples = examples_of(folder)
    assert len(task.examples("interpolate")) == 3
    assert examples["How many"].prompt == "How many?\n<image1>\nAnswer with a number."
    assert examples["Which"].answer == "E"
    assert task.score(examples["Which"], "E")["exact"] == 1.0
    assert task.score(examples["Which"], "G")["exact"] == 1.0  # the text of choice E
    assert task.score(examples["Which"], "D")["exact"] == 0.0
    assert task.score(examples["Where"], "$(3, -4)$")["exact"] == 1.0
    assert task.score(examples["Where"], r"So it is $\boxed{(3, -4)}$.")["exact"] == 1.0
    assert task.score(examples["Where"], "Answer: (3,-4)")["exact"] == 1.0
    assert task.score(examples["Where"], "(3,4)")["exact"] == 0.0
    (folder / "train.jsonl").write_text(json.dumps({**VISION[0], "question": "New"}), "utf-8")
    assert len(MathVision.from_files(folder).examples("train")) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "options": [], "image": "images/1.jpg"}, "line 2: column 'answer' is missing"),
        ({"answer": "1", "options": [], "image": "images/1.jpg"}, "line 2: column 'question' is missing"),
        ({"question": "?", "answer": "", "image": "images/1.jpg"}, "line 2: the answer is empty. .*use testmini"),
        ({"question": "?", "answer": "7", "image": "images/7.jpg"}, "line 2: the image .*7.jpg is missing"),
        ({"question": "?", "answer": "7"}, "line 2: column 'image' is missing"),
        ({"question": "?", "answer": "F", "options": ["1", "2"], "image": "images/1.jpg"}, "line 2: the answer 'F' is none of"),
        ('{"question": "?", "ans', "line 2: broken JSON"),
    ],
)
def test_a_bad_row_is_named_or_skipped(folder: Path, row: Any, message: str) -> None:
    lines = [json.dumps(VISION[0]), row if isinstance(row, str) else json.dumps(row), json.dumps(VISION[1])]
    (folder / "test.jsonl").write_text("\n".join(lines), "utf-8")
    assert_named_or_skipped(MathVision, folder, message, 2)


def test_broken_files_are_named(folder: Path) -> None:
    with pytest.raises(BadData, match=r"has no test\*.json or test\*.jsonl"):
        MathVision.from_files(folder)
    path = folder / "testmini.json"
    path.write_text(json.dumps(VISTA, indent=4)[:-200], "utf-8")
    with pytest.raises(BadData, match=r"testmini.json, line \d+: broken JSON \(.*\). The file may be truncated"):
        MathVision.from_files(folder)
    path.write_text('{"1": 5}', "utf-8")
    with pytest.raises(BadData, match="row 1: is a number, not an object"):
        MathVision.from_files(folder)
    path.write_text(json.dumps([VISTA["1"]]), "utf-8")
    assert len(MathVision.from_files(path).examples("interpolate")) == 1
    path.write_text(json.dumps({"1": VISTA["1"], "2": {**VISTA["2"], "image": "no.jpg"}}, indent=4), "utf-8")
    with pytest.raises(BadData, match=r"testmini.json, line 13: the image .*no.jpg is missing"):
        MathVision.from_files(folder)


def test_the_letter_of_mathvision_is_not_taken_for_a_text(folder: Path) -> None:
    row = {"question": "?", "options": ["A", "B", "D", "F", "G"], "answer": "D", "image": "images/1.jpg"}
    assert math_question(row, folder).answer == "D"
    assert math_question({**row, "choices": row["options"]}, folder).answer == "C"  # MathVista gives the text


def test_halves_are_written_as_decimals() -> None:
    assert MathVision().make(DrawnProblem("triangle_area", (5, 5, 4), "ABC", 0, False, 0)).answer == "12.5"
