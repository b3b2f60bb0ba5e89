"""A running playground, and one Chromium for all tests that look at it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """The address of a playground that answers."""
    pytest.importorskip("uvicorn", reason="the extra playground is not installed")
    from numerate.playground.server import create_server
    from numerate.web import listening

    with listening("127.0.0.1", 0) as (listener, opened):
        server = create_server("127.0.0.1")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield opened
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium. Not for the whole session: Playwright leaves an event loop running, which other tests may not expect."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: run make browser")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page of the playground as a person sees it, with what the browser complained about and asked for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            (self.problems if message.type == "error" else self.warnings).append(message.text)

    def open(self, where: str = "") -> None:
        """Open a tab by the part of its address after ``#``, and wait for its picture."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}#{where}")
        self.page.wait_for_selector("section:not([hidden])[data-settled]")

    def settle(self) -> None:
        """Wait until the last change was answered."""
        self.page.wait_for_selector("section:not([hidden])[aria-busy=false]")

    def where(self) -> str:
        """Return the part of the address after ``#``; a timer writes it 150 ms after a change, before this one ends."""
        self.page.evaluate("new Promise((done) => setTimeout(done, 200))")
        return str(self.page.url).partition("#")[2]


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """A fresh window of the browser, 1400 px wide."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(30_000)
    yield Visit(context.new_page(), address)
    context.close()
