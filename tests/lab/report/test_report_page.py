"""The page of every task: stands alone, readable in both colour schemes, on a phone, printed and without script."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.lab.report.simulated import ReportPage, reconfigure, rewrite, setup_of
from tests.lab.report.test_report_missing_numbers import CASES, EXAMPLES, make_run

from numerate.lab.data import TASKS
from numerate.lab.data.scene_text.signs import contrast as wcag_contrast
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup
from numerate.lab.report.answer import identical, subject
from numerate.lab.report.figures.drawing import FigurePlan, styles
from numerate.lab.report.figures.errors import _SHADES, _text_on
from numerate.lab.report.figures.predicted import MOST_POINTS, predictions
from numerate.lab.report.figures.svg import loss_key
from numerate.plotting import palette

LABELS = ("ce", "emd", "smmd")
_LOADS = {"src", "href", "xlink:href", "action", "data", "poster", "srcset"}


def style_of(page: ReportPage) -> str:
    return re.search(r"<style>(.*?)</style>", page.text, re.DOTALL)[1]


def block(style: str, start: str) -> str:
    """Return what stands between the braces after ``start``."""
    begin = style.index("{", style.index(start)) + 1
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(style[end], 0)
        end += 1
    return style[begin : end - 1]


def schemes(style: str) -> dict[str, dict[str, str]]:
    """Return the variables of the light and the dark scheme."""
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block(style, ":root")))
    dark = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block(style, "@media screen and (prefers-color-scheme: dark)")))
    return {"light": light, "dark": dark}


def contrast(first: str, second: str) -> float:
    """Return the ratio of WCAG 2."""
    return wcag_contrast(*(tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in (first, second)))


@pytest.fixture(scope="module", params=TASKS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    """The page of made-up runs of a task, with decisions, and for a visual one with pictures."""
    kind, folder = TASKS[request.param], tmp_path_factory.mktemp(request.param)
    settings: dict[str, Any] = {"seeds": 1, "splits": ["interpolate"], "fallback": not kind.visual, "examples": 2 * EXAMPLES}
    make_run(folder, request.param, kind.measures, CASES["every second example, another one by rule"], **settings)
    if kind.visual:
        add_pictures(folder)
    return ReportPage(write_report(folder))


def add_pictures(folder: Path, **more: Any) -> None:
    from PIL import Image

    Image.new("RGB", (20, 10), "red").save(folder / "a.png")
    rewrite(folder, lambda label, row: row.update(image="a.png", **more))


class TestEveryTask:
    def test_no_request_leaves_the_page(self, page: ReportPage):
        for tag, given, _ in page.elements:
            for name in _LOADS & given.keys():
                assert given[name].startswith(("#", "data:")), (tag, given[name])
        assert not re.search(r"https?://|@import|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|url\((?!#)", page.text)
        (policy,) = [given["content"] for given in page.all("meta") if given.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")

    def test_contents_lead_to_every_section(self, page: ReportPage):
        ids = page.values("id")
        assert len(ids) == len(set(ids))
        linked = [given["href"].removeprefix("#") for given in page.all("a", within="nav")]
        assert set(linked) <= set(ids)
        assert [each for each in ids if each in linked] == linked  # in the order of the page
        headings = [given.get("id") for tag in ("h2", "h3") for given in page.all(tag, within="main")]
        assert {each for each in headings if each is not None} <= {*linked, "unfinished"}

    def test_alternative_texts_have_figures(self, page: ReportPage):
        pictures = page.all("svg")
        assert len(pictures) >= 3
        for given in pictures:
            assert given["role"] == "img"
            assert len(re.findall(r"\d", given["aria-label"])) >= 3, given["aria-label"]
        for given in page.all("img"):
            assert re.search(r"\d", given["alt"])

    def test_figures_have_values_on_hover_and_know_their_losses(self, page: ReportPage):
        for drawing in re.findall(r"<svg .*?</svg>", page.text, re.DOTALL):
            titles = re.findall(r"<title>(.*?)</title>", drawing)
            assert titles, drawing[:200]
            assert all(re.search(r"\d|no number", title) for title in titles)
            assert {loss_key("emd"), loss_key("smmd")} <= set(re.findall(r'data-loss="(\w+)"', drawing))

    def test_tables_sort_and_scroll(self, page: ReportPage):
        tables = [(given, around) for tag, given, around in page.elements if tag == "table"]
        assert tables
        assert all("data-sort" in given for given, _ in tables)
        wrapped = len(re.findall(r'<div class="scroll" tabindex="0"><table', page.text))
        assert wrapped == len(tables)
        assert len(re.findall(r'<div class="scroll" tabindex="0"><svg', page.text)) == len(page.all("svg"))
        assert ".scroll { overflow-x: auto; }" in style_of(page)

    def test_losses_can_be_hidden(self, page: ReportPage):
        boxes = [given["value"] for given in page.all("input", within="fieldset")]
        assert set(boxes) == set(map(loss_key, LABELS))
        (chooser,) = page.all("fieldset")
        assert "hidden" in chooser  # of no use without script
        named = [given["data-loss"] for _, given, around in page.elements if "data-loss" in given and "table" in around]
        assert boxes == list(dict.fromkeys(named))  # in the order of the tables: the baseline first, then the best

    def test_colours_are_variables(self, page: ReportPage):
        style = re.sub(r"--[\w-]+: #[0-9a-f]{6};", "", style_of(page))
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!-)|rgb|white(?!-)|black", re.sub(r"#(losses|tip|contents)", "", style))
        marked = re.sub(
            r'"data:[^"]*"|href="#[^"]*"|url\(#[^)]*\)|<script.*?</script>|<style.*?</style>', "", page.text, flags=re.DOTALL
        )
        assert not re.search(r"#[0-9a-fA-F]{6}\b", marked)
        used = set(re.findall(r"var\(--([\w-]+)\)", page.text))
        assert used <= palette.ALL.keys()

    def test_dark_and_printed(self, page: ReportPage):
        both = schemes(style_of(page))
        assert both["light"].keys() == both["dark"].keys() == palette.ALL.keys()
        assert "color-scheme: light dark" in block(style_of(page), ":root")
        printed = block(style_of(page), "@media print")
        assert re.search(r"[^}]*\bnav\b[^}]*\{ display: none; \}", printed)
        assert "color-scheme: light" in printed
        for whole in ("figure", "tr"):
            assert re.search(rf"(^|[ ,]){whole}[ ,][^}}]*break-inside: avoid", printed, re.MULTILINE)

    def test_the_lead_names_the_task_and_the_details_the_model(self, page: ReportPage):
        lead = re.search(r'<p class="lead">(.*?)</p>', page.text, re.DOTALL)[1]
        task = re.search(r"<dt>task</dt><dd><bdi>(.*?)</bdi>", page.text)[1]
        assert task.replace("_", " ") in lead
        assert f"{task} (tiny, not pre-trained)" in page.text.partition('id="s1-detail"')[2].partition("</p>")[0]


SCHEMES = {name: {key: pair[at] for key, pair in palette.ALL.items()} for at, name in enumerate(("light", "dark"))}


class TestContrast:
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_every_pair_that_stands_on_another(self, scheme: str):
        colours = SCHEMES[scheme]
        for background in palette.BACKGROUNDS:
            low = {name: contrast(colours[name], colours[background]) for name in ("grey", *palette.TEXTS, *palette.GRAPHICS)}
            assert min(low[name] for name in palette.TEXTS) >= 4.5, low
            assert min(low.values()) >= 3, low
        names = {light: name for name, (light, _) in palette.ALL.items()}
        for shade in _SHADES:
            text, bar = (colours[names[colour]] for colour in (_text_on(shade), shade))
            assert contrast(text, bar) >= 4.5, (shade, text)
        groups = (palette.BACKGROUNDS, palette.TEXTS, palette.GRAPHICS, palette.SHADES, palette.ON_SHADES, palette.LINES)
        assert [*palette.ALL] == [name for group in groups for name in group]
        assert [*palette.LINES] == ["pale"]  # separators and grids, without information

    def test_the_formula(self):
        assert contrast("#ffffff", "#000000") == pytest.approx(21)
        assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)

    def test_a_colour_without_a_variable_is_refused(self):
        assert palette.variables("stroke: #0072b2; fill: #ffffff") == "stroke: var(--c1); fill: var(--paper)"
        with pytest.raises(KeyError):
            palette.variables("fill: #123456")


def one(folder: Path, change: Any = None, **settings: Any) -> Setup:
    """Made-up records of a table, changed by ``change(label, row)``."""
    options: dict[str, Any] = {"seeds": 1, "splits": ["interpolate"], "fallback": False, **settings}
    make_run(folder, "regression", ("relative_error", "absolute_error"), lambda *_: "number", **options)
    return setup_of(folder if change is None else rewrite(folder, change))


def predicted(setup: Setup) -> FigurePlan:
    return predictions(setup, styles(LABELS, ["ce"]))


class TestPredicted:
    def test_medians_with_intervals(self, tmp_path: Path):
        data = predicted(one(tmp_path)).data
        assert len(data.where(loss="smmd")) == EXAMPLES
        assert {(row["predicted"], row["low"], row["high"]) for row in data.where()} == {(7.0, 1.0, 20.0)}
        assert [row["actual"] for row in data.where(loss="ce")] == [10.0 ** (1 + i % 2) + i for i in range(EXAMPLES)]

    def test_greedy_answers_without_decisions(self, tmp_path: Path):
        data = predicted(one(tmp_path, lambda _, row: row.update(answer="-1.5" if row["index"] else None), decided=False)).data
        found = {(row["index"] == 0, row["predicted"], row["low"]) for row in data.where()}
        assert found == {(True, None, None), (False, -1.5, None)}

    def test_as_many_points_as_a_page_holds(self, tmp_path: Path):
        data = predicted(one(tmp_path, examples=4 * MOST_POINTS)).data
        assert len(data.distinct("index")) == MOST_POINTS
        assert data.distinct("index")[-1] > MOST_POINTS  # not the first ones

    @pytest.mark.parametrize("gold", ["12:30", "(1, 2)", "none"])
    def test_answers_that_are_not_one_number(self, tmp_path: Path, gold: str):
        assert predicted(one(tmp_path, lambda _, row: row.update(gold=gold))).data.rows == []

    def test_a_prediction_far_away_stays_in_the_figure(self, tmp_path: Path):
        setup = one(tmp_path, lambda _, row: row.update(answer="9" * 30 if row["index"] == 5 else row["gold"]), decided=False)
        plan = predicted(setup)
        axes = plan.draw(plan.data).axes[0]
        assert axes.get_ylim()[1] < 1000
        assert max(axes.lines[-1].get_ydata()) == pytest.approx(axes.get_ylim()[1])


class TestIdentical:
    """Losses whose answers are the same, with every seed and decision."""

    def test_answers(self, tmp_path: Path):
        answer = {"ce": "8", "emd": "7", "smmd": "7"}
        setup = one(tmp_path, lambda label, row: row.update(answer=answer[label] if row["index"] == 3 else "7"), decided=False)
        assert re.fullmatch(
            r"The results of (emd and smmd|smmd and emd) are identical: the same .*every seed\.", identical(setup)
        )
        assert identical(setup) in write_report(tmp_path).read_text(encoding="utf-8")

    def test_outputs_without_a_number_must_be_the_same_text(self, tmp_path: Path):
        def change(label: str, row: dict[str, Any]) -> None:
            row.update(answer=None, output="?" if label == "emd" else "!")

        assert re.search(r"of (ce and smmd|smmd and ce) are", identical(one(tmp_path, change, decided=False)))

    def test_another_decision_or_number_of_seeds_differs(self, tmp_path: Path):
        assert identical(one(tmp_path / "a")) == ""  # greedy answers are the same, the scores of the rules are drawn
        one(tmp_path / "b", seeds=2, decided=False)
        shutil.rmtree(tmp_path / "b" / "cells" / "emd-1")
        assert re.search(r"of (ce and smmd|smmd and ce) are", identical(setup_of(tmp_path / "b")))


class TestSubject:
    @pytest.mark.parametrize(
        ("config", "cost", "text"),
        [
            ({}, {}, "regression (tiny, not pre-trained)"),
            ({}, {"parameters": 78768}, "regression (tiny, 78,768 parameters, not pre-trained)"),
            (
                {"data": "my/cars.csv", "task_settings": {"target": "price"}},
                {},
                "price in cars.csv (tiny, not pre-trained)",
            ),
            ({"data": "my/rows.jsonl"}, {}, "regression (rows.jsonl, tiny, not pre-trained)"),
            ({"model": "smollm2"}, {"parameters": 134515008}, "regression (smollm2, 134,515,008 parameters, pre-trained)"),
        ],
    )
    def test_names(self, tmp_path: Path, config: dict[str, Any], cost: dict[str, Any], text: str):
        one(tmp_path, decided=False)
        reconfigure(tmp_path, **config)
        reconfigure(tmp_path, "result.json", cost=cost)
        assert subject(setup_of(tmp_path)) == text


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")


def in_browser(page: Path, script: str) -> dict[str, Any]:
    """Open a page in a dark frame of 400 px, and return what a script finds in the document ``page`` of the ``frame``."""
    test = """<script>
      const frame = document.querySelector("iframe");
      const shown = each => each.getClientRects().length > 0;
      frame.addEventListener("load", () => {
        const page = frame.contentDocument, found = {};
        SCRIPT
        document.querySelector("p").textContent = JSON.stringify(found);
      });
      frame.srcdoc = PAGE;
    </script>"""
    text = json.dumps(page.read_text(encoding="utf-8")).replace("</", "<\\/")
    around = page.with_name("frame.html")
    around.write_text(
        '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><p></p>'
        '<iframe width="400" height="800" style="border: 0"></iframe>' + test.replace("SCRIPT", script).replace("PAGE", text),
        encoding="utf-8",
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.with_name('profile')}"]
    flags += ["--virtual-time-budget=3000", "--blink-settings=preferredColorScheme=0", "--dump-dom"]
    done = subprocess.run(["chromium", *flags, around.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(re.search(r"<p>(.*?)</p>", done.stdout)[1])
    return found


@needs_chromium
def test_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At 400 px the page does not scroll sideways; sorting and hiding work; dark is dark."""
    from numerate.lab.report import chapters

    draw = chapters._draw
    monkeypatch.setattr(
        chapters, "_draw", lambda plans, anchor: draw([plan for plan in plans if plan.name == "predictions"], anchor)
    )
    script = """
        const root = page.documentElement, head = page.querySelectorAll("thead th")[1];
        const rows = () => [...page.querySelector("table").tBodies[0].rows].slice(1);
        const column = () => rows().map(row => parseFloat(row.cells[1].textContent));
        found.width = root.scrollWidth; found.paper = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
        found.closed = !page.querySelector("#contents").open;
        head.querySelector("button").click(); found.up = column();
        head.querySelector("button").click(); found.down = column();
        const box = page.querySelectorAll("#losses input")[1]; box.click();
        found.hidden = [...page.querySelectorAll(`[data-loss="${box.value}"]`)].filter(shown).length;
        found.others = [...page.querySelectorAll(`svg [data-loss]`)].filter(shown).length;
        found.tips = page.querySelectorAll("svg [data-tip]").length;
    """
    found = in_browser(write_report(one(tmp_path, seeds=1).first.folder.parent.parent), script)
    assert found["width"] <= 400
    assert found["closed"]
    assert found["paper"] == "rgb(22, 24, 28)"
    assert found["up"] == sorted(found["up"])
    assert found["down"] == found["up"][::-1]
    assert not any(map(math.isnan, found["up"]))
    assert (found["hidden"], found["others"] > 0, found["tips"]) == (0, True, 3 * (EXAMPLES + 1))


@needs_chromium
def test_a_hidden_loss_leaves_the_pictures_of_the_others(tmp_path: Path):
    """Its box goes, and its column; the examples stay, with the boxes of the others."""
    make_run(tmp_path, "grounding", TASKS["grounding"].measures, CASES["every second example, another one by rule"], seeds=1)
    add_pictures(tmp_path, output="[0.1, 0.2, 0.3, 0.4]")
    script = """
        const every = tag => [...page.querySelectorAll(`.examples ${tag}`)];
        const count = () => ["img", "polygon", "th"].map(tag => every(tag).filter(shown).length);
        found.before = count();
        page.querySelectorAll("#losses input")[1].click();
        found.after = count();
        const [picture, drawing] = ["img", "svg"].map(tag => page.querySelector(`.pictured ${tag}`).getBoundingClientRect());
        found.same = ["x", "y", "width", "height"].every(side => Math.abs(picture[side] - drawing[side]) < 1);
    """
    found = in_browser(write_report(tmp_path), script)
    (pictures, boxes, heads), (left, fewer, columns) = found["before"], found["after"]
    assert (left, fewer, columns) == (pictures, boxes - pictures, heads - 1)
    assert pictures > 0
    assert boxes >= 2 * pictures
    assert found["same"]
