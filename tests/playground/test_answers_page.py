"""A model's answer in a real browser: what is shown is what the library computes."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra train is not installed")

from numerate.playground import answer
from numerate.playground.answer import AnswerRequest

ROW = {"carat": "1.01", "cut": "Premium", "color": "E", "clarity": "SI1"}


def lead(visit, tab: str) -> str:
    return visit.page.locator(f"#tab-{tab} .answer").inner_text()


def decided(visit) -> dict[str, str]:
    rows = visit.page.locator("#tab-answer .decisions tbody tr").all()
    return {row.get_attribute("data-metric"): row.locator(".decided").inner_text() for row in rows}


class TestAnswer:
    def test_shown_values_are_the_librarys(self, visit):
        visit.open(f"answer?cells={quote(json.dumps(ROW))}")
        visit.settle()
        computed = answer.compute(AnswerRequest(cells=ROW), Path("nowhere"))
        assert decided(visit) == {one["metric"]: one["text"] for one in computed["decisions"]}
        for name in ("median", "mean", "mode"):
            assert visit.page.locator(f"#tab-answer [data-mark={name}]").text_content() == f"{name} {computed[name]['text']}"
        missed = visit.page.locator("#tab-answer [data-share=not_searched] b").inner_text()
        assert float(missed.removesuffix(" %")) == float(f"{100 * computed['shares']['not_searched']:.3g}")
        assert visit.page.locator("#tab-answer .bar-of-answer").count() > 10
        assert visit.problems == []

    def test_a_test_row_is_chosen_and_the_interval_follows_its_slider(self, visit):
        visit.open("answer")
        visit.settle()
        visit.page.locator("#tab-answer .presets button").nth(1).click()
        visit.settle()
        assert "The true price of this row is" in lead(visit, "answer")
        assert visit.page.locator("#tab-answer [data-mark=truth]").count() == 1
        before = lead(visit, "answer")
        level = visit.page.get_by_label("interval")
        level.focus()
        for _ in range(30):
            visit.page.keyboard.press("ArrowLeft")
        visit.settle()
        assert "60 % of the probability" in lead(visit, "answer")
        assert lead(visit, "answer") != before
        visit.page.wait_for_url("**/#answer?*level=0.6")

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
