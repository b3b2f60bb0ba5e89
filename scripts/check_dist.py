"""Check the wheel and source distribution of ``make dist``: all required files, and nothing else.

python scripts/check_dist.py FOLDER
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1_000_000
MAY_BE_LARGE = {"numerate/lab/data/tables/diamonds.csv.gz"}  # a packaged table
NEEDED = ("numerate/py.typed", "numerate/playground/page/index.html", "numerate/lab/report/page.html")
BESIDE_THE_CODE = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Makefile",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
)


def sources() -> set[str]:
    """Return the files of the package in this checkout, by their path in a wheel."""
    files = (path for path in (ROOT / "src" / "numerate").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT / "src").as_posix() for path in files}


def problems_of_wheel(sizes: Mapping[str, int], wanted: set[str]) -> Iterator[str]:
    """Yield the problems of a wheel, given the sizes of its files and the files of the package."""
    inside = {name for name in sizes if name.startswith("numerate/")}
    notes = {name for name in sizes if name.partition("/")[0].endswith(".dist-info")}
    for name in sorted(set(sizes) - inside - notes):
        yield f"{name} is outside of the package"
    for name in sorted(name for name in sizes if {"tests", "__pycache__"} & set(name.split("/"))):
        yield f"{name} is not for users"
    for name in sorted(name for name, size in sizes.items() if size > MOST_BYTES and name not in MAY_BE_LARGE):
        yield f"{name} has {sizes[name]:,} bytes: expected at most {MOST_BYTES:,}"
    for name in sorted((wanted | set(NEEDED)) - inside):
        yield f"{name} is missing"
    if not any(name.endswith("/licenses/LICENSE") for name in notes):
        yield "the licence is missing"


def problems_of_sdist(names: set[str], wanted: set[str]) -> Iterator[str]:
    """Yield the problems of a source distribution, given its paths and the files of the package."""
    for name in sorted({*BESIDE_THE_CODE, *(f"src/{name}" for name in wanted)} - names):
        yield f"{name} is missing"
    if not any(name.startswith("tests/") for name in names):
        yield "the tests are missing"
    for name in sorted(name for name in names if name.startswith(("research/", "tests/research/"))):
        yield f"{name} is not for users"


def main(folder: Path) -> int:
    """Print the problems of the wheel and the source distribution in a folder; return the exit status."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    found = [f"{wheel.name}: {one}" for one in problems_of_wheel(sizes, sources())]
    found += [f"{sdist.name}: {one}" for one in problems_of_sdist(names, sources())]
    for path, count in ((wheel, len(sizes)), (sdist, len(names))):
        print(f"{path.name}: {count} files, {path.stat().st_size:,} bytes")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
