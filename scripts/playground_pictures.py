"""Screenshots of the playground for the documentation, and the film of the README.

    python scripts/playground_pictures.py                    # docs/images/playground/TAB_WIDTH_SCHEME.png, docs/images/answer.gif
    python scripts/playground_pictures.py --film frames      # answer.gif alone, with its frames as files in a folder
    python scripts/playground_pictures.py --whole shots      # every tab at 1400 and 400 px, light and dark, in a folder

They have few colours, which keeps them small. Needs Debian's Chromium (``make browser``).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

from numerate.playground.models import FIRST_ROW
from numerate.playground.server import create_server, listening
from numerate.playground.tabs import TABS

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLOURS = 128
HEIGHT = 1450
ENDS = """[...document.querySelectorAll("section:not([hidden]), section:not([hidden]) :is(article, .answer, .result > .picture)")]
  .map((one) => Math.ceil(one.getBoundingClientRect().bottom) + 8)"""  # where a picture may be cut
MOST = {1400: HEIGHT, 400: None}  # px from the top that the documentation shows, by the width of the window; None: all
PHONE = ("answer", 400, "dark")  # the one picture of a phone in the documentation
SETTLED = "section:not([hidden])[aria-busy=false]"

FILM = {"width": 900, "height": 710}
UNSEEN = "#tab-answer :is(.lead, .controls:not(.cells), .presets, .note, details, .result > :is(h2, article, .tree))"
# Not in the film; and slow, so that frames are taken at exact times
SLOW = ".chosen { transition-duration: 1000s; } .grow { animation-duration: 1000s; }"
CAPTION = """(text) => {
  let caption = document.getElementById("caption");
  if (!caption) {
    caption = document.createElement("p");
    caption.id = "caption";
    caption.style.cssText = "font-size: 1.5rem; font-weight: 700; max-width: none; margin: .8rem 0";
    document.querySelector("main").prepend(caption);
  }
  caption.textContent = text;
}"""
SEEK = """(share) => document.getAnimations().forEach((one) => {
  one.pause();
  one.currentTime = share * one.effect.getComputedTiming().duration;
})"""


def shoot(browser: Any, address: str, path: Path, tab: str, width: int, scheme: str, most: int | None = None) -> None:
    """Save a picture of a tab, from its top to its end, or to the end of the last part within ``most`` px."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    page.goto(f"{address}#{tab}")
    page.wait_for_selector(SETTLED, timeout=120_000)
    page.wait_for_timeout(700)  # bars grow to their height
    ends = page.evaluate(ENDS)
    height = max((end for end in ends if most is None or end <= most), default=min(ends))
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=path, full_page=True, clip=clip)
    page.close()
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


@dataclass
class Film:
    """Frames of a page, and how long each is shown."""

    page: Any
    frames: list[Image.Image] = field(default_factory=list)
    durations_ms: list[int] = field(default_factory=list)

    def hold(self, duration_ms: int) -> None:
        """Take a frame."""
        self.frames.append(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB"))
        self.durations_ms.append(duration_ms)

    def settle(self, steps: int = 1) -> None:
        """Wait for the answer to the last change, and play the animations that it starts."""
        self.page.wait_for_timeout(100)
        self.page.wait_for_selector(SETTLED, timeout=120_000)
        for step in range(1, steps):
            self.page.evaluate(SEEK, (1 - (1 - step / steps) ** 2))
            self.hold(50)
        self.page.evaluate("document.getAnimations().forEach((one) => one.finish())")

    def save(self, path: Path) -> None:
        """Write the frames as a GIF that loops, all in one palette."""
        width, height = self.frames[0].size
        sheet = Image.new("RGB", (width, height * len(self.frames)))
        for index, frame in enumerate(self.frames):
            sheet.paste(frame, (0, index * height))
        palette = sheet.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=self.durations_ms, loop=0, optimize=True, disposal=1)
        seconds = sum(self.durations_ms) / 1000
        print(f"{path}: {len(drawn)} frames, {seconds:.1f} s, {path.stat().st_size / 1000:.0f} kB")


def film(browser: Any, address: str) -> Film:
    """Return the film of "a model's answer": a question is typed, the distribution appears, the rule and the interval change."""
    context = browser.new_context(viewport=FILM, bypass_csp=True, color_scheme="light")
    page = context.new_page()
    carat = FIRST_ROW["carat"]
    page.goto(f"{address}#answer?rule=greedy&cells={quote(json.dumps({**FIRST_ROW, 'carat': '0.5'}))}")
    page.wait_for_selector(SETTLED, timeout=120_000)
    page.add_style_tag(content=SLOW)
    page.evaluate(f"document.querySelectorAll({json.dumps(UNSEEN)}).forEach((one) => {{ one.hidden = true; }})")
    made = Film(page)

    def off(rule: str) -> str:
        return ", ".join(page.locator(f"[data-rule={rule}] {part}").inner_text() for part in (".decided", ".off"))

    page.evaluate(CAPTION, "Ask a small language model for the price of a diamond")
    made.settle()
    made.hold(900)
    field = page.locator("#tab-answer [name=carat]")
    for end in range(1, len(carat) + 1):
        field.fill(carat[:end])
        made.settle(steps=6 if end == len(carat) else 1)
        made.hold(250)
    page.evaluate(CAPTION, f"Its answer is a distribution. Greedy: {off('greedy')}")
    made.hold(2000)
    page.evaluate(CAPTION, f"The median uses all of it: {off('median')}")
    page.locator("[data-rule=median]").click()
    made.settle(steps=9)
    made.hold(2000)
    page.evaluate(CAPTION, "And an interval at any level")
    for percent in (85, 80, 70, 60, 50, 60, 70, 80, 85, 90):
        page.evaluate(
            "(level) => { location.hash = location.hash.replace(/&level=[^&]*/, '') + `&level=${level}`; }", percent / 100
        )
        made.settle()
        made.hold({50: 900, 90: 1400}.get(percent, 80))
    context.close()
    return made


def pictures(whole: bool) -> Iterator[tuple[str, int, str, int | None]]:
    """Yield tab, width, scheme and height of each still picture."""
    for tab, (width, most), scheme in product(TABS, MOST.items(), ("light", "dark")):
        if whole or (width, scheme) == (1400, "light"):
            yield tab, width, scheme, None if whole else most
        elif (tab, width, scheme) == PHONE:
            yield tab, width, scheme, HEIGHT


def main() -> None:
    """Start a playground and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", type=Path, help="a folder for pictures that go to the end of each tab")
    parser.add_argument("--film", type=Path, help="a folder for the frames of answer.gif; nothing else is made")
    options = parser.parse_args()
    folder = options.whole or IMAGES / "playground"
    folder.mkdir(parents=True, exist_ok=True)
    with listening("127.0.0.1", 0) as (listener, address), sync_playwright() as driver:
        threading.Thread(target=create_server("127.0.0.1").run, kwargs={"sockets": [listener]}, daemon=True).start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if not options.film:
            for tab, width, scheme, most in pictures(bool(options.whole)):
                shoot(browser, address, folder / f"{tab}_{width}_{scheme}.png", tab, width, scheme, most)
        if not options.whole:
            taken = film(browser, address)
            taken.save(IMAGES / "answer.gif")
            if options.film:
                options.film.mkdir(parents=True, exist_ok=True)
                for index, frame in enumerate(taken.frames):
                    frame.save(options.film / f"{index:03}.png")
        browser.close()


if __name__ == "__main__":
    main()
