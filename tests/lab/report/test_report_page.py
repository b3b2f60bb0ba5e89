"""The page of every task: stands alone, readable in both colour schemes, on a phone, printed and without script."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from test_report_missing_numbers import CASES, EXAMPLES, make_run

from numerate.lab.data import TASKS
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup, setups
from numerate.lab.report.answer import identical, subject
from numerate.lab.report.predicted import MOST_POINTS, draw_points, points, residuals
from numerate.lab.report.records import read_run
from numerate.lab.report.svg import loss_key
from numerate.plotting import palette

LABELS = ("ce", "emd", "smmd")
_LOADS = {"src", "href", "xlink:href", "action", "data", "poster", "srcset"}


class ReportPage(HTMLParser):
    """Elements of a page, each with its attributes, and the tag around it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.text = file.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, tuple(self._open)))
        if tag not in ("meta", "img", "input", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def all(self, tag: str, within: str = "html") -> list[dict[str, str]]:
        """Return the attributes of every element with this tag."""
        return [given for name, given, around in self.elements if name == tag and (within in around or within == tag)]

    @property
    def style(self) -> str:
        return re.search(r"<style>(.*?)</style>", self.text, re.DOTALL)[1]


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

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(factor * part for factor, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module", params=TASKS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    """The page of made-up runs of a task, with decisions, and for a visual one with pictures."""
    kind, folder = TASKS[request.param], tmp_path_factory.mktemp(request.param)
    settings: dict[str, Any] = {"seeds": 1, "splits": ["interpolate"], "fallback": not kind.visual, "examples": 2 * EXAMPLES}
    make_run(folder, request.param, kind.measures, CASES["every second example, another one by rule"], **settings)
    if kind.visual:
        add_pictures(folder)
    return ReportPage(write_report(folder))


def add_pictures(folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (20, 10), "red").save(folder / "a.png")
    for file in folder.glob("cells/*/predictions.jsonl"):
        rows = [json.loads(line) | {"image": "a.png"} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


class TestEveryTask:
    def test_no_request_leaves_the_page(self, page: ReportPage):
        for tag, given, _ in page.elements:
            for name in _LOADS & given.keys():
                assert given[name].startswith(("#", "data:")), (tag, given[name])
        assert not re.search(r"https?://|@import|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|url\((?!#)", page.text)
        (policy,) = [given["content"] for given in page.all("meta") if given.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")

    def test_contents_lead_to_every_section(self, page: ReportPage):
        ids = [given["id"] for _, given, _ in page.elements if "id" in given]
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
        assert ".scroll { overflow-x: auto; }" in page.style

    def test_losses_can_be_hidden(self, page: ReportPage):
        boxes = [given["value"] for given in page.all("input", within="fieldset")]
        assert boxes == [loss_key(label) for label in sorted(LABELS, key=boxes_order(page))]
        (chooser,) = page.all("fieldset")
        assert "hidden" in chooser  # of no use without script
        named = {given["data-loss"] for _, given, around in page.elements if "data-loss" in given and "table" in around}
        assert named == set(boxes)

    def test_colours_are_variables(self, page: ReportPage):
        style = re.sub(r"--[\w-]+: #[0-9a-f]{6};", "", page.style)
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?!-)|rgb|white(?!-)|black", re.sub(r"#(losses|tip|contents)", "", style))
        marked = re.sub(
            r'"data:[^"]*"|href="#[^"]*"|url\(#[^)]*\)|<script.*?</script>|<style.*?</style>', "", page.text, flags=re.DOTALL
        )
        assert not re.search(r"#[0-9a-fA-F]{6}\b", marked)
        used = set(re.findall(r"var\(--([\w-]+)\)", page.text))
        assert used <= palette.ALL.keys()

    def test_dark_and_printed(self, page: ReportPage):
        both = schemes(page.style)
        assert both["light"].keys() == both["dark"].keys() == palette.ALL.keys()
        assert "color-scheme: light dark" in block(page.style, ":root")
        printed = block(page.style, "@media print")
        assert re.search(r"[^}]*\bnav\b[^}]*\{ display: none; \}", printed)
        assert "color-scheme: light" in printed
        for whole in ("figure", "tr"):
            assert re.search(rf"(^|[ ,]){whole}[ ,][^}}]*break-inside: avoid", printed, re.MULTILINE)

    def test_lead_names_task_and_model(self, page: ReportPage):
        lead = re.search(r'<p class="lead">(.*?)</p>', page.text, re.DOTALL)[1]
        task = re.search(r"<dt>task</dt><dd><bdi>(.*?)</bdi>", page.text)[1]
        assert f"{task} (tiny, not pre-trained)" in lead


def boxes_order(page: ReportPage) -> Any:
    """Losses are listed as in the tables: the baseline first, then the best."""
    rows = [given["data-loss"] for _, given, around in page.elements if "data-loss" in given and "table" in around]
    order = list(dict.fromkeys(rows))
    return lambda label: order.index(loss_key(label))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The colours of a page in both schemes."""
    folder = make_run(tmp_path_factory.mktemp("colours"), "mine", ("exact",), CASES["no number of a loss"], seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numerate.lab.report.chapters._draw", lambda figures, anchor: ({}, []))
        return schemes(ReportPage(write_report(folder)).style)


class TestContrast:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("background", palette.BACKGROUNDS)
    def test_text(self, both: dict[str, dict[str, str]], scheme: str, background: str):
        colours = both[scheme]
        low = {name: contrast(colours[name], colours[background]) for name in palette.TEXTS}
        assert min(low.values()) >= 4.5, low

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("background", palette.BACKGROUNDS)
    def test_graphics(self, both: dict[str, dict[str, str]], scheme: str, background: str):
        colours = both[scheme]
        low = {name: contrast(colours[name], colours[background]) for name in ("ink", "grey", *palette.GRAPHICS)}
        assert min(low.values()) >= 3, low

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_numbers_on_bars(self, both: dict[str, dict[str, str]], scheme: str):
        from numerate.lab.report.figures import _SHADES, _text_on

        names = {both["light"][name]: name for name in both["light"]}
        for shade in _SHADES:
            text, bar = (both[scheme][names[colour]] for colour in (_text_on(shade), shade))
            assert contrast(text, bar) >= 4.5, (shade, text)

    def test_every_pair_is_tested(self):
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


def one(folder: Path, **settings: Any) -> Setup:
    options: dict[str, Any] = {"seeds": 1, "splits": ["interpolate"], "fallback": False, **settings}
    make_run(folder, "regression", ("relative_error", "absolute_error"), lambda *_: "number", **options)
    (setup,) = setups(read_run(folder))
    return setup


def rewrite(folder: Path, change: Any) -> Setup:
    """Change every record: ``change(label, row)``."""
    for file in folder.glob("cells/*/predictions.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            change(file.parent.name.split("-")[0], row)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (setup,) = setups(read_run(folder))
    return setup


class TestPredicted:
    def test_medians_with_intervals(self, tmp_path: Path):
        data = points(one(tmp_path))
        assert len(data.where(loss="smmd")) == EXAMPLES
        assert {(row["predicted"], row["low"], row["high"]) for row in data.where()} == {(7.0, 1.0, 20.0)}
        assert [row["actual"] for row in data.where(loss="ce")] == [10.0 ** (1 + i % 2) + i for i in range(EXAMPLES)]

    def test_greedy_answers_without_decisions(self, tmp_path: Path):
        one(tmp_path, decided=False)
        data = points(rewrite(tmp_path, lambda label, row: row.update(answer="-1.5" if row["index"] else None)))
        assert {(row["index"] == 0, row["predicted"], row["low"]) for row in data.where()} == {
            (True, None, None),
            (False, -1.5, None),
        }

    def test_as_many_points_as_a_page_holds(self, tmp_path: Path):
        data = points(one(tmp_path, examples=4 * MOST_POINTS))
        assert len(data.distinct("index")) == MOST_POINTS
        assert data.distinct("index")[-1] > MOST_POINTS  # not the first ones

    def test_residuals_are_those_of_each_quarter_of_the_actual_numbers(self, tmp_path: Path):
        one(tmp_path, seeds=2)
        off = {"ce": 3, "emd": -2, "smmd": 0}
        data = residuals(rewrite(tmp_path, lambda label, row: row.update(answer=str(int(row["gold"]) + off[label]))))
        assert {(row["loss"], row["residual"], row["low"], row["high"]) for row in data.where()} == {
            (label, value, value, value) for label, value in off.items()
        }
        assert [row["answers"] for row in data.where(loss="ce")] == [2 * EXAMPLES / 4] * 4
        ends = [(row["actual_from"], row["actual_to"]) for row in data.where(loss="ce")]
        assert (ends[0][0], ends[-1][1]) == (10, 123)

    @pytest.mark.parametrize("gold", ["12:30", "(1, 2)", "none"])
    def test_answers_that_are_not_one_number(self, tmp_path: Path, gold: str):
        one(tmp_path)
        setup = rewrite(tmp_path, lambda label, row: row.update(gold=gold))
        assert points(setup) is None
        assert residuals(setup) is None

    def test_a_prediction_far_away_stays_in_the_figure(self, tmp_path: Path):
        one(tmp_path, decided=False)
        setup = rewrite(tmp_path, lambda label, row: row.update(answer="9" * 30 if row["index"] == 5 else row["gold"]))
        from numerate.lab.report.drawing import styles

        figure = draw_points(points(setup), styles(LABELS, ["ce"]))
        axes = figure.axes[0]
        assert axes.get_ylim()[1] < 1000
        assert max(axes.lines[-1].get_ydata()) == pytest.approx(axes.get_ylim()[1])


class TestIdentical:
    def test_losses_with_the_same_answers(self, tmp_path: Path):
        one(tmp_path, seeds=2, decided=False)
        setup = rewrite(tmp_path, lambda label, row: row.update(answer="8" if label == "ce" and row["index"] == 3 else "7"))
        assert [set(group) for group in identical(setup)] == [{"emd", "smmd"}]
        said = "are identical: the same answers to all 24 examples with every seed."
        assert identical_sentence(setup).endswith(said)
        assert said in write_report(tmp_path).read_text(encoding="utf-8")

    def test_outputs_without_a_number_must_be_the_same_text(self, tmp_path: Path):
        one(tmp_path, decided=False)
        setup = rewrite(tmp_path, lambda label, row: row.update(answer=None, output="?" if label == "emd" else "!"))
        assert [set(group) for group in identical(setup)] == [{"ce", "smmd"}]

    def test_another_decision_differs(self, tmp_path: Path):
        setup = one(tmp_path)  # greedy answers are the same, the scores of the rules are drawn
        assert identical(setup) == []
        assert identical_sentence(setup) == ""

    def test_another_number_of_seeds_differs(self, tmp_path: Path):
        one(tmp_path, seeds=2, decided=False)
        shutil.rmtree(tmp_path / "cells" / "emd-1")
        (setup,) = setups(read_run(tmp_path))
        assert [set(group) for group in identical(setup)] == [{"ce", "smmd"}]


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
        for file in tmp_path.glob("cells/*/config.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | config))
        for file in tmp_path.glob("cells/*/result.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"cost": cost}))
        (setup,) = setups(read_run(tmp_path))
        assert subject(setup) == text


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
    assert (found["hidden"], found["others"] > 0, found["tips"]) == (0, True, 3 * EXAMPLES)


@needs_chromium
def test_a_hidden_loss_leaves_the_pictures_of_the_others(tmp_path: Path):
    """Its box goes, and its column; the examples stay, with the boxes of the others."""
    make_run(tmp_path, "grounding", TASKS["grounding"].measures, CASES["every second example, another one by rule"], seeds=1)
    add_pictures(tmp_path)
    for file in tmp_path.glob("cells/*/predictions.jsonl"):
        rows = [json.loads(line) | {"output": "[0.1, 0.2, 0.3, 0.4]"} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
