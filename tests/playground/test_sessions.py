"""Fifty people at once: nobody gets the answer to somebody else's state."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from numerate.playground import landscape

SESSIONS = 50


def ask(address: str, tab: str, body: dict[str, object]) -> dict[str, object]:
    asked = Request(f"{address}api/{tab}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def test_settings_of_fifty_sessions_do_not_mix(address):
    """Losses are built once and shared by sessions with the same settings."""
    states = [{"losses": ["smmd"], "settings": {"smmd": {"sigma": round(0.5 + number / 10, 1)}}} for number in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as pool:
        answers = list(pool.map(lambda sent: ask(address, "landscape", sent), states))
    for sent, answer in zip(states, answers, strict=True):
        assert answer == json.loads(json.dumps(landscape.compute(landscape.LandscapeRequest(**sent))))
    assert len({json.dumps(answer["series"]) for answer in answers}) == SESSIONS
