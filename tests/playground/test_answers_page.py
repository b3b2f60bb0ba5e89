"""In a real browser: a model's answer, a tokenizer that is uploaded, and reports in their sandbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra train is not installed")

from numerate.lab.models.loading import tiny_tokenizer
from numerate.playground import answer
from numerate.playground.answer import AnswerRequest
from numerate.playground.models import SHIPPED_NAME

ROW = {"carat": "1.01", "cut": "Premium", "color": "E", "clarity": "SI1"}
HOSTILE = """<!doctype html><title>r</title><p id="said">nothing</p><script>
const said = [];
for (const reach of ["parent.document.title", "document.cookie", "localStorage.length", "parent.location.href"]) {
  try { said.push(reach + " reached " + new Function("return " + reach)()); } catch (error) { said.push("stopped"); }
}
fetch("/api").then(() => said.push("fetched"), () => said.push("stopped")).then(() => {
  document.getElementById("said").textContent = said.join(", ");
});
</script>"""

PLAIN = '<p>a plain report</p><a download="report.csv" href="data:text/csv;charset=utf-8,loss,error">CSV</a>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three comparisons: a plain one, one whose report attacks the page, and one whose name is markup."""
    folder = tmp_path_factory.mktemp("runs")
    for day, (name, page) in enumerate([("plain", PLAIN), ("hostile", HOSTILE), ("<b>bold", "<p>bold</p>")], 1):
        (folder / name).mkdir()
        (folder / name / "report.html").write_text(page)
        data = {"answer": f"<i>{name}</i> is better.", "experiment": {"created": f"2026-01-0{day}T00:00:00+00:00"}}
        (folder / name / "report.json").write_text(json.dumps(data))
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """A playground with these runs, in place of the one without any."""
    from numerate.playground.server import create_server, listening

    with listening("127.0.0.1", 0) as (listener, opened):
        server = create_server("127.0.0.1", runs)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield opened
        server.should_exit = True
        thread.join(30)


def lead(visit, tab: str) -> str:
    return visit.page.locator(f"#tab-{tab} .answer").inner_text()


def decided(visit) -> dict[str, str]:
    rows = visit.page.locator("#tab-answer .decisions tbody tr").all()
    return {row.get_attribute("data-metric"): row.locator(".decided").inner_text() for row in rows}


class TestAnswer:
    def test_shown_values_are_the_librarys(self, visit, runs):
        visit.open(f"answer?cells={quote(json.dumps(ROW))}")
        visit.settle()
        computed = answer.compute(AnswerRequest(cells=ROW), runs)
        assert decided(visit) == {one["metric"]: one["text"] for one in computed["decisions"]}
        for name in ("median", "mean", "mode"):
            assert visit.page.locator(f"#tab-answer [data-mark={name}]").text_content() == f"{name} {computed[name]['text']}"
        missed = visit.page.locator("#tab-answer [data-share=not_searched] b").inner_text()
        assert float(missed.removesuffix(" %")) == float(f"{100 * computed['shares']['not_searched']:.3g}")
        assert visit.page.locator("#tab-answer .bar-of-answer").count() > 10
        assert visit.problems == []

    def test_the_interval_follows_its_slider(self, visit):
        visit.open("answer")
        visit.settle()
        before = lead(visit, "answer")
        level = visit.page.get_by_label("interval")
        level.focus()
        for _ in range(30):
            visit.page.keyboard.press("ArrowLeft")
        visit.settle()
        assert "60 % of the probability" in lead(visit, "answer")
        assert lead(visit, "answer") != before
        visit.page.wait_for_url("**/#answer?level=0.6")

    def test_a_field_changes_the_answer_and_the_address_restores_it(self, visit):
        visit.open(f"answer?cells={quote(json.dumps(ROW | {'carat': '0.31'}))}")
        visit.settle()
        before = decided(visit)
        visit.page.locator("#tab-answer [name=carat]").fill("2.01")
        visit.page.locator("#tab-answer [name=cut]").select_option(label="Ideal")
        visit.settle()
        after = decided(visit)
        assert float(after["absolute_error"]) > 5 * float(before["absolute_error"])
        assert "The true price" not in lead(visit, "answer")  # no row of the table
        visit.open(visit.where())
        visit.settle()
        assert decided(visit) == after
        assert visit.page.locator("#tab-answer [name=carat]").input_value() == "2.01"

    def test_a_test_row_is_chosen(self, visit):
        visit.open("answer")
        visit.settle()
        visit.page.locator("#tab-answer .presets button").nth(1).click()
        visit.settle()
        assert "The true price of this row is" in lead(visit, "answer")
        assert visit.page.locator("#tab-answer [data-mark=truth]").count() == 1

    def test_a_line_is_typed(self, visit):
        visit.open("answer")
        visit.settle()
        visit.page.get_by_label("or in your own words").fill("1.01 Premium E SI1")
        visit.settle()
        typed = decided(visit)
        visit.open(f"answer?cells={quote(json.dumps(ROW))}")
        visit.settle()
        assert decided(visit) == typed

    @pytest.mark.parametrize("where", ["answer?model=nowhere", "answer?width=9999", "answer?cells=%7B%22a%22%3A%221%22%7D"])
    def test_a_bad_question_gets_a_message(self, visit, where):
        visit.open(where)
        visit.settle()
        assert visit.page.locator("#tab-answer .message").is_visible()
        visit.page.get_by_role("button", name="start over").click()
        if "width" in where:
            visit.page.locator("#tab-answer [name=width]").fill("64")
        visit.settle()
        assert visit.page.locator("#tab-answer .message").is_hidden()
        assert visit.page.locator("#tab-answer [name=model]").input_value() == SHIPPED_NAME


class TestTokenizer:
    @pytest.fixture
    def three(self, tmp_path: Path) -> Path:
        (tmp_path / "three.json").write_text(tiny_tokenizer(3).backend_tokenizer.to_str(), encoding="utf-8")
        return tmp_path / "three.json"

    def tokens(self, visit) -> list[str]:
        return visit.page.locator("#tab-tokenizer .reading").first.locator(".piece b").all_inner_texts()

    def test_a_file_is_uploaded(self, visit, three):
        visit.open("tokenizer")
        visit.settle()
        assert self.tokens(visit) == [*"12345.678"]
        visit.page.set_input_files("input[type=file]", three)
        visit.page.wait_for_selector("text=your file: chunks of 1-3 digits")
        assert self.tokens(visit) == ["123", "45", ".", "678"]
        visit.page.get_by_label("texts, one per line").fill("2718281\n-3")
        visit.page.wait_for_selector(".reading .text:text('2718281')")
        assert self.tokens(visit) == ["271", "828", "1"]
        visit.page.get_by_role("button", name="Close the file").click()
        visit.settle()
        assert self.tokens(visit) == [*"2718281"]
        assert visit.problems == []

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "not a tokenizer.json"),
            (b'{"model": 1}', "cannot be inspected"),
            (b"\x1f\x8b\x08", "compressed"),
            (b"{" + b" " * (32 << 20), "too large"),
        ],
        ids=["empty", "wrong", "compressed", "large"],
    )
    def test_a_bad_upload_gets_a_message_and_the_page_lives_on(self, visit, three, content, message):
        visit.open("tokenizer")
        visit.settle()
        bad = three.with_name("<b>bad.json")
        bad.write_bytes(content)
        visit.page.set_input_files("input[type=file]", bad)
        shown = visit.page.locator("#tab-tokenizer .message")
        shown.wait_for()
        assert message in shown.inner_text()
        assert "<b>bad.json" in shown.inner_text()  # as text
        assert self.tokens(visit) == [*"12345.678"]  # the old picture stays
        visit.page.set_input_files("input[type=file]", three)
        visit.page.wait_for_selector("text=your file: chunks of 1-3 digits")
        assert shown.is_hidden()

    def test_another_tokenizer_is_chosen(self, visit):
        visit.open("tokenizer")
        visit.settle()
        visit.page.locator("#tab-tokenizer [name=tokenizer]").select_option("one to three digits")
        visit.settle()
        assert self.tokens(visit) == ["123", "45", ".", "678"]
        visit.page.wait_for_url("**/#tokenizer?name=one%20to%20three%20digits")
        assert visit.page.locator("#tab-tokenizer .advice tbody tr").count() > 10


class TestResults:
    def test_runs_are_listed_and_a_report_opens_inside(self, visit):
        visit.open("results")
        visit.settle()
        rows = visit.page.locator("#tab-results tbody tr")
        assert rows.locator("button").all_inner_texts() == ["<b>bold", "hostile", "plain"]
        assert "<i>plain</i> is better." in rows.nth(2).inner_text()
        visit.page.get_by_role("button", name="plain").click()
        visit.settle()
        assert visit.page.frame_locator("#tab-results iframe").locator("p").inner_text() == "a plain report"
        visit.page.wait_for_url("**/#results?name=plain")
        assert visit.page.get_attribute("#tab-results iframe", "sandbox") == "allow-scripts allow-downloads"

    def test_a_table_of_a_report_is_downloaded(self, visit):
        visit.open("results?name=plain")
        visit.settle()
        with visit.page.expect_download() as download:
            visit.page.frame_locator("#tab-results iframe").get_by_role("link", name="CSV").click()
        assert download.value.suggested_filename == "report.csv"
        assert Path(download.value.path()).read_text() == "loss,error"

    def test_a_report_cannot_reach_the_page(self, visit):
        visit.open("results?name=hostile")
        visit.settle()
        said = visit.page.frame_locator("#tab-results iframe").locator("#said")
        visit.page.wait_for_function("() => document.querySelector('#tab-results iframe')")
        said.filter(has_text="stopped").wait_for()
        assert said.inner_text() == "stopped, stopped, stopped, stopped, stopped"
        assert visit.page.title().startswith("Your results")

    def test_a_report_opens_on_a_page_of_its_own(self, visit):
        visit.open("results?name=plain")
        visit.settle()
        with visit.page.context.expect_page() as opened:
            visit.page.get_by_role("link", name="Open the report").click()
        opened.value.wait_for_load_state()
        assert opened.value.locator("p").inner_text() == "a plain report"

    @pytest.mark.parametrize("name", ["..", "/etc", "../runs", "nowhere"])
    def test_another_name_gets_a_message(self, visit, name):
        visit.open(f"results?name={quote(name, safe='')}")
        visit.settle()
        assert "is not a run" in visit.page.locator("#tab-results .message").inner_text()
        assert visit.page.locator("#tab-results iframe").count() == 0
