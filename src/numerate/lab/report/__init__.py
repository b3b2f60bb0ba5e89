"""The report of an experiment: does a numeric loss help on this task, by how much, at what cost, and is that noise?

from numerate.lab.report import write_report

write_report("runs/demo")  # runs/demo/report.html, report.json and report.csv
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_directory: str | Path, out: str | Path | None = None) -> Path:
    """Write ``report.html``, ``report.json`` and ``report.csv`` of a run; gives the path of the page.

    The page needs nothing beside it: no network, no other file. Cells that are not finished are left out and named.

    Args:
        run_directory: what ``numerate compare`` wrote.
        out: the folder to write to, by default the run's; or a path that ends in ``.html``, and the others lie beside it
            under the same name.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import scipy  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"a report needs {error.name}: run pip install 'numerate[report]'.") from error
    from numerate.lab.records import write_json, write_text
    from numerate.lab.report.analysis import setups
    from numerate.lab.report.downloads import to_csv
    from numerate.lab.report.page import chapters, to_data, to_html, to_table
    from numerate.lab.report.records import read_run

    run = read_run(run_directory)
    found = chapters(run, setups(run))
    page = Path(run_directory if out is None else out)
    if page.suffix != ".html":
        page = page / "report.html"
    data, table, html = to_data(run, found), to_csv(to_table(found)), to_html(run, found)
    write_json(page.with_suffix(".json"), data)
    write_text(page.with_suffix(".csv"), table)
    write_text(page, html)
    return page
