"""The site: every page is in its navigation once, and every entry of the navigation is a page. MkDocs itself is not needed."""

from __future__ import annotations

import ast
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


def test_how_to_pages_of_trainers_say_how_to_check_that_it_works_and_what_does_not():
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)["nav"]
    (trainers,) = (entry["Trainers"] for entry in nav if "Trainers" in entry)
    pages = [page for _, page in entries(trainers) if page.startswith("howto/")]
    assert len(pages) >= 5
    assert [page for page in pages if not {"check-that-it-works", "limitations"} <= anchors(DOCS / page)] == []


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


def test_the_search_works_from_a_folder_without_a_network():
    """Browsers refuse a file:// page its worker and ``fetch``: the index is a script, and ours runs the worker in a frame."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)
    names = [next(iter(plugin)) if isinstance(plugin, dict) else plugin for plugin in settings["plugins"]]
    assert names.index("offline") > names.index("search")
    (polyfill,) = settings["extra"]["polyfills"]
    assert "iframe-worker" in polyfill  # the plugin adds the script of another host unless it finds this name
    assert "window.IFrameWorker" in (DOCS / polyfill).read_text(encoding="utf-8")


def messages() -> str:
    """Return the texts of the package, and ``...`` where a value is put into one."""
    texts = []
    for file in sorted((ROOT / "src" / "numerate").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_troubleshooting_quotes_messages_that_exist():
    said, quoted = messages(), []
    section = re.split(
        r"^\| message \| .*\n\|---\|---\|\n", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for table in section[1:]:
        for row in re.match(r"(?:\|.*\n)+", table)[0].splitlines():
            quoted += re.findall(r"`([^`]+)`", row.split(" | ")[0])
    parts = {part.strip() for text in quoted for part in text.split("...") if " " in part.strip()}
    assert len(parts) > 80
    assert sorted(part for part in parts if part not in said) == []


def test_llms_txt_follows_its_format_and_lists_the_guides():
    """By llmstxt.org: a title, a summary, notes, and sections of links ``- [name](url): notes``, the last of them optional."""
    head, *sections = (DOCS / "llms.txt").read_text(encoding="utf-8").split("\n## ")
    assert re.fullmatch(r"# numerate\n\n> .+\n\n(- .+\n)+", head)
    assert sections[-1].startswith("Optional\n")
    lines = [line for section in sections for line in section.strip().splitlines()[2:]]
    pages = [re.fullmatch(r"- \[[^]]+\]\(([\w/]+\.(?:md|html))\)(?:: .+)?", line)[1] for line in lines]
    missing = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "api"} - {*pages, "index.md"}
    assert not missing
    assert all((DOCS / page).with_suffix(".md").is_file() for page in pages)
