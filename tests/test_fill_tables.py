"""Tables of documentation pages are what their commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "<!-- python " in page.read_text(encoding="utf-8"))


def test_pages_have_tables():
    assert len(PAGES) >= 2
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- python ") == text.count("<!-- end -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_its_commands(script, page):
    text = page.read_text(encoding="utf-8")
    assert script.fill(text) == text


def test_a_table_is_replaced(script, monkeypatch):
    monkeypatch.setattr(script, "output", lambda command: f"\n| {command} |\n")
    page = "before\n<!-- python scripts/a.py x -->\n| old |\n| old |\n<!-- end -->\nafter `python scripts/b.py`\n"
    assert script.fill(page) == page.replace("| old |\n| old |", "| scripts/a.py x |")


def test_a_command_that_fails_says_so(script):
    with pytest.raises(ValueError, match=r"scripts/results.py nothing failed: usage"):
        script.output("scripts/results.py nothing")
    with pytest.raises(ValueError, match="no file fits docs/none"):
        script.output("scripts/results.py tests docs/none*.xz")
