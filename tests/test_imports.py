"""The plan of the package as a test: imports point upwards in this list, and never in a circle."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numerate
import numerate.lab

PACKAGE = Path(numerate.__file__).parent
# A room imports only rooms above it: first the library, then the lab, the playground and the command line.
LIBRARY = [
    "checks",
    "choices",
    "recommendation",
    "labels",
    "marks",
    "formats",
    "tokens",
    "numeric_tokens",
    "vocab",
    "spans",
    "distribution",
    "calibration",
    "targets",
    "losses",
    "objective",
    "decode",
    "answers",
]
LIBRARY += ["rewards", "judge", "integrations", "tokenizers", "inspection", "plotting", "web"]
LAB = re.findall(r"^    (\w+) {2,}\w", numerate.lab.__doc__ or "", re.MULTILINE)  # the folders, as the lab lists them
ROOMS = [
    "",
    *LIBRARY,
    *(f"lab.{room}" for room in LAB),
    "lab",
    "playground",
    "serve",
    "cli",
    "__main__",
]  # "": the package itself


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


@cache
def imports() -> dict[str, set[str]]:
    return {module: set(_imports(file)) for module, file in MODULES.items()}


def test_every_room_has_a_place() -> None:
    assert {_room(module) for module in MODULES} == set(ROOMS)


def test_nothing_is_loose_in_the_lab() -> None:
    assert {path.name for path in (PACKAGE / "lab").iterdir()} - {"__pycache__"} == {*LAB, "__init__.py"}


def test_imports_point_upwards() -> None:
    """The package itself resolves names lazily, and may point anywhere."""
    wrong = {}
    for module in set(MODULES) - {""}:
        allowed = ROOMS[: ROOMS.index(_room(module)) + 1]
        if below := {name for name in imports()[module] if _room(name) not in allowed}:
            wrong[module] = below
    assert wrong == {}


def test_no_import_circle() -> None:
    graph = {module: names - {"", module} for module, names in imports().items() if module}
    assert len([*TopologicalSorter(graph).static_order()]) >= len(graph)


def test_no_class_name_twice() -> None:
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in MODULES.values())
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


# Modules of one name in several rooms, and why. A name that is not here may occur once.
SAME_NAME = {
    "__main__": "the command line, and the folder of the harness's tasks",
    "answer": "a tab of the playground, and the answer of a report",
    "base": "the base class of the losses, and of the tasks",
    "calibration": "the package, and its plots",
    "cells": "of a table's rows, and of a grid of runs",
    "compare": "a command, and what it calls",
    "comparison": "a floor of the lab, and one comparison of scores",
    "data": "a floor of the lab, and the data that a report offers",
    "decisions": "those of an evaluation, and their chapter in a report",
    "drawing": "of pictures in tasks, and in reports",
    "export": "a floor of the lab, and its command",
    "figures": "of geometry problems, of reports, and of plots",
    "fit": "of a baseline, and of stacked runs",
    "loading": "of models in the lab, and in the playground",
    "losses": "the package, and their plots",
    "members": "of a pool that is asked, and of a run that is trained",
    "model": "a model that is searched, and one of several in a stack",
    "models": "a floor of the lab, and the models that the playground offers",
    "number": "the loss, and a tab of the playground",
    "objective": "the package, the class of that name, and the objective of stacked runs",
    "page": "of a chart with text, and of a report",
    "playground": "the package, and its command",
    "predict": "a command, and what it calls",
    "questions": "of charts, and of a model",
    "records": "files of runs, and their records in a report",
    "run": "of a model, of several at once, and of a baseline",
    "serve": "the package, and its command",
    "server": "of models, and of the playground",
    "settings": "of the command line, and of the playground",
    "tables": "that come with the package, of baselines, and of reports",
    "task": "a command, and one in each folder of tasks",
    "tokens": "the texts of tokens, and a tab of the playground",
    "train": "a command, what it calls, and that of stacked runs",
}


def test_no_module_name_twice() -> None:
    names = Counter(module.rpartition(".")[2] for module in MODULES)
    assert [name for name, count in names.items() if count > 1 and name not in SAME_NAME] == []


def test_no_test_file_name_twice() -> None:
    """Folders of tests are no packages, so two files of one name cannot be collected together."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
