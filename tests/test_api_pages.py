"""The API reference: its contents are ``numerate.__all__``, its losses those of the registry, as in docs/losses.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numerate
import numerate.lab

PAGES = Path(__file__).parents[1] / "docs" / "api"
LOSSES = (PAGES.parent / "losses.md").read_text(encoding="utf-8")
SEEN = [(name, loss.sees) for name, loss in numerate.LOSSES.items()]


def directives(script, page: Path) -> list[str]:
    """Paths of what a page documents."""
    return script.DIRECTIVE.findall(script.expanded(page.read_text(encoding="utf-8")))


def test_the_pages_document_exactly_what_the_package_exports(script):
    documented = [path for page in PAGES.glob("*.md") for path in directives(script, page)]
    assert [path for path, times in Counter(documented).items() if times > 1] == []
    names = {path.split(".")[1] for path in documented}
    assert names == {*numerate.__all__, "lab"}
    lab = {f"numerate.lab.{name}" for name in numerate.lab.__all__}
    assert {path for path in documented if path.startswith("numerate.lab.")} == lab
    registered = {f"numerate.losses.{loss.module}.{loss.cls}" for loss in script.listed_losses()}
    assert {path for path in documented if path.startswith("numerate.losses.")} <= registered


def test_the_contents_name_every_page_and_what_is_on_it(script):
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[^]]+\]\((\w+\.md)\) \| (.*) \|$", text, re.MULTILINE)
    assert {page for page, _ in rows} == {page.name for page in PAGES.glob("*.md")} - {"index.md"}
    for page, cell in rows:
        named = [path.split(".") for path in re.findall(r"\]\[numerate\.([\w.]+)\]", cell)]
        assert [path[-1] for path in named] == re.findall(r"\[`(\w+)`\]", cell) != []
        own = {path.split(".")[1] for path in directives(script, PAGES / page)}
        losses = {"losses", *(loss.cls for loss in script.listed_losses())} if page == "losses.md" else set()
        assert {path[0] for path in named} == own - losses


def test_the_losses_are_those_of_the_registry(script):
    listed = script.listed_losses()
    assert {loss.name: loss.cls for loss in listed} == {name: cls.__name__ for name, cls in numerate.LOSSES.items()}
    assert [loss.name for loss in listed] == list(numerate.LOSSES)
    assert [loss.sees for loss in listed] == [cls.sees for cls in numerate.LOSSES.values()]
    assert script.exported_names() == numerate.__all__
    text = script.expanded((PAGES / "losses.md").read_text(encoding="utf-8"))
    for loss in listed:
        assert f"| [{loss.name}][{loss.path(numerate.__all__)}] | {loss.sees} |" in text
        assert loss.about in text


def test_a_new_loss_gets_a_row_at_the_end_of_the_table(script):
    new = ("power", "How far the mass lies from the target.")
    text = script.with_other_losses(LOSSES, [*SEEN, new])
    assert script.named(text) == [*script.named(script.with_other_losses(LOSSES, SEEN)), "power"]
    assert f"\n| `power` | {new[1]} | | | |\n" in text
    assert text.replace(f"| `power` | {new[1]} | | | |\n", "") == script.with_other_losses(LOSSES, SEEN)
