"""Fifty people at once: nobody gets the answer to somebody else's state."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from numerate.playground import digit, landscape

SESSIONS = 50
ROUNDS = 2


def state(session: int, turn: int) -> dict[str, object]:
    """A state that no other session has."""
    bars = [0.05] * 10
    bars[session % 10] = round(0.1 + session / 100, 4)
    return {"target": (session + turn) % 10, "left": bars, "right": bars[::-1]}


def ask(address: str, tab: str, body: dict[str, object]) -> dict[str, object]:
    asked = Request(f"{address}api/{tab}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def test_fifty_sessions_do_not_mix(address):
    def session(number: int) -> list[tuple[dict[str, object], dict[str, object]]]:
        return [(state(number, turn), ask(address, "digit", state(number, turn))) for turn in range(ROUNDS)]

    with ThreadPoolExecutor(SESSIONS) as pool:
        answered = [pair for pairs in pool.map(session, range(SESSIONS)) for pair in pairs]
    assert len(answered) == SESSIONS * ROUNDS
    for sent, answer in answered:
        assert answer == json.loads(json.dumps(digit.compute(digit.DigitRequest(**sent))))


def test_settings_of_fifty_sessions_do_not_mix(address):
    """Losses are built once and shared by sessions with the same settings."""
    states = [{"losses": ["smmd"], "settings": {"smmd": {"sigma": round(0.5 + number / 10, 1)}}} for number in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as pool:
        answers = list(pool.map(lambda sent: ask(address, "landscape", sent), states))
    for sent, answer in zip(states, answers, strict=True):
        assert answer == json.loads(json.dumps(landscape.compute(landscape.LandscapeRequest(**sent))))
    assert len({json.dumps(answer["series"]) for answer in answers}) == SESSIONS


@pytest.mark.slow
def test_fifty_windows_keep_their_views(browser, address):
    """Fifty pages of one browser, each with a view of its own, all moved before any is looked at."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    windows = [context.new_page() for _ in range(SESSIONS)]
    for number, window in enumerate(windows):
        view = f"digit?target={number % 10}&left={json.dumps(state(number, 0)['left'])}".replace(" ", "")
        window.goto(f"{address}#{view}", wait_until="commit")
    for number, window in enumerate(windows):
        window.wait_for_selector("#tab-digit[data-settled]")
        wanted = digit.compute(digit.DigitRequest(target=number % 10, left=state(number, 0)["left"]))
        shown = window.locator("article[data-loss=emd] .left .value").inner_text()
        (row,) = (row for row in wanted["losses"] if row["name"] == "emd")
        assert float(shown) == float(f"{row['left']['value']:.4g}")
    context.close()
