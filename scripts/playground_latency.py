"""How long does a change take to be on screen? The playground's sliders and bars, moved in a real browser.

    python scripts/playground_latency.py                 # Markdown, a row for each control
    python scripts/playground_latency.py --moves 50

For every tab, and for the landscape of a thousand tokens, the first controls are moved in Debian's Chromium (``make browser``).
The time is taken in the page, from the input event to the frame after the new picture was drawn: request, computation, answer,
drawing. The server is a process of its own, on the same machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import sync_playwright

from numerate.playground.tabs import TABS

EXTRA = ("landscape?tokens=0-999",)
CONTROLS = "section:not([hidden]) input[type=range], section:not([hidden]) [role=slider]"
# Move a control by one step, from its end back to its start; resolve with the milliseconds until the new picture's frame is out.
MOVE = """(control) => new Promise((done) => {
  const section = control.closest("section");
  let begun;
  const finish = () => done(performance.now() - begun);
  section.addEventListener("shown", () => requestAnimationFrame(() => setTimeout(finish)), { once: true });
  if (control.matches("input")) {
    const before = control.value;
    control.stepUp();
    if (control.value === before) control.value = control.min;
    begun = performance.now();
    control.dispatchEvent(new Event("input", { bubbles: true }));
  } else {
    const key = Number(control.getAttribute("aria-valuenow")) > 0.9 ? "Home" : "ArrowUp";
    begun = performance.now();
    control.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
})"""


@contextmanager
def playground() -> Iterator[str]:
    """Start a playground in a process of its own; yield its address."""
    command = [sys.executable, "-m", "numerate", "playground", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


def measure(page: Any, address: str, view: str, moves: int, most: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each control of a view and the times of its moves, in ms, without the first two."""
    page.goto("about:blank")
    page.goto(f"{address}#{view}")
    page.wait_for_selector("section:not([hidden])[aria-busy=false]")
    for control in page.locator(CONTROLS).all()[:most]:
        name = control.get_attribute("name") or control.get_attribute("aria-label")
        yield name, [control.evaluate(MOVE) for _ in range(moves + 2)][2:]


def figures(times: list[float]) -> tuple[float, float]:
    """Return median and 95th percentile."""
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=20, help="moves of each control")
    parser.add_argument("--controls", type=int, default=3, help="controls of each tab, the first ones")
    options = parser.parse_args()
    everything: list[float] = []
    print("| view | control | median ms | 95th percentile ms |\n|---|---|---|---|")
    with playground() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        for view in (*TABS, *EXTRA):
            for name, times in measure(page, address, view, options.moves, options.controls):
                median, high = figures(times)
                print(f"| {view} | {name} | {median:.0f} | {high:.0f} |", flush=True)
                everything += times if view in TABS else []
        browser.close()
    median, high = figures(everything)
    print(f"\nAll tabs: median {median:.0f} ms, 95th percentile {high:.0f} ms.")


if __name__ == "__main__":
    main()
