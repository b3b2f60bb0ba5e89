"""The report of an experiment: does a numeric loss help on this task, by how much, at what cost, and is it significant?

    from numerate.lab.report import write_report

    write_report("runs/demo")  # runs/demo/report.html, report.json and report.csv

If the runs have decisions (``decide``), their figures are also in ``report_decisions.csv``.

:class:`numerate.lab.report.data.ReportData` describes ``report.json``, :func:`numerate.lab.report.data.to_table` ``report.csv``.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_directory: str | Path, out: str | Path | None = None) -> Path:
    """Write ``report.html``, ``report.json`` and ``report.csv``; return the path of the page.

    The page is self-contained: it needs no network and no other file. Unfinished runs are left out and listed.

    Args:
        run_directory: Directory written by ``numerate compare``.
        out: Directory for the files, by default ``run_directory``; or a path that ends in ``.html``, with the other two files
            beside it under the same name.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import scipy  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"a report needs {error.name}: run pip install 'numerate[report]'.") from error
    from numerate.lab.files.records import check_writable, write_json, write_text
    from numerate.lab.report.records import read_run

    experiment = read_run(run_directory)
    page = Path(run_directory if out is None else out)
    if page.suffix != ".html":
        page = page / "report.html"
    check_writable(page.parent)
    from numerate.lab.report.analysis import setups  # these load torch
    from numerate.lab.report.chapters import across, chapters
    from numerate.lab.report.data import to_data, to_decisions, to_table
    from numerate.lab.report.page import to_html
    from numerate.lab.report.tables import to_csv

    contents = chapters(experiment, setups(experiment))
    figures = across(experiment, contents)
    data, table, html = to_data(experiment, contents, figures), to_csv(to_table(contents)), to_html(experiment, contents, figures)
    write_json(page.with_suffix(".json"), data)
    write_text(page.with_suffix(".csv"), table)
    if data["decisions"]:
        write_text(page.with_name(f"{page.stem}_decisions.csv"), to_csv(to_decisions(contents)))
    write_text(page, html)
    return page
