"""Nothing loads weights or arrays that could run code, or trusts the code of a model. Ruff checks the rest, by its rules S."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("src", "scripts", "examples", "research") for path in sorted((ROOT / folder).rglob("*"))]


def problems(source: str) -> list[str]:
    """Return the calls that are unsafe."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called, given = ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            loads = re.search(r"\bAuto\w+\.from_(pretrained|config)$", called)
            unsafe = called == "torch.load" and given.get("weights_only") != "True"
            unsafe |= bool(loads) and "trust_remote_code" not in given and None not in given  # asks at a prompt; None: **options
            if unsafe or "True" in (given.get("allow_pickle"), given.get("trust_remote_code")):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
def test_nothing_unsafe(suffix):
    texts = {path: path.read_text(encoding="utf-8") for path in FILES if path.suffix == suffix}
    if suffix == ".ipynb":
        cells = {
            path: [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"] for path, text in texts.items()
        }
        lines = {path: [line for cell in own for line in cell["source"] if line[0] not in "!%"] for path, own in cells.items()}
        texts = {path: "\n".join(own) for path, own in lines.items()}
    assert texts
    assert {path: found for path, text in texts.items() if (found := problems(text))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "transformers.AutoTokenizer.from_pretrained(name)",
    ],
)
def test_the_sweep_sees_it(source):
    assert problems(source)
    assert not problems("torch.load(file, weights_only=True)\nAutoModel.from_pretrained(name, trust_remote_code=trusted)")
