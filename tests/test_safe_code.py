"""No line of the package, its scripts and its examples loads what could run code, starts a shell, or trusts code of a model."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "scripts", "examples", "research", "recipes")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
UNSAFE = {
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.Loader",
    "yaml.UnsafeLoader",
    "yaml.FullLoader",
}
UNSAFE |= {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "builtins.eval", "builtins.exec"}
UNSAFE |= {"pickle.load", "pickle.loads", "pd.read_pickle", "pandas.read_pickle", "torch.hub.load"}
HARMLESS = "pickle.UnpicklingError"  # what torch raises for a pickle with code
FLAGS = ("shell", "allow_pickle", "trust_remote_code")


def sources() -> Iterator[tuple[str, str]]:
    """Every Python file, and the code of every notebook."""
    for file in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        name = str(file.relative_to(ROOT))
        if file.suffix == ".py":
            yield name, file.read_text(encoding="utf-8")
        elif file.suffix == ".ipynb":
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
            lines = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            yield name, "\n".join(line for line in "\n".join(lines).splitlines() if not line.startswith(("!", "%")))


def problems(source: str) -> list[str]:
    """What is unsafe in a source: line and reason."""
    nodes = [*ast.walk(ast.parse(source))]
    names: dict[str, str] = {}  # as they are written here -> in full
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            names[alias.asname or alias.name] = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name

    def full(node: ast.expr) -> str:
        """The dotted name, as if nothing were renamed; something else for other expressions."""
        if isinstance(node, ast.Attribute):
            return f"{full(node.value)}.{node.attr}"
        return names.get(node.id, node.id) if isinstance(node, ast.Name) else type(node).__name__

    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name):
            used = full(node)
            if used in UNSAFE or (used.partition(".")[0] in MODULES and used != HARMLESS):
                found.append(f"{node.lineno}: {used}")
        elif isinstance(node, ast.Call):
            called, given = full(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called == "torch.load" and given.get("weights_only") != "True":
                found.append(f"{node.lineno}: torch.load without weights_only=True")
            unpacks = called.endswith((".extract", ".extractall")) and "tarfile" in names.values()
            if unpacks and given.get("filter") != "'data'":
                found.append(f"{node.lineno}: {called} without filter='data' writes anywhere")
            found += [f"{node.lineno}: {name}=True" for name in FLAGS if given.get(name) == "True"]
            loads = re.search(r"\.Auto\w+\.from_(pretrained|config)$", called)
            if loads and "trust_remote_code" not in given and None not in given:  # None: **options
                found.append(f"{node.lineno}: {called} without trust_remote_code asks at a prompt")
    return found


SOURCES = dict(sources())


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_unsafe(folder):
    found = {name: problems(source) for name, source in SOURCES.items() if name.startswith(f"{folder}/")}
    assert {name: own for name, own in found.items() if own} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import yaml\nyaml.load(text, yaml.SafeLoader)",
        "from yaml import unsafe_load as read\nread(text)",
        "import pickle\npickle.loads(data)",
        "import tarfile\nwith tarfile.open(file) as packed:\n    packed.extractall(folder)",
        "from joblib import load\nload(file)",
        "import torch\ntorch.load(file)",
        "import torch\ntorch.load(file, weights_only=False)",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "eval(text)",
        "run = exec",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import os\nos.system(line)",
        "from transformers import AutoModel\nAutoModel.from_pretrained(name, trust_remote_code=True)",
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained(name)",
    ],
)
def test_the_sweep_sees_it(source):
    assert problems(source)


@pytest.mark.parametrize(
    "source",
    [
        "import yaml\nyaml.safe_load(text)",
        "import torch\ntorch.load(file, weights_only=True)",
        "model.eval()",
        "re.compile(text)",
    ],
)
def test_the_sweep_leaves_alone(source):
    assert problems(source) == []
