"""Scene text: words are where the answer says, apart and readable, and three datasets' annotations are read."""

from __future__ import annotations

import cmath
import json
import math
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data.backgrounds import BACKGROUNDS
from numerate.lab.data.base import Split
from numerate.lab.data.plane import apart
from numerate.lab.data.row_reader import BadData
from numerate.lab.data.scene_text import SceneText
from numerate.lab.data.scene_text.annotations import smallest_rectangle
from numerate.lab.data.scene_text.signs import Wall, contrast, plate_of, reading_order, render

SPLITS: tuple[Split, ...] = get_args(Split)
BEST = {"hmean": 1.0, "precision": 1.0, "recall": 1.0, "spotting_hmean": 1.0, "parsed": 1.0}


@cache
def walls(split: Split) -> tuple[Wall, ...]:
    return tuple(SceneText().examples(split, 60 if split == "train" else 25).specs)


def angle_of(quad: Any) -> float:
    """How far a word is turned: from the middle of its left side to the middle of its right one."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = quad
    return math.degrees(math.atan2(by + cy - ay - dy, bx + cx - ax - dx))


def outside(quad: Any, points: np.ndarray) -> np.ndarray:
    """How far points [P, 2] lie outside the sides of a clockwise quadrilateral; negative inside; [P, 4]."""
    found = []
    for (x1, y1), (x2, y2) in zip(quad, [*quad[1:], quad[0]], strict=True):
        length = math.hypot(x2 - x1, y2 - y1)
        found.append(((points[:, 0] - x1) * (y2 - y1) - (points[:, 1] - y1) * (x2 - x1)) / length)
    return np.stack(found, 1)


@pytest.mark.parametrize("split", SPLITS)
def test_the_ink_of_a_word_fills_its_quadrilateral(split: Split) -> None:
    for wall in walls(split)[:3]:
        plain = np.asarray(render(wall), int)
        for number, (word, look) in list(enumerate(zip(wall.words, wall.looks, strict=True)))[:3]:
            ink = (250, 250, 246) if sum(look.ink) < 384 else (24, 26, 30)
            looks = (*wall.looks[:number], look._replace(ink=ink), *wall.looks[number + 1 :])
            change = abs(plain - np.asarray(render(wall._replace(looks=looks)), int)).max(-1)
            ys, xs = np.nonzero(change > 60)
            assert len(xs) > 20
            far = outside(word.quad, np.stack([xs + 0.5, ys + 0.5], 1))
            assert far.max() < 1.0, word.text  # no ink beyond
            assert (far.max(0) > -2.6).all(), word.text  # and some at each of the four sides
            left, top = (min(point[axis] for point in word.quad) for axis in (0, 1))
            assert xs.min() > left - 1.5
            assert ys.min() > top - 1.5


def test_the_answer_has_the_corners_as_shares_in_reading_order() -> None:
    for form, name in (("boxes", "box"), ("quads", "quad")):
        task = SceneText(form=form)
        wall = walls("train")[0]
        entries = json.loads(task.make(wall).answer)
        assert [entry["text"] for entry in entries] == [word.text for word in wall.words]
        for entry, word in zip(entries, wall.words, strict=True):
            xs, ys = ([point[axis] / (wall.width, wall.height)[axis] for point in word.quad] for axis in (0, 1))
            corners = [at for pair in zip(xs, ys, strict=True) for at in pair]
            expected = corners if form == "quads" else [min(xs), min(ys), max(xs), max(ys)]
            assert entry[name] == pytest.approx(expected, abs=0.00051)


@pytest.mark.parametrize("split", SPLITS)
def test_words_lie_apart_and_stand_out(split: Split) -> None:
    for wall in walls(split):
        taken = [plate_of(w.quad) if look.plate else w.quad for w, look in zip(wall.words, wall.looks, strict=True)]
        assert all(apart(a, b) for a, b in combinations(taken, 2))
        assert all(0 < x < wall.width and 0 < y < wall.height for quad in taken for x, y in quad)
        for look in wall.looks:
            behind = [look.plate] if look.plate else BACKGROUNDS[wall.ground][1:3]
            assert min(contrast(look.ink, colour) for colour in behind) >= 4


def test_extrapolation_has_more_words_and_steeper_ones() -> None:
    near, far = walls("train") + walls("interpolate"), walls("extrapolate")
    assert {len(wall.words) for wall in near} == {2, 3, 4, 5}
    assert {len(wall.words) for wall in far} == {6, 7, 8, 9}
    slow = [abs(angle_of(word.quad)) for wall in near for word in wall.words]
    steep = [abs(angle_of(word.quad)) for wall in far for word in wall.words]
    assert 18 < max(slow) < 20.5
    assert min(steep) > 21.5
    assert 45 < max(steep) < 50.5
    flat = SceneText(angle=0, words=[1, 1]).examples("extrapolate", 5).specs
    assert all(1.5 < abs(angle_of(word.quad)) < 30.5 and len(wall.words) > 1 for wall in flat for word in wall.words)


def test_reading_order_goes_by_rows() -> None:
    def box(x: float, y: float, high: float = 10) -> list[tuple[float, float]]:
        return [(x, y), (x + 20, y), (x + 20, y + high), (x, y + high)]

    assert reading_order([box(100, 2), box(0, 0), box(50, 50), box(10, 53)]) == [1, 0, 3, 2]
    assert reading_order([box(100, 0, 60), box(0, 25)]) == [1, 0]
    assert reading_order([]) == []


# Real data


def picture(path: Path, size: tuple[int, int] = (200, 100)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(path)


def annotation(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


ICDAR = "\ufeff20,10,80,10,80,30,20,30,EXIT\r\n100,50,150,60,148,70,98,60,£5,000\r\n1,1,5,1,5,5,1,5,###\r\n"


@pytest.fixture
def icdar(tmp_path: Path) -> Path:
    for part, size in (("training", (200, 100)), ("test", (400, 100))):
        picture(tmp_path / f"ch4_{part}_images" / "img_1.jpg", size)
        picture(tmp_path / f"ch4_{part}_images" / "img_2.jpg", size)
    annotation(tmp_path / "ch4_training_localization_transcription_gt" / "gt_img_1.txt", ICDAR)
    annotation(tmp_path / "Challenge4_Test_Task1_GT" / "gt_img_1.txt", ICDAR)
    annotation(tmp_path / "Challenge4_Test_Task1_GT" / "gt_img_2.txt", "1,1,5,1,5,5,1,5,###\n")
    return tmp_path


def test_icdar_2015_is_read(icdar: Path) -> None:
    task = SceneText.from_files(icdar, form="quads")
    (example,) = task.examples("train")
    assert example.image.size == (200, 100)
    assert json.loads(example.answer) == [
        {"quad": [0.1, 0.1, 0.4, 0.1, 0.4, 0.3, 0.1, 0.3], "text": "EXIT"},
        {"quad": [0.5, 0.5, 0.75, 0.6, 0.74, 0.7, 0.49, 0.6], "text": "£5,000"},
    ]
    tests = sorted(task.examples("interpolate"), key=lambda e: len(e.answer), reverse=True)
    assert tests[0].image.size == (400, 100)
    assert json.loads(tests[0].answer)[0]["quad"][0] == 0.05
    assert tests[1].answer == "[]"
    boxes = SceneText.from_files(icdar).examples("train")[0]
    assert json.loads(boxes.answer)[1]["box"] == [0.49, 0.5, 0.75, 0.7]
    for one in (example, *tests):
        assert task.score(one, one.answer)["hmean"] == 1.0


def test_unreadable_words_cost_nothing_found_or_not(icdar: Path) -> None:
    task = SceneText.from_files(icdar)
    (example,) = task.examples("train")
    found = [*json.loads(example.answer), {"box": [0.005, 0.01, 0.025, 0.05], "text": "blur"}]
    assert task.score(example, json.dumps(found)) == BEST
    found[-1]["box"] = [0.5, 0.01, 0.55, 0.05]
    assert task.score(example, json.dumps(found))["precision"] == pytest.approx(2 / 3)


def test_total_text_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "Images" / "Train" / "img11.jpg")
    picture(tmp_path / "Images" / "Test" / "img2.JPG")
    annotation(
        tmp_path / "txt_format" / "Train" / "poly_gt_img11.txt",
        "x: [[20 50 80 80 50 20]], y: [[20 10 20 40\n 30 40]], ornt: [u'c'], transcriptions: [u'the']\n"
        "x: [[100 120 120 100]], y: [[60 60 80 80]], ornt: [u'h'], transcriptions: [u\"Jerry's, no. 1\"]\n"
        "x: [[1 5 5 1]], y: [[1 1 5 5]], ornt: [u'#'], transcriptions: [u'#']\n"
        "x: [[1 5 5 1]], y: [[91 91 95 95]], ornt: [u'#'], transcriptions: []\n",
    )
    annotation(tmp_path / "txt_format" / "Test" / "poly_gt_img2.txt", "")
    task = SceneText.from_files(tmp_path, form="quads")
    (example,) = task.examples("train")
    first, second = json.loads(example.answer)
    assert first == {"quad": [0.1, 0.1, 0.4, 0.1, 0.4, 0.4, 0.1, 0.4], "text": "the"}
    assert second["text"] == "Jerry's, no. 1"
    assert len(example.meta["unreadable"]) == 2
    (empty,) = task.examples("interpolate")
    assert empty.answer == "[]"
    assert task.score(empty, "[]")["hmean"] == 1.0


SEGMENTS = "10,20,30,15,50,12,70,10,90,12,110,15,130,20,130,40,110,35,90,32,70,30,50,32,30,35,10,40"


def test_ctw1500_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "train_images" / "0001.jpg")
    picture(tmp_path / "test_images" / "1001.jpg")
    annotation(
        tmp_path / "ctw1500_train_labels" / "0001.xml",
        f'<Annotations><image file="0001.jpg"><box height="30" left="10" top="10" width="120"><label>A &amp; B</label>'
        f'<segs>{SEGMENTS}</segs><pts x="1" y="2" /></box><box><label>###</label><segs>{SEGMENTS}</segs></box></image>'
        "</Annotations>",
    )
    annotation(tmp_path / "gt_ctw1500" / "0001001.txt", f"{SEGMENTS},####Latin 9, no\n{SEGMENTS},#######\n")
    annotation(tmp_path / "readme.txt", "not an annotation")
    task = SceneText.from_files(tmp_path)
    (train,), (test,) = task.examples("train"), task.examples("interpolate")
    assert json.loads(train.answer) == [{"box": [0.05, 0.1, 0.65, 0.4], "text": "A & B"}]
    assert json.loads(test.answer) == [{"box": [0.05, 0.1, 0.65, 0.4], "text": "Latin 9, no"}]
    assert len(train.meta["unreadable"]) == len(test.meta["unreadable"]) == 1
    quads = SceneText.from_files(tmp_path, form="quads").examples("train")[0]
    assert json.loads(quads.answer)[0]["quad"] == [0.05, 0.1, 0.65, 0.1, 0.65, 0.4, 0.05, 0.4]


@pytest.mark.parametrize("angle", [-85, -30, 0, 10, 45, 70])
def test_the_smallest_rectangle_begins_where_the_text_does(angle: float) -> None:
    turned = [cmath.rect(1, math.radians(angle)) * (300 + corner) for corner in (0, 45 + 2j, 90, 90 + 20j, 45 + 18j, 20j)]
    points = [(point.real, point.imag) for point in turned]
    found = smallest_rectangle(points)
    assert np.array(found) == pytest.approx(np.array([points[k] for k in (0, 2, 3, 5)]), abs=1e-3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"20,10,80,10,80,30,20", "line 2: '20,10,80,10,80,30,20' has 7 values"),
        (b"20,10,80,10,80,x,20,30,EXIT", "line 2: could not convert string to float: 'x'"),
        (b"20,10,80,10,80,inf,20,30,EXIT", "line 2: a polygon has the numbers"),
        (b"1,2,3,4,5,####EXIT", "line 2: a polygon has 5 numbers"),
        (b"20,10,80,10,80,30,20,30,caf\xe9", "line 2: is not UTF-8"),
        (b"x: [[1 2 3]], y: [[1 2]], ornt: [u'c'], transcriptions: [u'a']", "line 2: there are 3 x and 2 y"),
        (b"x: [[1 2 3]], y: [[1 2 3]], ornt: [u'c'], transcriptions: [u'a]", "line 2: the transcription .* cannot be read"),
        (b"x: [[1 2 3]], y: [[1 2", "line 2: .* is not a record of Total-Text"),
    ],
)
def test_a_bad_line_is_named_or_its_picture_is_skipped(icdar: Path, line: bytes, message: str) -> None:
    path = icdar / "Challenge4_Test_Task1_GT" / "gt_img_2.txt"
    annotation(path, b"1,1,5,1,5,5,1,5,good\n" + line + b"\n")
    assert_named_or_skipped(SceneText, icdar, f"{re.escape(str(path))}.*{message}", 2)


def test_other_broken_data_is_named(icdar: Path, tmp_path: Path) -> None:
    (icdar / "ch4_test_images" / "img_2.jpg").unlink()
    (icdar / "ch4_training_images" / "img_2.jpg").unlink()
    with pytest.raises(BadData, match=r"gt_img_2.txt: the annotation has no image. Expected one image of the same name"):
        SceneText.from_files(icdar)
    assert len(SceneText.from_files(icdar, skip_bad=True).skipped) == 1
    with pytest.raises(BadData, match="is not a folder"):
        SceneText.from_files(icdar / "nothing")
    (icdar / "empty").mkdir()
    with pytest.raises(BadData, match=r"has no annotations. Expected gt_img_1.txt"):
        SceneText.from_files(icdar / "empty")
    picture(icdar / "empty" / "0001.jpg")
    annotation(icdar / "empty" / "0001.xml", "<Annotations><image>")
    with pytest.raises(BadData, match=r"0001.xml: broken XML"):
        SceneText.from_files(icdar / "empty")
    annotation(icdar / "empty" / "0001.xml", "<Annotations><image><box><label>A</label></box></image></Annotations>")
    with pytest.raises(BadData, match=r"0001.xml: a box has no segs"):
        SceneText.from_files(icdar / "empty")


def test_an_image_of_two_folders_is_not_guessed(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "img_1.jpg")
    picture(tmp_path / "b" / "img_1.jpg")
    annotation(tmp_path / "gt" / "gt_img_1.txt", ICDAR)
    with pytest.raises(BadData, match="the annotation may belong to .* or "):
        SceneText.from_files(tmp_path)
