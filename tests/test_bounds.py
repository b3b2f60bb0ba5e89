"""The dependencies in pyproject.toml: one lower bound for each package. `make bounds` runs the tests with those versions."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def bounds() -> dict[str, set[str]]:
    found = defaultdict(set)
    for requirement in map(Requirement, [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]):
        if requirement.name != PROJECT["name"]:
            found[requirement.name].add(str(requirement.specifier))
    return found


@pytest.mark.parametrize(("name", "asked"), bounds().items())
def test_each_package_has_one_lower_bound(name: str, asked: set[str]) -> None:
    (specifier,) = asked
    assert ">=" in specifier
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert Requirement(f"{name}{specifier}").specifier.contains(installed)
