import importlib
import random
import re
import sys
from dataclasses import replace
from itertools import product
from math import atan2, degrees

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data import drawing
from numerate.lab.data.backgrounds import BACKGROUNDS, Background
from numerate.lab.data.clock import Clock
from numerate.lab.data.clock.face import HANDS, clock_image
from numerate.lab.data.row_reader import BadData


def faces(n, split="train", seed=0, **settings):
    task, rng = Clock(**settings), random.Random(seed)
    return [task.draw(rng, split) for _ in range(n)]


# Examples


@pytest.mark.parametrize("step", [5, 15])
def test_extrapolation_has_the_minutes_between(step):
    assert {face.minute for face in faces(600, step=step)} == set(range(0, 60, step))
    assert {face.minute for face in faces(2000, "extrapolate", step=step)} == set(range(60)) - set(range(0, 60, step))
    assert {face.hour for face in faces(600)} == set(range(1, 13))


def test_settings_are_followed():
    assert all(face.second is None and face.tilt == 0 for face in faces(50, second_hand=0, rotation=0))
    assert all(face.second is not None for face in faces(50, second_hand=1.0))
    tilts = [abs(face.tilt) for face in faces(200, rotation=20)]
    assert 15 < max(tilts) <= 20


# The picture tells the time


def pointing(face, shown, **without):
    """Degrees clockwise from twelve, on the dial, of what disappears from the picture when a hand does."""
    size, hidden = len(shown), np.asarray(clock_image(replace(face, **without), len(shown)), float)
    weight = np.abs(shown - hidden).sum(-1)
    y, x = np.indices(weight.shape)
    across = (weight * (x + 0.5 - face.centre[0] * size)).sum()
    up = (weight * (face.centre[1] * size - y - 0.5)).sum()
    return (degrees(atan2(across, up)) - face.tilt) % 360


@pytest.mark.parametrize("hands", HANDS)
def test_the_time_can_be_read_off_the_hands(hands):
    looked = 0
    for face in faces(8, "extrapolate", seed=hands, rotation=180):
        face = replace(face, hands=hands, second=None)
        shown = np.asarray(clock_image(face, 224), float)
        minute_turn = pointing(face, shown, minute_length=0.01)
        minute = round(minute_turn / 6) % 60
        assert minute == face.minute
        assert abs((minute_turn - 6 * minute + 180) % 360 - 180) < 2
        apart = (30 * face.hour + face.minute / 2 - 6 * face.minute + 180) % 360 - 180
        if abs(apart) > 25:  # else the minute hand hides the hour hand
            hour_turn = pointing(face, shown, hour_length=0.01) - minute / 2  # it has moved on with the minutes
            assert (round(hour_turn / 30) % 12 or 12) == face.hour
            assert abs((hour_turn - 30 * face.hour + 180) % 360 - 180) < 4
            looked += 1
    assert looked > 4


@pytest.mark.parametrize("rotation", [15.0, 180.0])
def test_no_clock_is_cut_off(rotation):
    for face in faces(30, rotation=rotation):
        picture = np.asarray(clock_image(replace(face, ground=0), 96), int)
        border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
        assert abs(border - np.array(BACKGROUNDS[0].colour)).max() < 8  # the noise


def test_the_grain_and_the_second_hand_are_in_the_picture():
    face = replace(faces(1)[0], second=40)
    picture = clock_image(face, 96).tobytes()
    assert picture != clock_image(replace(face, seed=face.seed + 1), 96).tobytes()
    assert picture != clock_image(replace(face, second=10), 96).tobytes()


# The TIME dataset


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (200, 10, 10)).save(path)
    return path


@pytest.fixture
def dataset(tmp_path):
    rows = [("train", "2-55"), ("train", "12_00"), ("valid", "1_05"), ("test", "11-30")]
    lines = ["class index,filepaths,labels,data set"]
    for k, (split, label) in enumerate(rows):
        name = picture(tmp_path / split / label / f"{k}.jpg").relative_to(tmp_path)
        lines.append(f"{k},{name.as_posix()},{label},{split}")
    (tmp_path / "clocks.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("form", ["folder", "csv file", "no csv"])
def test_time_dataset(dataset, form):
    if form == "no csv":
        (dataset / "clocks.csv").unlink()
    task = Clock.from_files(dataset / "clocks.csv" if form == "csv file" else dataset)
    assert task.splits == ("train", "interpolate")
    assert sorted(e.answer for e in task.examples("train")) == ["12_00", "2_55"]
    assert sorted(e.answer for e in task.examples("interpolate")) == ["11_30", "1_05"]
    example = task.examples("train", 1)[0]
    assert example.image.size == (8, 8)
    assert task.score(example, example.answer)["clock_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("9,train/2-55/0.jpg,2-75,train", "the label '2-75' is not a time"),
        ("9,train/2-55/0.jpg,0-15,train", "the label '0-15' is not a time"),
        ("9,train/2-55/0.jpg,13_15,train", "the label '13_15' is not a time"),
        ("9,train/2-55/0.jpg,2-55,dev", "data set 'dev' is not known"),
        ("9,train/2-55/9.jpg,2-55,train", "9.jpg is missing"),
        ("9,train/2-55/0.jpg", "has 2 values, but the header names 4 columns"),
    ],
)
def test_broken_rows_are_named_or_skipped(dataset, row, message):
    with (dataset / "clocks.csv").open("a") as file:
        file.write(row + "\n")
    assert_named_or_skipped(Clock, dataset, rf"clocks\.csv, line 6: .*{re.escape(message)}", 4)


def test_a_class_folder_that_is_no_time(dataset):
    (dataset / "clocks.csv").unlink()
    picture(dataset / "train" / "noon" / "1.jpg")
    with pytest.raises(BadData, match=r"1\.jpg: the label 'noon' is not a time"):
        Clock.from_files(dataset)
    assert len(Clock.from_files(dataset, skip_bad=True).skipped) == 1


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(BadData, match="is not the TIME dataset"):
        Clock.from_files(tmp_path)
    with pytest.raises(BadData, match="there is no such file"):
        Clock.from_files(tmp_path / "clocks.csv")


def test_a_damaged_image_is_named(dataset):
    (dataset / "train" / "2-55" / "0.jpg").write_bytes(b"no picture")
    with pytest.raises(BadData, match=r"0\.jpg: the image cannot be opened"):
        [example.image for example in Clock.from_files(dataset).examples("train")]


# What pictures are drawn with


@pytest.mark.parametrize("kind", ["plain", "gradient", "noise"])
def test_backgrounds_have_their_colour_and_are_the_same_again(kind):
    ground = Background(kind, (200, 180, 160), (100, 90, 80))
    one = drawing.background(ground, (40, 30), seed=1)
    assert one.size == (40, 30)
    assert one.tobytes() == drawing.background(ground, (40, 30), seed=1).tobytes()
    wanted = (150, 135, 120) if kind == "gradient" else (200, 180, 160)
    assert np.asarray(one).mean((0, 1)) == pytest.approx(wanted, abs=6)
    if kind == "gradient":
        assert np.ptp(np.asarray(one)[..., 0]) > 60


def test_noise_has_its_amount():
    grey = Image.new("RGB", (100, 100), (128, 128, 128))
    assert np.asarray(drawing.add_noise(grey, 5.0, 1), float).std() == pytest.approx(5, rel=0.05)


def test_polygons_cover_their_area_once_and_leave_the_rest():
    image = Image.new("RGB", (60, 50), (255, 255, 255))
    left, right = [(10.5, 10), (30, 10), (30, 40), (10.5, 40)], [(20, 10), (40.25, 10), (40.25, 40), (20, 40)]
    drawing.fill(image, [left, right], (0, 0, 0))
    ink = 1 - np.asarray(image.convert("L"), float) / 255
    assert ink[25].sum() == pytest.approx(29.75, abs=0.26)  # edges are drawn in quarters of a pixel
    assert ink[:, 25].sum() == pytest.approx(30, abs=0.26)
    assert ink[25, 10] == pytest.approx(0.5, abs=0.26)
    assert not ink[:, :10].any()
    assert not ink[:9].any()


def test_a_sheet_shows_every_picture_and_label():
    images = [Image.new("RGB", (300, 200), colour) for colour in ("red", "lime", "blue", "cyan", "magenta")]
    sheet = drawing.contact_sheet(images, ["one", "two", "three", "four\nlines", "a longer label " * 5])
    colours = {colour for _, colour in sheet.getcolors(sheet.width * sheet.height)}
    assert {(255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 255, 255), (255, 0, 255), (0, 0, 0)} <= colours


def test_fonts_of_every_kind_are_there():
    for family, bold, italic in product(("sans", "serif", "mono"), (False, True), (False, True)):
        assert drawing.font(12, family, bold=bold, italic=italic).getlength("12") > 5
    with pytest.raises(ValueError, match="family='sand' is not known"):
        drawing.font(12, "sand")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "numerate.lab.data.drawing")
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'numerate[tasks]'")):
        importlib.import_module("numerate.lab.data.drawing")
