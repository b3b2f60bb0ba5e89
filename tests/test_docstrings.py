"""Every public name says what it is, in sections that the API reference can read."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any

import pytest

import numerate

pytest.importorskip("trl", reason="the extra lab is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

_UNKNOWN = re.compile(r"^(Arguments|Parameters|Params|Return|Raise|Example|Settings[^\n]*|Returns [^\n]*|Notes):$", re.MULTILINE)


def function_of(member: Any) -> FunctionType | None:
    """The function behind a method or a property."""
    for attribute in ("__func__", "fget"):
        member = getattr(member, attribute, None) or member
    member = member.func if isinstance(member, cached_property) else member
    return member if isinstance(member, FunctionType) else None


def public(path: str, value: Any, room: ModuleType) -> Iterator[tuple[str, Any, ModuleType]]:
    """A public name, and those inside of it: of a module those of its ``__all__``, of a class those without underscore."""
    yield path, value, room
    if isinstance(value, ModuleType):
        for name in value.__all__:
            yield from public(f"{path}.{name}", getattr(value, name), value)
    elif isinstance(value, type):
        for base in value.__mro__:
            for name, member in vars(base).items() if base.__module__.startswith("numerate") else ():
                function = function_of(member)
                if not name.startswith("_") and function is not None and base.__module__ == function.__module__:
                    yield f"{path}.{name}", function, room


NAMES = {
    path: (value, room)
    for name in numerate.__all__
    for path, value, room in public(f"numerate.{name}", getattr(numerate, name), numerate)
}


def constant_docs(room: ModuleType) -> dict[str, str]:
    """Names of a file that are assigned, each with the string below it."""
    body = ast.parse(inspect.getsource(room)).body
    body += [line for block in body if isinstance(block, ast.If) for line in block.body]  # if TYPE_CHECKING
    found = {}
    for line, below in pairwise(body):
        targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        if targets and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(targets[0])] = str(below.value.value)
    return found


def doc_of(path: str, value: Any, room: ModuleType) -> str:
    if isinstance(value, (ModuleType, type, FunctionType)):
        return inspect.cleandoc(value.__doc__ or "")
    name = path.rpartition(".")[2]
    return constant_docs(home_of(name, room)).get(name, "")


def home_of(name: str, room: ModuleType) -> ModuleType:
    """The file that a package imports a name from; the room itself if it does not."""
    if room is numerate and name == "LOSSES":  # by `from numerate.losses import *`
        return home_of(name, numerate.losses)
    for line in ast.walk(ast.parse(inspect.getsource(room))):
        if isinstance(line, ast.ImportFrom) and name in [alias.name for alias in line.names]:
            return import_module(str(line.module))
    return room


def test_the_sweep_is_wide():
    assert len(NAMES) > 400
    assert {"numerate.LOSSES", "numerate.SMMDLoss.released", "numerate.integrations.trl.NumericCausalLMOutput"} <= set(NAMES)
    assert {"numerate.NumericLoss.forward", "numerate.NumericVocab.size", "numerate.answers.METRICS"} <= set(NAMES)


def test_every_public_name_has_a_docstring():
    assert [path for path, (value, room) in NAMES.items() if not doc_of(path, value, room).strip()] == []


def test_docstrings_are_sentences():
    """The first line ends, so that a table of contents can show it."""
    firsts = {path: doc_of(path, value, room).split("\n\n")[0].strip() for path, (value, room) in NAMES.items()}
    assert [path for path, first in firsts.items() if not first.endswith((".", ":", "::"))] == []


def test_sections_are_those_that_the_reference_reads():
    docs = {path: doc_of(path, value, room) for path, (value, room) in NAMES.items()}
    assert [path for path, doc in docs.items() if _UNKNOWN.search(doc)] == []


def test_arguments_that_are_described_exist():
    """In one test: for a thousand of them, pytest would take longer than what they check."""
    wrong, count = {}, 0
    for path, (value, room) in NAMES.items():
        section = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)+)", doc_of(path, value, room), re.MULTILINE)
        if section is None or not isinstance(value, (FunctionType, type)):
            continue
        count += 1
        described = [name.lstrip("*") for name in re.findall(r"^    (\*{0,2}\w+):", section[1], re.MULTILINE)]
        called = value.__init__ if isinstance(value, type) else value  # not __new__, which may take any arguments
        parameters = inspect.signature(called).parameters
        if not described or (unknown := [name for name in described if name not in parameters]):
            wrong[path] = unknown if described else "nothing"
    assert wrong == {}
    assert count > 100
