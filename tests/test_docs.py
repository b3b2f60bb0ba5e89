"""The documentation: its Python blocks run, its links lead somewhere, and its table of losses is complete."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import metadata, packages_distributions, requires
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from tests.samples import real_tokenizer

import numerate
from numerate import LOSSES, NumericVocab
from numerate.formats import KINDS, NumberFormat

ROOT = Path(__file__).parents[1]
DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

WITH_PYTHON = [page for page in DOCS if BLOCK.search(page.read_text(encoding="utf-8"))]


def pages(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", paths, ids=[str(page.relative_to(ROOT)) for page in paths])


every_page = pages(DOCS)


@pytest.fixture
def at_hand() -> dict[str, object]:
    """What a training loop has before it computes a loss."""
    tokenizer = real_tokenizer("deepseek")
    ids = torch.tensor([tokenizer.encode("12 + 30 = 42; 0.5 - 7 = -6.5", add_special_tokens=False)])
    logits = torch.randn(*ids.shape, len(tokenizer), generator=torch.Generator().manual_seed(0), requires_grad=True)
    hidden, weight = (
        torch.randn(*shape, 8, generator=torch.Generator().manual_seed(1)) for shape in (ids.shape, (len(tokenizer),))
    )
    return {"tokenizer": tokenizer, "logits": logits, "labels": ids, "hidden": hidden, "lm_head_weight": weight}


@pytest.mark.no_cover  # a line that only the documentation runs is not tested
@pages(WITH_PYTHON)
def test_python_blocks_run(page: Path, at_hand, monkeypatch, tmp_path, capsys):
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(page), "exec"), at_hand)


@pytest.mark.no_cover
@pytest.mark.parametrize("block", BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
def test_blocks_of_the_readme_stand_alone(block: str, monkeypatch, tmp_path, capsys):
    """Someone who copies one of them needs nothing from the others."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


@pages(WITH_PYTHON)
def test_blocks_import_what_users_install(page: Path):
    """The packages of the extras, not those that are here for development alone."""
    tree = ast.parse("\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    extras = {"", *(set(metadata("numerate").get_all("Provides-Extra")) - {"dev", "docs"})}
    asked = map(Requirement, requires("numerate"))
    installed = {one.name for one in asked if one.marker is None or any(one.marker.evaluate({"extra": own}) for own in extras)}
    owners = packages_distributions()
    for name in {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names, "numerate"}:
        assert installed & {*owners.get(name, ())}, name


@every_page
def test_blocks_that_do_not_run_say_why(page: Path):
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.strip() == "```py":
            assert lines[number + 1].strip().startswith("# Not run here: "), f"line {number + 1}"


@every_page
def test_links_lead_to_files(page: Path):
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)", prose):
        assert target.startswith("http") or (page.parent / target).is_file(), target


def test_the_table_of_losses_is_complete():
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (token|number) \|", page, re.MULTILINE)
    vocab = NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)
    assert rows == [(name, loss(vocab).level) for name, loss in LOSSES.items() if loss.__name__ in numerate.losses.__all__]


def test_the_table_of_formats_is_complete():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`<br>`([^`]+)` \|", page, re.MULTILINE)
    formats = {kind: NumberFormat.fit(["12345.6", "111111"], kind) for kind, _ in rows}
    assert rows == [(kind, format.write("12345.6")) for kind, format in formats.items()]
    assert {kind for kind in KINDS if "+" not in kind} == {*formats}
    assert all(f"`{kind}`" in page for kind in KINDS)
