"""MkDocs hooks of ``make docs``: turn repository files into pages, docstrings into Markdown, and pages into text for models.

Pages link to examples and plans by their path in the repository (``../examples/trl_sft.py``), so that links also work
there. On the site each such file is a page with its text. research/ is not on the site: a link into it becomes its text.
"""

from __future__ import annotations

import json
import os.path
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import expanded, listed_losses, with_other_losses

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
IN_NAV = (Path("CONTRIBUTING.md"), Path("CHANGELOG.md"))
RANKS = {"troubleshooting.md": 2, "api": 0.3, "files": 0.3}  # by which the search multiplies scores: guides come first
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_RESEARCH = re.compile(r"\[([^]]*)\]\((?:\.\./)*research/[^)]*\)")
_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)  # before an indented block of code
_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class PlainRoles(griffe.Extension):
    """Show ``:func:`name``` as linked code, only the last part of a name after a tilde, and examples as code."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            room = obj if obj.is_class or obj.is_module else obj.parent
            text = _ROLE.sub(lambda role: _as_link(role, room.path if room else ""), obj.docstring.value)
            # Griffe knows the section "Examples" and takes "Example" for prose.
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", _LITERAL.sub(":", text))


def _as_code(role: re.Match[str]) -> str:
    return f"`{role[1].rpartition('.')[2] if '`~' in role[0] else role[1]}`"


def _as_link(role: re.Match[str], room: str) -> str:
    """Return a link to a name, possibly relative to the class or module ``room``; plain text if it is on no page."""
    name = role[1] if role[1].startswith("numerate.") else f"{room}.{role[1]}"
    return f'<autoref identifier="{name}" optional><code>{_as_code(role)[1:-1]}</code></autoref>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs/ that is in the navigation or that a page links to."""
    pages = list(files.documentation_pages())
    wanted = [*IN_NAV, *(path for page in pages for path in _linked(page.content_string, DOCS / page.src_uri))]
    while wanted:
        path = wanted.pop()
        if files.get_file_from_path(_page_of(path)) is None:
            inclusion = InclusionLevel.UNDEFINED if path in IN_NAV else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, _page_of(path), content=_content(path), inclusion=inclusion))
            if path.suffix == ".md":
                wanted += _linked((ROOT / path).read_text(encoding="utf-8"), ROOT / path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between repository files to their pages, insert the list of losses, and rank the page in the search."""
    here = page.file.src_uri
    page.meta["search"] = {"boost": RANKS.get(here.partition("/")[0], 1)}
    source = ROOT / here.removeprefix("files/") if _made(here) else DOCS / here
    markdown = _RESEARCH.sub(r"\1", markdown)
    if here == "losses.md":
        markdown = with_other_losses(markdown, [(loss.name, loss.sees) for loss in listed_losses()])

    def moved(link: re.Match[str]) -> str:
        path = _target(source, link[1])
        if path is None or (not _made(here) and path.is_relative_to("docs")):
            return link[0]
        to = str(path.relative_to("docs")) if path.is_relative_to("docs") else _page_of(path)
        return f"]({os.path.relpath(to, Path(here).parent)}{link[2] or ''})"

    return _ROLE.sub(_as_code, expanded(_LINK.sub(moved, markdown)))


def on_post_build(config: MkDocsConfig) -> None:
    """Write what llms.txt lists: its pages as Markdown beside the HTML, and all but the optional ones as llms-full.txt."""
    site, listed = Path(config.site_dir), (DOCS / "llms.txt").read_text(encoding="utf-8")
    for page in _pages_listed(listed):
        (site / page).write_text((DOCS / page).read_text(encoding="utf-8"), encoding="utf-8")
    needed = _pages_listed(listed.partition("## Optional")[0])
    (site / "llms-full.txt").write_text(
        "\n\n".join((DOCS / page).read_text(encoding="utf-8") for page in needed), encoding="utf-8"
    )


def _pages_listed(text: str) -> list[str]:
    return [link[1] for link in _LINK.finditer(text) if link[1].endswith(".md")]


def _made(uri: str) -> bool:
    return uri.startswith("files/")


def _linked(text: str, source: Path) -> Iterator[Path]:
    """Yield the files outside docs/ that a text links to, by their path in the repository."""
    for link in _LINK.finditer(_RESEARCH.sub("", text)):
        path = _target(source, link[1])
        if path is not None and not path.is_relative_to("docs"):
            yield path


def _target(source: Path, link: str) -> Path | None:
    """Return the path in the repository of a link's target; None if it is not a file of the repository."""
    path = (source.parent / link).resolve()
    return path.relative_to(ROOT) if ":" not in link and path.is_file() and path.is_relative_to(ROOT) else None


def _page_of(path: Path) -> str:
    return f"files/{path if path.suffix == '.md' else f'{path}.md'}"


def _content(path: Path) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return f"`{path}` of the repository.\n\n" + "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    ticks = "````"
    return f"# {path.name}\n\n`{path}` of the repository:\n\n{ticks}{LANGUAGES.get(path.suffix, 'text')}\n{text}{ticks}\n"


def _cell(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown: its text, or its code and output."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    printed = "".join("".join(output.get("text", [])) for output in cell["outputs"])
    return f"```python\n{source}\n```" + (f"\n\n```text\n{printed.rstrip()}\n```" if printed else "")
