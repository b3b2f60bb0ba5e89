"""The site: every page is in its navigation once, and every entry of the navigation is a page. MkDocs itself is not needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from numerate import LOSSES, NumericVocab

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Settings(yaml.SafeLoader):
    """Reads ``mkdocs.yml``, in which tags name Python objects, without loading these."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def entries(nav: object) -> Iterator[tuple[str, str]]:
    """Yield the title and the page of every entry, however deep."""
    assert isinstance(nav, list), f"{nav!r} is no list of entries"
    for entry in nav:
        ((title, inside),) = entry.items()
        if isinstance(inside, str):
            yield title, inside
        else:
            yield from entries(inside)


def navigation() -> list[tuple[str, str]]:
    return list(entries(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)["nav"]))


def test_every_page_is_in_the_navigation_once():
    listed = [page for _, page in navigation() if not page.startswith("files/")]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_are_headings(page: Path):
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    missing = [f"{file}#{anchor}" for file, anchor in links if anchor not in anchors(page.parent / file if file else page)]
    assert missing == []


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_how_to_pages_say_how_to_check_that_it_works_and_what_does_not(page: Path):
    assert {"check-that-it-works", "limitations"} <= anchors(page)


def test_the_figures_of_the_first_page():
    """Two models with the same probability of the right digit, and what they pay."""
    digits = NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)
    rows = re.findall(
        r"^\| `?([\w-]+)`? \| ([\d.]+) \| ([\d.]+) \|$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    picture = (DOCS / "images" / "blind.svg").read_text(encoding="utf-8")
    assert [name for name, _, _ in rows] == ["cross-entropy", "smmd", "emd", "ntil"]
    assert re.findall(r'class="v">([\d.]+)<', picture) == ["0.45", "0.40", "0.15"] * 2
    near, far = torch.full((2, 10), 1e-9, dtype=torch.float64)
    near[[4, 5, 6]] = far[[0, 5, 9]] = torch.tensor([0.45, 0.4, 0.15], dtype=torch.float64)
    for name, *printed in rows:
        loss = torch.nn.functional.cross_entropy if name == "cross-entropy" else LOSSES[name](digits)
        paid = [float(loss(p.log()[None], torch.tensor([5]))) for p in (near, far)]
        assert printed == [f"{value:.2f}" for value in paid]
