"""What ``make docs`` does besides MkDocs: files of the repository become pages, and docstrings Markdown.

A page links to examples, recipes and plans by their path in the repository (``../examples/trl_sft.py``), so that the link works
there as well. On the site each of them is a page of its own with the text of the file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import expanded

ROOT = Path(__file__).parents[1]
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash"}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)  # before an indented block of code


class PlainRoles(griffe.Extension):
    """Show ``:func:`name``` as code with a link, the last part of a name that begins with a tilde alone."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            room = obj if obj.is_class or obj.is_module else obj.parent
            text = _ROLE.sub(lambda role: _as_link(role, room.path if room else ""), obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", text)


def _as_code(role: re.Match[str]) -> str:
    return f"`{role[1].rpartition('.')[2] if '`~' in role[0] else role[1]}`"


def _as_link(role: re.Match[str], room: str) -> str:
    """Return a link to a name, which may stand in the class or module ``room``; text without a link if it is on no page."""
    name = role[1] if role[1].startswith("numerate.") else f"{room}.{role[1]}"
    return f'<autoref identifier="{name}" optional><code>{_as_code(role)[1:-1]}</code></autoref>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside of the documentation that one of its pages links to."""
    for page in list(files.documentation_pages()):
        for link in _LINK.finditer(page.content_string):
            if (path := _outside(Path(page.src_uri), link[1])) is not None and files.get_file_from_path(_page_of(path)) is None:
                files.append(File.generated(config, _page_of(path), content=_content(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to such files lead to their pages, and list the losses where a page asks for it."""
    here = Path(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        path = _outside(here, link[1])
        return link[0] if path is None else f"]({'../' * (len(here.parts) - 1)}{_page_of(path)}{link[2] or ''})"

    return _ROLE.sub(_as_code, expanded(_LINK.sub(moved, markdown)))


def _outside(page: Path, target: str) -> Path | None:
    """Return the path in the repository that a link of a page leads to; None if it is no file outside of the documentation."""
    if ":" in target:
        return None
    path = (ROOT / "docs" / page.parent / target).resolve()
    return path.relative_to(ROOT) if path.is_file() and not path.is_relative_to(ROOT / "docs") else None


def _page_of(path: Path) -> str:
    return f"files/{path if path.suffix == '.md' else f'{path}.md'}"


def _content(path: Path) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    ticks = "````"
    return f"# {path.name}\n\n`{path}` of the repository:\n\n{ticks}{LANGUAGES.get(path.suffix, 'text')}\n{text}{ticks}\n"
