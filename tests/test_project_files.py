"""The files around the package: the citation, the workflow, and what contributors are told."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="pyyaml, of the extra lab, is not installed")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation():
    """By the schema of CFF 1.2.0: the fields that it requires, and those of this package."""
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["message"]
    assert citation["title"].partition(":")[0] == PROJECT["name"]
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"].partition(" AND ")[0]
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
    listed = [(depth, name) for depth, names in lines for name in re.findall(r"\.?\w+(?=/|\.py)", names)]
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


def test_a_release_is_built_apart_from_what_may_publish_it() -> None:
    """Trusted publishing: on tags alone, and nothing of this repository runs in the job whose identity PyPI trusts."""
    release = read(".github/workflows/release.yml")
    assert list(release[True]["push"]) == ["tags"]  # YAML reads the key `on` as true
    assert release["permissions"] == {}
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert (build["permissions"], publish["permissions"]) == ({"contents": "read"}, {"id-token": "write"})
    assert publish["environment"]["name"] == "pypi"
    assert not any("run" in step or "checkout" in step["uses"] for step in publish["steps"])
    used = [step["uses"] for job in (build, publish) for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    (check,) = [step["run"] for step in build["steps"] if "GITHUB_REF_NAME" in step.get("run", "")]
    line = check.split('"', 1)[1].rpartition('" ')[0].replace('\\"', '"').replace("${GITHUB_REF_NAME#v}", PROJECT["version"])
    assert line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()


def test_agents_are_told_of_files_and_tests_that_exist() -> None:
    told = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"[`(]([\w./-]+/[\w./-]+)[`)]", told) if not path.startswith(".venv")}
    assert len(paths) >= 6
    assert not {path for path in paths if not ((ROOT / path).exists() or (ROOT / "src" / "numerate" / path).exists())}


def test_extras_that_are_named_exist() -> None:
    """In errors, the skill and the documentation: ``pip install 'numerate[lab]'``."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.*"), *(ROOT / "src").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    texts = (file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py", ".txt"))
    named = {extra for text in texts for extras in re.findall(r"numerate\[([a-z, ]+)\]", text) for extra in extras.split(",")}
    assert len(named) >= 5
    assert named <= {*PROJECT["optional-dependencies"]}


def test_bounds_matrix_and_documentation_agree() -> None:
    """The set ``oldest`` is the bounds; the documentation and the classifiers list the sets; the workflow runs them."""
    spec = spec_from_file_location("scripts_test_versions", ROOT / "scripts" / "test_versions.py")
    assert spec is not None
    assert spec.loader is not None
    matrix = module_from_spec(spec)
    spec.loader.exec_module(matrix)
    lines = (
        (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").split("| set | Python |")[1].split("\n\n")[0].splitlines()
    )
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]
    *names, passed, skipped = [name.lower() for name in header if name]
    table = {name: dict(zip(("python", *names, passed, skipped), cells, strict=True)) for name, *cells in rows}
    assert all(int(cells[passed]) > 10 * int(cells[skipped]) for cells in table.values())
    assert [*table] == [*matrix.SETS]
    assert names == [*matrix.SHOWN]
    for name, versions in matrix.SETS.items():
        assert table[name]["python"] == versions.python
        assert {package: table[name][package] for package in versions.packages} == versions.packages
    for package in names:
        (specifier,) = bounds()[package]
        bound, lowest = (Version(text) for text in (specifier.removeprefix(">="), table["oldest"][package]))
        assert bound == lowest, package
    assert f">={matrix.SETS['oldest'].python}" == PROJECT["requires-python"]
    listed = re.findall(r":: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert listed == sorted((versions.python for versions in matrix.SETS.values()), key=Version)
    assert all((ROOT / path).exists() for path in matrix.TESTS)
    workflow = read(".github/workflows/versions.yml")
    assert workflow["jobs"]["versions"]["strategy"]["matrix"]["set"] == [*matrix.SETS]


def test_no_package_has_an_upper_bound() -> None:
    for name, asked in bounds().items():
        operators = {each.operator for specifier in asked for each in Requirement(f"{name}{specifier}").specifier}
        assert operators == {">="}, name
