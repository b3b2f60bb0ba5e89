"""Tables that come with the package. A name such as ``diamonds`` stands for one wherever a task reads a table from a file.

README.md beside this file has the origin and the licence of each.
"""

from __future__ import annotations

from pathlib import Path

from numerate.checks import nearest
from numerate.lab.data.row_reader import BadData

FOLDER = Path(__file__).parent
TABLES = tuple(sorted(file.name.removesuffix(".csv.gz") for file in FOLDER.glob("*.csv.gz")))
"""The names of the tables."""


def table_file(path: Path) -> Path:
    """Return the file of a table that comes with the package, if ``path`` is its name and no file; else ``path``.

    Raises:
        BadData: the path looks like the name of a table (no folder and no suffix), and is neither that nor a file.

    Examples:
        >>> table_file(Path("diamonds")).name, str(table_file(Path("flats.csv")))
        ('diamonds.csv.gz', 'flats.csv')
    """
    name = str(path)
    if path.suffix or len(path.parts) != 1 or path.is_file() or (path.is_dir() and name not in TABLES):
        return path
    if name not in TABLES:
        remedy = f"Name a file, or one of these tables: {', '.join(TABLES)}.{nearest(name, TABLES)}"
        raise BadData("is neither a file nor a table that comes with numerate", remedy, path)
    return FOLDER / f"{name}.csv.gz"
