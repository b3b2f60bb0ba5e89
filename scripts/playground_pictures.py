"""Pictures of the playground for docs/playground.md; with --whole every tab at 1400 and 400 px, light and dark.

    python scripts/playground_pictures.py                    # docs/images/playground/TAB_WIDTH_SCHEME.png, the top of each
    python scripts/playground_pictures.py --whole shots      # to the end of each, in a folder to look at

They have few colours, so that they stay small. Needs Debian's Chromium (``make browser``).
"""

from __future__ import annotations

import argparse
import shutil
import threading
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from numerate.playground.server import create_server, listening
from numerate.playground.tabs import TABS

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "playground"
COLOURS = 128
HEIGHT = 1250
ENDS = """[...document.querySelectorAll("section:not([hidden]), section:not([hidden]) :is(article, .answer)")]
  .map((one) => Math.ceil(one.getBoundingClientRect().bottom) + 8)"""  # where a picture may be cut
MOST = {1400: HEIGHT, 400: None}  # px from the top that the documentation shows, by the width of the window; None: all
PHONE = ("landscape", 400, "dark")  # the one picture that the documentation shows of a phone


def shoot(browser: Any, address: str, path: Path, tab: str, width: int, scheme: str, most: int | None = None) -> None:
    """Save a picture of a tab, from its top to its end, or to the end of the last part within ``most`` px."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    page.goto(f"{address}#{tab}")
    page.wait_for_selector("section:not([hidden])[aria-busy=false]", timeout=120_000)
    page.wait_for_timeout(500)  # bars grow to their height
    ends = page.evaluate(ENDS)
    height = max((end for end in ends if most is None or end <= most), default=min(ends))
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=path, full_page=True, clip=clip)
    page.close()
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Start a playground and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", type=Path, help="a folder for pictures that go to the end of each tab")
    options = parser.parse_args()
    folder = options.whole or IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    with listening("127.0.0.1", 0) as (listener, address), sync_playwright() as driver:
        threading.Thread(target=create_server("127.0.0.1").run, kwargs={"sockets": [listener]}, daemon=True).start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for tab, (width, most), scheme in product(TABS, MOST.items(), ("light", "dark")):
            if options.whole or (width, scheme) == (1400, "light") or (tab, width, scheme) == PHONE:
                path = folder / f"{tab}_{width}_{scheme}.png"
                shoot(browser, address, path, tab, width, scheme, None if options.whole else most)
        browser.close()


if __name__ == "__main__":
    main()
