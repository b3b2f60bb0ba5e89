"""Grounding: one shape fits each expression, its box is where the picture shows it, and RefCOCO's rows are read."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data.base import Split
from numerate.lab.data.grounding import Grounding, Referred
from numerate.lab.data.grounding.scenes import COLOURS, KINDS, Expression, Phrase, Scene, Shape, referents, render, words
from numerate.lab.data.row_reader import BadData

SPLITS: tuple[Split, ...] = get_args(Split)
SHAPE = r"(?:(small|large) )?(?:(\w+) )?(\w+)"
RANKS = {"second": 2, "third": 3}


@cache
def scenes(split: Split, n: int = 80) -> tuple[Scene, ...]:
    return tuple(Grounding().examples(split, n).specs)


def fitting(said: str, shapes: tuple[Shape, ...]) -> list[Shape]:
    """The shapes that a phrase such as 'small red circle' fits, read from its words alone."""
    match = re.fullmatch(SHAPE, said)
    assert match is not None, said
    size, colour, kind = match.groups()
    assert colour in (None, *COLOURS), said
    assert kind in (*KINDS, "shape"), said
    return [s for s in shapes if size in (None, s.size) and colour in (None, s.colour) and kind in ("shape", s.kind)]


def meant(text: str, shapes: tuple[Shape, ...]) -> list[Shape]:
    """What an English expression means, by the middles of the shapes."""
    text = text.removeprefix("the ")
    if match := re.fullmatch(r"(.*?) (to the left of|to the right of|above|below) the (.*)", text):
        (anchor,) = fitting(match[3], shapes)
        beside = {
            "to the left of": lambda s: s.x < anchor.x,
            "to the right of": lambda s: s.x > anchor.x,
            "above": lambda s: s.y < anchor.y,
            "below": lambda s: s.y > anchor.y,
        }[match[2]]
        return [s for s in fitting(match[1], shapes) if s != anchor and beside(s)]
    keys = {
        **dict.fromkeys(("left", "leftmost"), lambda s: s.x),
        **dict.fromkeys(("right", "rightmost"), lambda s: -s.x),
        **dict.fromkeys(("top", "topmost"), lambda s: s.y),
        **dict.fromkeys(("bottom", "bottommost"), lambda s: -s.y),
        "largest": lambda s: -(s.box[2] - s.box[0]) * (s.box[3] - s.box[1]),
        "smallest": lambda s: (s.box[2] - s.box[0]) * (s.box[3] - s.box[1]),
    }
    if match := re.fullmatch(r"(second|third) (.*) from the (\w+)", text):
        return [sorted(fitting(match[2], shapes), key=keys[match[3]])[RANKS[match[1]] - 1]]
    first, _, rest = text.partition(" ")
    if first in keys:
        return sorted(fitting(rest, shapes), key=keys[first])[:1]
    return fitting(text, shapes)


@pytest.mark.parametrize("split", SPLITS)
def test_an_expression_means_exactly_one_shape_by_its_words(split: Split) -> None:
    task = Grounding()
    for scene in scenes(split):
        (target,) = meant(words(scene.expression), scene.shapes)
        assert [scene.shapes[k] for k in referents(scene.expression, scene.shapes)] == [target]
    example = task.make(scene)
    assert words(scene.expression) in example.prompt
    left, top, right, bottom = target.box
    expected = [left / scene.width, top / scene.height, right / scene.width, bottom / scene.height]
    assert json.loads(example.answer) == pytest.approx(expected, abs=0.00051)


@pytest.mark.parametrize("split", SPLITS)
def test_an_expression_says_no_more_than_is_needed(split: Split) -> None:
    for scene in scenes(split):
        target, relation, anchor, rank = scene.expression
        like = [shape for shape in scene.shapes if target.fits(shape)]
        assert len(like) > rank if relation else len(like) == 1
        for phrase in (target, anchor or target):
            if phrase.size is not None:  # the same, but of the other size, is there, too
                assert any(phrase._replace(size=None).fits(shape) and shape.size != phrase.size for shape in scene.shapes)


def test_every_way_to_refer_is_used() -> None:
    texts = [words(scene.expression) for scene in scenes("train", 160)]
    for said in ("to the left of", "above", "leftmost", "second", "from the", "largest", "smallest", "small ", "the red "):
        assert any(said in text for text in texts), said


def test_what_could_be_read_in_two_ways_is_not_clear() -> None:
    def circle(x: float, y: float, radius: float = 10.0, kind: str = "circle") -> Shape:
        return Shape(kind, "red", "small", x, y, radius, 0)

    two = (circle(50, 50), circle(53, 150), circle(50, 100, kind="square"))
    assert referents(Expression(Phrase("circle"), "left"), two) == []
    assert referents(Expression(Phrase("circle"), "left"), two, loose=True) == [0]
    assert referents(Expression(Phrase("circle"), "above"), two) == [0]
    assert referents(Expression(Phrase("circle"), "left", Phrase("square")), two) == []
    assert len(referents(Expression(Phrase("circle"), "left", Phrase("square")), two, loose=True)) == 2
    assert referents(Expression(Phrase("circle"), "above", Phrase("square")), two) == [0]
    assert len(referents(Expression(Phrase("circle"), "largest"), (circle(0, 0, 10), circle(50, 0, 11)))) == 2
    assert referents(Expression(Phrase("circle"), "largest"), (circle(0, 0, 10), circle(50, 0, 15))) == [1]
    assert referents(Expression(Phrase("square"), "left", Phrase("circle")), two) == []  # two circles: no anchor


@pytest.mark.parametrize("split", SPLITS)
def test_the_box_is_where_the_picture_shows_the_shape(split: Split) -> None:
    for scene in scenes(split)[:5]:
        (target,) = referents(scene.expression, scene.shapes)
        shape = scene.shapes[target]
        with_it = np.asarray(render(scene), int)
        without = np.asarray(render(scene._replace(shapes=scene.shapes[:target] + scene.shapes[target + 1 :])), int)
        ys, xs = np.nonzero(abs(with_it - without).max(-1) > 12)
        assert (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) == pytest.approx(shape.box, abs=1.3)
        colour = with_it[round(shape.y) - 1 : round(shape.y) + 2, round(shape.x) - 1 : round(shape.x) + 2].mean((0, 1))
        assert min(COLOURS, key=lambda name: abs(colour - COLOURS[name]).sum()) == shape.colour


@pytest.mark.parametrize("split", SPLITS)
def test_shapes_lie_apart_and_within_the_picture(split: Split) -> None:
    for scene in scenes(split):
        for shape in scene.shapes:
            left, top, right, bottom = shape.box
            assert 0 < left < right < scene.width
            assert 0 < top < bottom < scene.height
        assert all(a.apart(b, 2) for a, b in combinations(scene.shapes, 2))


def test_extrapolation_has_more_and_smaller_shapes() -> None:
    def areas(found: tuple[Scene, ...]) -> list[float]:
        boxes = [(s, shape.box) for s in found for shape in s.shapes]
        return [(b[2] - b[0]) * (b[3] - b[1]) / min(s.width, s.height) ** 2 for s, b in boxes]

    near, far = scenes("train", 160) + scenes("interpolate"), scenes("extrapolate")
    assert {len(scene.shapes) for scene in near} == set(range(3, 9))
    assert {len(scene.shapes) for scene in far} == set(range(9, 15))
    assert max(areas(far)) < min(areas(near))
    assert all(len(e.shapes) == 1 for e in Grounding(objects=(1, 1)).examples("train", 30).specs)
    few = Grounding(objects=[3, 4]).examples("extrapolate", 30).specs
    assert min(len(scene.shapes) for scene in few) == 5


def test_location_tokens_are_those_of_paligemma(tmp_path: Path) -> None:
    task = Grounding(form="locations")
    Image.new("RGB", (100, 100)).save(tmp_path / "it.png")
    corner = Referred(tmp_path / "it.png", "it", (25.0, 50.0, 50.0, 50.0))
    assert task.make(corner).answer == "<loc0512><loc0256><loc1023><loc0768>"
    box = task.read("cat <loc0001><loc0002><loc0003><loc0004> ; <loc0512><loc0256><loc1023><loc0768> circle")
    assert box is not None
    assert [float(side) for side in box] == [0.25, 0.5, 0.75, 1023 / 1024]
    assert task.outlines("<loc0512><loc0256><loc1023><loc0768>") == [box]
    assert task.read("<loc0512><loc0256><loc1023>") is None
    assert task.read("[0.1, 0.2, 0.3, 0.4]") is None
    assert Grounding().read("<loc0512><loc0256><loc1023><loc0768>") is None


# RefCOCO


def write(folder: Path, name: str, rows: list[Any]) -> None:
    (folder / name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (200, 100), "white").save(tmp_path / "images" / "COCO_train2014_000000581857.jpg")
    Image.new("L", (50, 50), 128).save(tmp_path / "b.png")
    return tmp_path


ROW = {
    "question_id": "1",
    "question": "Provide a short description for this region.",
    "answer": ["the man in blue ", "left guy"],
    "bbox": [20.0, 10.0, 100.0, 50.0],
    "file_name": "COCO_train2014_000000581857_16.jpg",
}


def test_rows_of_refcoco_give_one_example_for_each_expression(folder: Path) -> None:
    write(folder, "testA.jsonl", [ROW, {"image": "b.png", "sentence": "gray", "bbox": [-5, 0, 55, 60.5]}, ""])
    write(folder, "train.jsonl", [{"file_name": "b.png", "sentences": [{"raw": "it"}], "bbox": [0, 0, 5, 5]}])
    task = Grounding.from_files(folder)
    assert task.splits == ("train", "interpolate")
    examples = {example.meta["expression"]: example for example in task.examples("interpolate")}
    assert set(examples) == {"the man in blue", "left guy", "gray"}
    assert examples["left guy"].answer == "[0.100, 0.100, 0.600, 0.600]"
    assert examples["left guy"].image.size == (200, 100)
    assert examples["gray"].answer == "[0.000, 0.000, 1.000, 1.000]"
    assert examples["gray"].image.mode == "RGB"
    (only,) = task.examples("train")
    assert only.answer == "[0.000, 0.000, 0.100, 0.100]"
    for example in examples.values():
        assert task.score(example, example.answer)["iou"] == 1.0
    tokens = Grounding.from_files(folder / "testA.jsonl", form="locations")
    assert "<loc0102><loc0102><loc0614><loc0614>" in {example.answer for example in tokens.examples("interpolate")}


def test_the_column_split_says_what_is_for_training(folder: Path) -> None:
    rows = [{"file_name": "b.png", "sentence": name, "bbox": [0, 0, 5, 5], "split": name} for name in ("train", "val", "testB")]
    write(folder, "refcoco.jsonl", rows)
    task = Grounding.from_files(folder)
    assert [e.meta["expression"] for e in task.examples("train")] == ["train"]
    assert {e.meta["expression"] for e in task.examples("interpolate")} == {"val", "testB"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"file_name": "b.png", "answer"', "line 2: broken JSON"),
        ("[1, 2]", "line 2: is a list, not an object"),
        ({"file_name": "b.png", "bbox": [1, 2, 3, 4]}, "line 2: has no column with an expression"),
        ({"file_name": "b.png", "answer": [], "bbox": [1, 2, 3, 4]}, r"line 2: the expressions are \[\]"),
        ({"file_name": "b.png", "answer": ["a", 3], "bbox": [1, 2, 3, 4]}, "line 2: the expressions are"),
        ({"file_name": "b.png", "answer": "a"}, "line 2: column 'bbox' is missing. Columns here: file_name, answer"),
        ({"file_name": "b.png", "answer": "a", "bbox": [1, 2, 3]}, r"line 2: bbox is \[1, 2, 3\]"),
        ({"file_name": "b.png", "answer": "a", "bbox": [1, 2, 0, 4]}, "Expected x, y, width and height in pixels"),
        ({"file_name": "b.png", "answer": "a", "bbox": ["1", "2", "3", "4"]}, "line 2: bbox is"),
        ('{"file_name": "b.png", "answer": "a", "bbox": [1, 2, NaN, 4]}', "line 2: bbox is"),
        ({"file_name": "c.png", "answer": "a", "bbox": [1, 2, 3, 4]}, "line 2: the image .*c.png is missing"),
        ({"answer": "a", "bbox": [1, 2, 3, 4]}, "line 2: column 'file_name' is missing"),
    ],
)
def test_a_bad_row_is_named_or_skipped(folder: Path, row: Any, message: str) -> None:
    write(folder, "val.jsonl", [ROW, row, ROW])
    assert_named_or_skipped(Grounding, folder, message, 4)


def test_wrong_encoding_and_no_files(folder: Path) -> None:
    with pytest.raises(BadData, match=r"has no .jsonl files"):
        Grounding.from_files(folder)
    (folder / "val.jsonl").write_bytes(json.dumps(ROW).encode() + b'\n{"answer": "caf\xe9"}\n')
    with pytest.raises(BadData, match="line 2: is not UTF-8"):
        Grounding.from_files(folder)
    with pytest.raises(BadData, match="there is no such file"):
        Grounding.from_files(folder / "test.jsonl")
