"""The files around the package: the citation, the workflow, and what contributors are told."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="pyyaml, of the extra train, is not installed")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation():
    """By the schema of CFF 1.2.0: the fields that it requires, and those of this package."""
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["message"]
    assert citation["title"].partition(":")[0] == PROJECT["name"]
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    for work in (citation, *citation["references"]):
        assert work["authors"]
        for author in work["authors"]:
            assert set(author) in ({"name"}, {"family-names"}, {"family-names", "given-names"})


def test_the_versions_of_the_tests_are_those_that_the_package_allows():
    requirements = pytest.importorskip("packaging.requirements")
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    extras = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in ("ray", "docs", "all")}
    asked = [*PROJECT["dependencies"], *(one for wanted in extras.values() for one in wanted)]
    left = set()
    for requirement in (requirements.Requirement(one) for one in asked if not one.startswith("numerate[")):
        if requirement.name not in pinned:
            left.add(requirement.name)
            continue
        assert requirement.specifier.contains(pinned[requirement.name]), requirement
    assert left == {"torch", "triton"}


def test_contributors_are_told_where_everything_is():
    """The tree lists every module and folder of the package, those of the lab in its own order."""
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("src/numerate/\n")[1].split("\ndocs/")[0]
    lines = [(len(line) - len(line.lstrip()), re.split(r"\s{2,}", line.strip())[0]) for line in tree.splitlines()]
    listed = [(depth, name) for depth, names in lines for name in re.findall(r"\w+(?=/|\.py)", names)]
    package = ROOT / "src" / "numerate"
    there = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")} - {"__init__", "__main__", "__pycache__"}
    assert sorted(name for depth, name in listed if depth == 2) == sorted(there)
    lab = re.findall(r"^    (\w+) {2,}\w", (package / "lab" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for depth, name in listed if depth == 4] == lab


def bounds() -> dict[str, set[str]]:
    found = defaultdict(set)
    for requirement in map(
        Requirement, [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    ):
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
