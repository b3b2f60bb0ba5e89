"""The plan of the package as a test: imports point upwards in this list, and never in a circle."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import numerate
import numerate.lab

PACKAGE = Path(numerate.__file__).parent
# A room imports only rooms above it: first the library, then the lab, the playground and the command line.
LIBRARY = ["checks", "choices", "recommendation", "labels", "marks", "tokens", "vocab", "spans", "distribution", "calibration"]
LIBRARY += [
    "targets",
    "losses",
    "objective",
    "decode",
    "answers",
    "rewards",
    "integrations",
    "tokenizers",
    "inspection",
    "plotting",
]
LAB = re.findall(r"^    (\w+) {2,}\w", numerate.lab.__doc__ or "", re.MULTILINE)  # the folders, as the lab lists them
ROOMS = ["", *LIBRARY, *(f"lab.{room}" for room in LAB), "lab", "playground", "cli", "__main__"]  # "": the package itself


def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def _room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == "lab" else parts[:1])


def _imports(file: Path) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, path = name.partition(".")
            if package == "numerate":
                while path not in MODULES:  # a name that a module defines
                    path = path.rpartition(".")[0]
                yield path


IMPORTS = {module: set(_imports(file)) for module, file in MODULES.items()}


def test_every_room_has_a_place() -> None:
    assert {_room(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize(
    "module", sorted(set(MODULES) - {""})
)  # the package itself resolves names lazily, and may point anywhere
def test_imports_point_upwards(module: str) -> None:
    allowed = ROOMS[: ROOMS.index(_room(module)) + 1]
    assert {_room(name) for name in IMPORTS[module]} <= set(allowed)


def test_no_import_circle() -> None:
    graph = {module: names - {"", module} for module, names in IMPORTS.items() if module}
    assert len([*TopologicalSorter(graph).static_order()]) >= len(graph)


def test_no_class_name_twice() -> None:
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in MODULES.values())
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
