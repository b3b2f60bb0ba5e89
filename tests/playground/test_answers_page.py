"""A model's answer in a real browser: what is shown is what the library computes."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra lab is not installed")

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
        for one in computed["answers"]:
            assert visit.page.locator(f"#tab-answer [data-rule={one['rule']}] .decided").inner_text() == one["text"]
            if one["rule"] in ("greedy", "median"):
                mark = visit.page.locator(f"#tab-answer [data-mark={one['rule']}]")
                assert mark.text_content() == f"{one['rule']} {one['text']}"
        missed = visit.page.locator("#tab-answer [data-share=not_searched] b").inner_text()
        assert float(missed.removesuffix("\u00a0%")) == float(f"{100 * computed['shares']['not_searched']:.3g}")
        assert visit.page.locator("#tab-answer .bar-of-answer").count() > 10
        assert visit.problems == []

    def test_a_test_row_is_chosen_and_the_interval_follows_its_slider(self, visit):
        visit.open("answer")
        visit.settle()
        visit.page.locator("#tab-answer .presets button").nth(1).click()
        visit.settle()
        assert "The true price, " in lead(visit, "answer")
        assert visit.page.locator("#tab-answer [data-mark=truth]").count() == 1
        before = lead(visit, "answer")
        level = visit.page.get_by_label("interval")
        level.focus()
        for _ in range(30):
            visit.page.keyboard.press("ArrowLeft")
        visit.settle()
        assert "60\u00a0% interval" in lead(visit, "answer")
        assert lead(visit, "answer") != before
        visit.page.wait_for_url("**/#answer?*level=0.6")

    def test_the_decision_rule_moves_the_mark(self, visit):
        visit.page.emulate_media(reduced_motion="reduce")
        visit.open("answer?rule=greedy")
        visit.settle()
        answers = {one["rule"]: one for one in answer.compute(AnswerRequest(), Path("nowhere"))["answers"]}
        mark = visit.page.locator("#tab-answer [data-chosen]")
        places, values = [], []
        for rule in ("greedy", "median"):
            assert mark.get_attribute("data-chosen") == answers[rule]["text"]
            assert answers[rule]["text"] in lead(visit, "answer")
            places.append(mark.bounding_box()["x"])
            values.append(answers[rule]["value"])
            visit.page.get_by_role("radio", name=rule).focus()
            visit.page.keyboard.press("ArrowRight")  # radio buttons: by keyboard too
            visit.settle()
        assert values[0] < values[1]
        assert places[0] < places[1]
        assert visit.where() == "answer?rule=mean"

    def test_an_answer_far_away_does_not_stretch_the_picture(self, visit):
        """The model writes 32 digits for this prompt, and its distribution is near 1,000."""
        line = "9" * 60
        first = answer.compute(AnswerRequest(line=line), Path("nowhere"))
        greedy, median = (one["value"] for one in first["answers"][:2])
        highest = max(bar["high"] for bar in first["bars"] if bar["high"] is not None)
        assert greedy > 10 * highest > median
        visit.open(f"answer?line={line}")
        visit.settle()
        assert visit.page.locator("#tab-answer [data-mark=greedy]").text_content().endswith(" →")
        widths = [bar.bounding_box()["width"] for bar in visit.page.locator("#tab-answer .bar-of-answer").all()]
        assert max(widths) > 5

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
