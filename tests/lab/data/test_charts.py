import itertools
import json
import random
import re
import sys
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import inf
from statistics import mean, median

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data import drawing
from numerate.lab.data.base import Example
from numerate.lab.data.charts import Charts
from numerate.lab.data.charts.figure import PALETTES, chart_image, chart_page
from numerate.lab.data.charts.page import Page
from numerate.lab.data.row_reader import BadData

RIGHT = {"relaxed_accuracy": 1.0, "exact": 1.0, "parsed": 1.0, "relative_error": 0.0}
WORST = {"relaxed_accuracy": 0.0, "exact": 0.0, "parsed": 0.0, "relative_error": inf}


@cache
def drawn(n, split="train", seed=0, kind=None, labels=None, **settings):
    """Charts as they are drawn, of one kind where that is asked for."""
    task, rng = Charts(**settings), random.Random(seed)
    endless = (task.draw(rng, split) for _ in itertools.count())
    fitting = (chart for chart in endless if kind in (None, chart.kind) and labels in (None, chart.labels))
    return list(itertools.islice(fitting, n))


def mentions(text, name):
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w+-])", text)


def worth(chart, row=0):
    return [Fraction(value, 10**chart.table.topic.decimals) for value in chart.table.values[row]]


# Examples


def test_scores_follow_chartqa():
    score = Charts().score
    assert score(Example("", "100"), "105")["relaxed_accuracy"] == 1.0
    assert score(Example("", "100"), "The bar ends at 105")["exact"] == 0.0
    assert score(Example("", "100"), "106")["relaxed_accuracy"] == 0.0
    assert score(Example("", "100"), "150")["relative_error"] == 0.5
    assert score(Example("", "1200"), "$1,200.") == RIGHT
    assert score(Example("", "62"), "62%") == RIGHT
    assert score(Example("", "0.62"), "62%")["relaxed_accuracy"] == 1.0
    assert score(Example("", "62%"), "62") == RIGHT
    assert score(Example("", "Kenya"), "Final answer: kenya") == RIGHT
    assert score(Example("", "Kenya"), "Peru") == {**WORST, "parsed": 1.0}
    assert score(Example("", "[12, 63]"), "[12, 63]") == RIGHT


@pytest.mark.parametrize("setting", [{}, {"categories": 3, "largest": 137}, {"largest": 100}])
def test_extrapolation_has_more_and_larger_values(setting):
    task = Charts(**setting)
    for inside, outside in zip(drawn(200, **setting), drawn(200, "extrapolate", **setting), strict=True):
        assert 3 <= len(inside.table.categories) <= task.categories < len(outside.table.categories) <= task.categories + 4
        for row in range(len(inside.table.series)):
            assert 0 < min(worth(inside, row)) <= max(worth(inside, row)) <= task.largest
        for row in range(len(outside.table.series)):
            assert task.largest < min(worth(outside, row)) <= max(worth(outside, row)) <= 10 * task.largest


# Questions


# Words of a question -> its answer, from the values of the series and those that the question names; the first that fits.
ANSWERS = {
    r"above ([\d.]+)": lambda values, named, found: sum(value > Fraction(found[1]) for value in values),
    r"^How many": lambda values, named, found: len(values),
    r"sum of all values": lambda values, named, found: sum(values),
    r"average of all values": lambda values, named, found: mean(values),
    r"median of the values": lambda values, named, found: median(values),
    r"highest and the lowest": lambda values, named, found: max(values) - min(values),
    r"second highest": lambda values, named, found: sorted(values)[-2],
    r"the highest": lambda values, named, found: max(values),
    r"the lowest": lambda values, named, found: min(values),
    r"the difference between": lambda values, named, found: abs(named[0] - named[1]),
    r"the sum of the": lambda values, named, found: sum(named),
    r"the ratio of": lambda values, named, found: max(named) / min(named),
    r"^What is the": lambda values, named, found: named[0],
}


def test_answers_are_those_of_the_questions():
    """Reads the question's words and works the answer out anew."""
    for chart in drawn(1500) + drawn(500, "extrapolate"):
        table, text = chart.table, chart.question
        rows = [k for k, name in enumerate(table.series) if name and mentions(text, name)] or [0]
        columns = [k for k, name in enumerate(table.categories) if mentions(text, name)]
        values = worth(chart, rows[0])
        named = [worth(chart, row)[column] for row in rows for column in columns]
        if ahead := re.search(r"^For how many .* is (.+) higher than (.+)\?", text):
            one, other = (table.values[table.series.index(name)] for name in ahead.groups())
            answer = sum(a > b for a, b in zip(one, other, strict=True))
        elif "sum of all values for" in text:
            answer = sum(worth(chart, row)[columns[0]] for row in range(len(table.series)))
        else:
            word, found = next((word, found) for word in ANSWERS if (found := re.search(word, text)))
            answer = ANSWERS[word](values, named, found)
        assert abs(Fraction(chart.answer) - answer) <= Fraction(1, 200), (text, table)


def test_values_are_written_or_lie_on_the_grid():
    for chart in drawn(300) + drawn(300, "extrapolate"):
        if not chart.labels:
            assert chart.kind != "pie"
            assert all(value % (chart.tick // 2) == 0 for row in chart.table.values for value in row)
        assert max(map(max, chart.table.values)) <= chart.top
        assert chart.top % chart.tick == 0


def test_all_kinds_and_forms_occur():
    charts = drawn(1500)
    assert {chart.kind for chart in charts} == {"bar", "barh", "grouped", "line", "pie"}
    assert {chart.table.topic.form for chart in charts} == {"plain", "thousands", "percent", "dollars"}
    assert {chart.labels for chart in charts} == {True, False}
    assert sum(set(chart.table.values[0]) != {chart.table.values[0][0]} for chart in charts) > 1450
    wholes = [sum(chart.table.values[0]) for chart in charts if chart.table.topic.whole]
    assert set(wholes) == {100}


# The picture shows the values


def coloured(picture, row):
    """Where a picture has the colour of a series, of the second palette."""
    colour = np.round(np.array(to_rgb(PALETTES[1][row])) * 255)
    return np.abs(np.asarray(picture, int) - colour).max(-1) < 12


def charts_of_one_palette(*args, **kwargs):
    return [replace(chart, look=replace(chart.look, palette=1, first=0)) for chart in drawn(*args, **kwargs)]


def middle(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def axes(chart, page):
    """What a reader takes from the axes: the places of the categories, and of any value, in pixels."""
    across, names, texts = chart.kind == "barh", list(chart.table.categories), [text for text, _ in page.texts]
    begin = next(k for k in range(len(texts)) if texts[k : k + len(names)] == names)
    ticks = begin - chart.top // chart.tick - 1
    values = [float(re.sub("[$,%]", "", text)) for text in texts[ticks:begin]]
    assert values == pytest.approx([tick / 10**chart.table.topic.decimals for tick in range(0, chart.top + 1, chart.tick)])
    middles = [middle(box)[0 if across else 1] for _, box in page.texts[ticks:begin]]
    slope, start = np.polyfit(values, middles, 1)
    assert middles == pytest.approx([start + slope * value for value in values], abs=1.5)
    places = [middle(box)[1 if across else 0] for _, box in page.texts[begin : begin + len(names)]]
    return places, lambda value: round(start + slope * float(value))


@pytest.mark.parametrize("split", ["train", "extrapolate"])
@pytest.mark.parametrize("kind", ["bar", "barh", "grouped"])
def test_bars_end_at_their_values(kind, split):
    for chart in charts_of_one_palette(12, split, kind=kind):
        page, away = chart_page(chart, 560), 1 if kind == "barh" else -1  # the direction of larger values
        places, end = axes(chart, page)
        for row in range(len(chart.table.series)):
            found = coloured(page.image, row)
            found = found.T if kind == "barh" else found  # [along the values, along the categories]
            runs = itertools.groupby(enumerate(found[end(0) + 5 * away]), lambda pixel: pixel[1])
            bars = [[k for k, _ in run] for filled, run in runs if filled]
            assert len(bars) == len(places)
            for bar, place, value in zip(bars, places, worth(chart, row), strict=True):
                inside = (bar[0] + bar[-1]) // 2
                assert abs(inside - place) < (8 if kind != "grouped" else (places[1] - places[0]) / 2)  # nearest to its category
                assert found[end(0) + 5 * away : end(value) - 3 * away : away, inside].all(), (chart, value)
                assert not found[end(value) + 4 * away, inside], (chart, value)


@pytest.mark.parametrize("split", ["train", "extrapolate"])
def test_lines_pass_through_their_values(split):
    for chart in charts_of_one_palette(20, split, kind="line"):
        page = chart_page(chart, 560)
        places, end = axes(chart, page)
        heights = [[end(value) for value in worth(chart, row)] for row in range(len(chart.table.series))]
        for row, line in enumerate(heights):
            found = coloured(page.image, row)
            for k, (place, height) in enumerate(zip(places, line, strict=True)):
                if all(abs(other[k] - height) > 12 for other in heights[row + 1 :]):  # else another marker lies on top
                    assert found[height - 2 : height + 3, round(place) - 5 : round(place) + 6].any(), (chart, row, k)


def test_slices_are_as_large_as_their_values():
    for chart in drawn(2, kind="pie"):
        look = replace(chart.look, palette=0, first=0, paper=0, hole=False)
        picture = np.asarray(chart_image(replace(chart, look=look), 640), int)
        values = chart.table.values[0]
        areas = []
        for k in range(len(values)):
            colour = np.round(np.array(to_rgb(PALETTES[0][k])) * 255)
            areas.append((np.abs(picture - colour).max(-1) < 4).sum())
        assert [area / sum(areas) for area in areas] == pytest.approx([v / sum(values) for v in values], abs=0.02)


@pytest.mark.parametrize("kind", ["bar", "barh", "grouped", "line", "pie"])
def test_printed_values_stand_at_their_categories(kind):
    for chart in drawn(8, kind=kind, labels=True):
        page, rows = chart_page(chart, 560), len(chart.table.series)
        values = [value for row in range(rows) for value in worth(chart, row)]
        texts = [(Fraction(re.sub("[$,%]", "", text)), box) for text, box in page.texts if re.fullmatch(r"[$\d,.%]+", text)]
        printed = texts[-len(values) :]
        assert [value for value, _ in printed] == values
        if kind != "pie":
            places, _ = axes(chart, page)
            for k, (_, box) in enumerate(printed):
                at = middle(box)[1 if kind == "barh" else 0]
                assert np.argmin(np.abs(np.array(places) - at)) == k % len(places), (chart, k)


@pytest.mark.parametrize(
    ("split", "largest"), [("train", 1000), ("extrapolate", 1000), ("extrapolate", 100), ("extrapolate", 100_000)]
)
def test_no_text_is_cut_off_or_touches_another(split, largest):
    for chart, size in zip(drawn(150, split, seed=7, largest=largest), itertools.cycle((320, 400, 560, 1000))):
        page = chart_page(chart, size)
        for text, box in page.texts:
            assert min(box) >= 1, text
            assert (np.array(box[2:]) <= np.array(page.image.size) - 1).all(), text
        for (text, a), (other, b) in itertools.combinations(page.texts, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (text, other, size, chart)


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("side", ["l", "m", "r"])
def test_a_page_knows_where_its_texts_are(side, up):
    page = Page(560, 0.75, "#ffffff", "sans")
    page.text("Wednesday 1,250", (280, 200), 12, side + "s", up=up)
    ((_, box),) = page.texts
    ink = np.argwhere(np.asarray(page.image.convert("L")) < 160)[:, ::-1]
    assert (*ink.min(0), *(ink.max(0) + 1)) == pytest.approx(box, abs=2)
    along = (200 - box[3], 200 - box[1]) if up else (box[0] - 280, box[2] - 280)  # where the text begins and ends
    assert {"l": along[0], "m": sum(along), "r": along[1]}[side] == pytest.approx(0, abs=3)


def test_missing_matplotlib_is_named(monkeypatch):
    drawing.font.cache_clear()
    drawing._fonts.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'numerate[tasks]'")):
        chart_image(drawn(1)[0], 320)


# ChartQA


def write(folder, name, rows):
    (folder / "png").mkdir(parents=True, exist_ok=True)
    for row in rows:
        Image.new("RGB", (9, 6)).save(folder / "png" / row["imgname"])
    (folder / name).write_text(json.dumps(rows, indent=1))


ROWS = [
    {"imgname": "a.png", "query": "How many bars are there?", "label": "4"},
    {"imgname": "b.png", "query": "Which country leads?", "label": "Kenya"},
]


def test_chartqa_in_one_folder(tmp_path):
    write(tmp_path, "val_human.json", ROWS)
    write(tmp_path, "val_augmented.json", [{"imgname": "c.png", "query": "How much?", "label": 2.5}])
    task = Charts.from_files(tmp_path)
    assert task.splits == ("interpolate",)
    examples = task.examples("interpolate")
    assert sorted(example.answer for example in examples) == ["2.5", "4", "Kenya"]
    assert all(task.score(example, example.answer) == RIGHT for example in examples)
    assert all(example.image.size == (9, 6) and "Answer with" in example.prompt for example in examples)
    assert len(Charts.from_files(tmp_path / "val_human.json").examples("interpolate")) == 2


def test_chartqa_as_it_is_published(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path / split, f"{split}_human.json", ROWS)
        write(tmp_path / split, f"{split}_augmented.json", ROWS[:1])
    task = Charts.from_files(tmp_path)
    assert (len(task.examples("train")), len(task.examples("interpolate"))) == (3, 6)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"imgname": "z.png", "query": "How many?", "label": "4"}, "z.png is missing"),
        ({"imgname": "a.png", "label": "4"}, "column 'query' is missing"),
        ({"imgname": "a.png", "query": "How many?", "label": ""}, "label is ''"),
        ({"imgname": "a.png", "query": "How many?", "label": None}, "label is None"),
        ({"imgname": "a.png", "query": "How many?", "label": ["1", "2"]}, "label is ['1', '2']"),
        (["a.png"], "is a list, not an object"),
    ],
)
def test_broken_rows_are_named_or_skipped(tmp_path, row, message):
    write(tmp_path, "val_human.json", ROWS)
    (tmp_path / "val_human.json").write_text("[\n" + ",\n".join(map(json.dumps, [*ROWS, row])) + "\n]")
    assert_named_or_skipped(Charts, tmp_path, rf"line 4: .*{re.escape(message)}", 2)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(BadData, match="is not the ChartQA dataset"):
        Charts.from_files(tmp_path)
    with pytest.raises(BadData, match="there is no such file"):
        Charts.from_files(tmp_path / "val_human.json")
