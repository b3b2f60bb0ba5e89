"""The tabs \"a complete number\" and \"a soft label\" in a real browser: shown values are the library's."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from numerate import LOSSES
from numerate.formats import KINDS
from numerate.playground import label, number


def four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def percent(share: float) -> str:
    return f"{float(f'{100 * share:.3g}'):g} %" if share >= 1e-5 else "< 0.001 %"


def shown_losses(visit) -> dict[str, list[float]]:
    """The values of A and B by the name of the loss; without those that see nothing."""
    rows = visit.page.locator("#tab-number article.loss:not(.unusable)").all()
    return {row.get_attribute("data-loss"): [float(text) for text in row.locator(".value").all_inner_texts()] for row in rows}


def expected_losses(**state) -> dict[str, list[float]]:
    rows = number.compute(number.NumberRequest(**state))["losses"]
    return {row["name"]: [four_digits(value) for value in row["values"]] for row in rows if row["values"]}


def shown_tree(visit) -> list[str]:
    """The branches in the text alternative of the tree."""
    told = visit.page.get_attribute("#tab-label .tree svg", "aria-label")
    return told.removeprefix("Tree of tokens. ").replace("\u00a0", " ").split("; ")


def answer_line(visit, tab: str) -> str:
    return visit.page.locator(f"#tab-{tab} .answer").inner_text().replace("\u00a0", " ")


class TestNumber:
    def test_shown_values_are_the_librarys(self, visit):
        visit.open("number?target=351&first=349&second=451&certainty=0.8&every=true")
        visit.settle()
        wanted = expected_losses(target="351", first="349", second="451", certainty=0.8, every=True)
        assert set(wanted) >= {"cross-entropy", "ntil_released", *LOSSES}
        assert shown_losses(visit) == wanted

    def test_the_example_of_the_paper(self, visit):
        visit.open("number?target=7&first=8&second=9")
        visit.page.get_by_role("button", name="0.98: 1.01 or 1.98").click()
        visit.settle()
        assert answer_line(visit, "number") == "1.01 is closer to the target. Of these 6 losses, 1 prefers it: number."
        said = visit.page.locator("#tab-number [data-loss=ntil_released] .sees").inner_text()
        assert said == "prefers 1.98, although 1.01 is closer."
        rows = visit.page.locator("#tab-number .tokens tr").all()
        assert [row.locator(".token").all_inner_texts() for row in rows] == [[*"0.98■"], [*"1.01■"], [*"1.98■"]]
        assert [place for place in rows[0].locator(".place").all_inner_texts() if place] == ["1", "0.1", "0.01"]
        assert rows[1].locator(".differs .token").all_inner_texts() == [*"101"]
        assert rows[2].locator(".differs .token").all_inner_texts() == ["1"]
        assert unquote(visit.where()) == "number"  # the first view has no state in its address

    def test_typed_numbers_and_the_slider_change_the_values(self, visit):
        visit.open("number")
        visit.page.get_by_label("tokenizer").select_option("three")
        visit.page.get_by_label("prediction A").fill("0.9712")
        visit.page.get_by_label("probability of each token").focus()
        for _ in range(4):
            visit.page.keyboard.press("ArrowLeft")
        visit.settle()
        assert unquote(visit.where()) == "number?first=0.9712&tokenizer=three&certainty=0.97"
        assert shown_losses(visit) == expected_losses(first="0.9712", certainty=0.97, tokenizer="three")
        assert visit.page.locator("#tab-number .notes p").first.inner_text().startswith("A has ")

    def test_the_target_in_each_format(self, visit):
        visit.open("number?target=12345&tokenizer=three")
        formats = visit.page.locator("#tab-number .formats")
        assert not formats.locator("table").is_visible()
        formats.get_by_text("The target in each format").click()
        rows = formats.locator("tr").all()
        assert [row.locator("th").inner_text() for row in rows] == [*KINDS]
        shown = {row.locator("th").inner_text(): row.locator(".token").all_inner_texts() for row in rows}
        assert shown["plain"] == ["123", "45"]
        assert shown["grouped"] == ["12", ",", "345"]
        assert shown["spaced"] == [*"1␣2␣3␣4␣5"]


class TestLabel:
    def test_the_first_digit_of_99900(self, visit):
        visit.open("label")
        branches = label.compute(label.LabelRequest())["tree"]["branches"]
        wanted = {branch["tokens"][0]: percent(branch["probability"]) for branch in branches}
        assert set(wanted) == {"9", "1", "8"}
        shown = dict(re.fullmatch(r"level 1 (\d)(?: …)?: (.*)", line).groups() for line in shown_tree(visit) if "level 1" in line)
        assert shown == wanted
        first = ", ".join(f"{token} ({share})" for token, share in wanted.items())
        assert answer_line(visit, "label").endswith(f"The first token is {first}.")

    def test_drawing_shows_frequencies(self, visit):
        visit.open("label")
        visit.page.get_by_role("button", name="Sample").click()
        for _ in range(3):
            visit.page.get_by_role("button", name="10 times as many").click()
        visit.settle()
        assert unquote(visit.where()) == "label?draws=1000"
        computed = label.compute(label.LabelRequest(draws=1000))
        drawn = visit.page.locator("#tab-label .drawn").inner_text()
        assert drawn == f"Sampled: {', '.join(computed['drawn'])}, …"
        assert all(", sampled " in line for line in shown_tree(visit))
        visit.page.get_by_role("button", name="Sample").click()
        visit.settle()
        assert unquote(visit.where()) == "label?draws=1000&seed=1"
        assert visit.page.locator("#tab-label .drawn").inner_text() != drawn

    def test_percentages_given_the_tokens_before(self, visit):
        visit.open("label?given=true&branches=2&target=84.5&unit=absolute&width=0.1")
        tree = label.compute(label.LabelRequest(branches=2, target="84.5", unit="absolute", width=0.1))["tree"]
        second = [line for line in shown_tree(visit) if line.startswith("level 1")]
        assert [line.split(": ")[1] for line in second] == [percent(branch["share"]) for branch in tree["branches"]]

    def test_a_kind_of_label_brings_a_target_that_fits(self, visit):
        visit.open("label")
        visit.page.locator("#tab-label select[name=kind]").select_option(label="time of day")
        visit.settle()
        assert visit.page.locator("#tab-label [name=target]").input_value() == "23:58"
        assert visit.page.locator("#tab-label .message").is_hidden()
        assert visit.page.get_by_label("width in minutes").is_visible()
        visit.page.locator("#tab-label select[name=kind]").select_option(label="ratings of several people")
        visit.page.locator("#tab-label [name=ratings]").fill("1 1 2")
        visit.settle()
        assert visit.page.locator("#tab-label [name=target]").is_hidden()
        assert shown_tree(visit) == ["level 1 1|■: 66.7 %", "level 1 2|■: 33.3 %"]

    def test_every_preset_has_a_tree(self, visit):
        visit.open("label")
        for preset in visit.page.locator("#tab-label .presets button").all():
            preset.click()
            visit.settle()
            assert visit.page.locator("#tab-label .message").is_hidden(), preset.inner_text()
            assert shown_tree(visit)[0].startswith(("level 1", "certain")), preset.inner_text()
        assert visit.problems == []

    @pytest.mark.parametrize("width", [1400, 400])
    @pytest.mark.parametrize(
        "where",
        [
            "label?draws=1000&branches=8",
            "label?kind=clock&target=23:58&draws=10",
            "label?tokenizer=three&given=true",
            "label?target=-0.5&width=300",
            "answer",
        ],
    )
    def test_no_text_of_a_tree_overlaps_or_leaves_it(self, visit, width, where):
        visit.page.set_viewport_size({"width": width, "height": 900})
        visit.open(where)
        visit.settle()
        crossed = visit.page.evaluate("""() => {
            const svg = document.querySelector("section:not([hidden]) .tree svg"), edge = svg.getBoundingClientRect();
            const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
            const bad = boxes.filter(([, box]) => box.left < edge.left - 1 || box.right > edge.right + 1).map(([name]) => name);
            boxes.forEach(([name, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (across > 1 && down > 4) bad.push(`${name} x ${other}`);
            }));
            return [boxes.length, bad];
        }""")
        assert crossed[0] > 8
        assert crossed[1] == []
