"""Pictures of the playground for docs/playground.md, in a few colours so that they stay small.

    python scripts/playground_pictures.py                # docs/images/playground_*.png
    python scripts/playground_pictures.py --all shots    # every tab at 1400 and 400 px, light and dark, to look at

Needs Debian's Chromium (``make browser``).
"""

from __future__ import annotations

import argparse
import shutil
import socket
import threading
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from numerate.playground.server import create_server, listening
from numerate.playground.tabs import TABS

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLOURS = 128
ENDS = """[...document.querySelectorAll("section:not([hidden]), section:not([hidden]) :is(article, .answer)")]
  .map((one) => Math.ceil(one.getBoundingClientRect().bottom) + 8)"""  # where a picture may be cut
NARROW = "digit"  # the tab that the documentation shows on a phone, in the dark


def shoot(browser: Any, address: str, path: Path, tab: str, width: int, scheme: str, most: int | None = None) -> None:
    """Save a picture of a tab, from its top to its end, or to the end of the last part within ``most`` px."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}#{tab}")
    page.wait_for_selector("section:not([hidden])[aria-busy=false]", timeout=120_000)
    page.wait_for_timeout(300)  # bars grow to their height
    height = max(end for end in page.evaluate(ENDS) if most is None or end <= most)
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=path, full_page=True, clip=clip)
    page.close()
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Start a playground and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", type=Path, help="a folder for pictures of every tab at both widths and in both schemes")
    options = parser.parse_args()
    with listening("127.0.0.1", 0) as (listener, address), sync_playwright() as driver:
        start(listener)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if options.all:
            options.all.mkdir(parents=True, exist_ok=True)
            for tab, width, scheme in product(TABS, (1400, 400), ("light", "dark")):
                shoot(browser, address, options.all / f"{tab}_{width}_{scheme}.png", tab, width, scheme)
        else:
            for tab in TABS:
                shoot(browser, address, IMAGES / f"playground_{tab}.png", tab, 1400, "light", most=1250)
            shoot(browser, address, IMAGES / "playground_phone.png", NARROW, 400, "dark", most=1100)
        browser.close()


def start(listener: socket.socket) -> None:
    """Answer requests in the background until the process ends."""
    threading.Thread(target=create_server("127.0.0.1").run, kwargs={"sockets": [listener]}, daemon=True).start()


if __name__ == "__main__":
    main()
