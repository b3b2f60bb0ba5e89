"""Effect by model size: drawn values are those of the paired comparison, and there is a figure only if sizes differ."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.report.simulated import ReportPage, headline_of, reconfigure, rewrite
from tests.lab.report.test_report_decisions import make_run

from numerate.lab import stats
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup, setups
from numerate.lab.report.figures.drawing import FigurePlan, drawing, styles
from numerate.lab.report.figures.sizes import by_size
from numerate.lab.report.records import read_run

SIZES = {"tiny": 78_768, "org/SmolLM2-135M": 134_515_008, "my/SmolLM2-1.7B": 1_711_376_384}
WORSE = {"tiny": 2, "org/SmolLM2-135M": 10, "my/SmolLM2-1.7B": 16}  # examples on which smmd is farther than ce


def sized(folder: Path, sizes: Mapping[str, int] = SIZES, **options: Any) -> Path:
    """Write made-up runs of models of several sizes: the median is closer on all examples, smmd farther on more in large ones."""
    make_run(folder / "one", **{"splits": ("interpolate",), **options})
    for at, (model, parameters) in enumerate(sizes.items()):
        for cell in (folder / "one" / "cells").iterdir():
            shutil.copytree(cell, folder / "cells" / f"{cell.name}-{at}")
        reconfigure(folder, cells=f"*-{at}", model=model)
        reconfigure(folder, "result.json", f"*-{at}", cost={"parameters": parameters})
        few = WORSE.get(model, 0)

        def change(label: str, row: dict[str, Any], few: int = few) -> None:
            for own in (row["measures"], *(decided["measures"] for decided in row.get("decisions", {}).values())):
                own["relative_error"] = own["relative_error"] * 9 if row["index"] < few else own["relative_error"] / 9

        rewrite(folder, change, f"smmd-*-{at}")
    shutil.copy(folder / "one" / "experiment.json", folder)
    shutil.rmtree(folder / "one")
    return folder


def figures_of(folder: Path) -> list[FigurePlan]:
    found = setups(read_run(folder))
    return [*by_size([(setup, headline_of(setup)) for setup in found], styles(found[0].labels, ["ce"]))]


def errors(setup: Setup, label: str, rule: str) -> Any:
    return setup.values(label, "interpolate", "relative_error", rule)


def test_what_is_drawn_is_the_paired_comparison(tmp_path: Path):
    sized(tmp_path)
    (plan,) = figures_of(tmp_path)
    levers = [("ce", "median"), ("ce", "mean"), ("smmd", "median")]
    assert sorted((row["loss"], row["decision"]) for row in plan.data.where(model="tiny")) == sorted(levers)
    axes = plan.draw(plan.data).axes[0]
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 3]  # one line per pair, over three sizes
    assert len(drawn) == len(levers)
    for (label, rule), line in zip(levers, drawn, strict=True):
        gains = []
        for setup in sorted(setups(read_run(tmp_path)), key=lambda setup: SIZES[setup.model]):
            closer = stats.compare(errors(setup, "ce", "greedy"), errors(setup, label, rule), "sign")  # smaller errors are better
            (row,) = plan.data.where(model=setup.model, loss=label, decision=rule)
            ends = closer.difference.numbers
            assert (row["difference"], row["low"], row["high"]) == pytest.approx(ends)
            assert row["parameters"] == SIZES[setup.model]
            gains.append(100 * ends[0])
            lows = [low for line in axes.lines if len(line.get_xdata()) == 2 for low in line.get_ydata()]
            assert np.isclose(lows, 100 * ends[1]).any()
        assert list(line.get_ydata()) == pytest.approx(gains)
        assert list(line.get_xdata()) == pytest.approx(sorted(SIZES.values()), rel=0.2)  # a little beside each other
    shares = [row["difference"] for row in plan.data.where(loss="smmd")]
    assert shares == sorted(shares, reverse=True)
    assert axes.get_xscale() == "log"
    assert [float(line.get_ydata()[0]) for line in axes.lines[:1]] == [0]


def test_p_values_are_corrected_for_all_points(tmp_path: Path):
    (plan,) = figures_of(sized(tmp_path))
    plain = {}
    for setup in setups(read_run(tmp_path)):
        for label, rule in (("ce", "median"), ("ce", "mean"), ("smmd", "median")):
            plain[setup.model, label, rule] = stats.compare(
                errors(setup, label, rule), errors(setup, "ce", "greedy"), "sign"
            ).p_value
    found = {(row["model"], row["loss"], row["decision"]): row["p_holm"] for row in plan.data.where()}
    assert found == pytest.approx(stats.holm(plain))
    assert {row["better"] for row in plan.data.where()} == {True, False, None}


def test_an_accuracy_without_decisions(tmp_path: Path):
    (plan,) = figures_of(sized(tmp_path, rules={"ce": (), "smmd": ()}, headline="exact"))
    assert {(row["loss"], row["decision"], row["difference"]) for row in plan.data.where()} == {("smmd", "greedy", 0.0)}
    assert plan.caption.startswith("Each point is the difference in exact answers between a loss and decision and ce with greedy")


def test_no_figure(tmp_path: Path):
    """With one model, with two of one size, without a baseline, or on other data."""
    assert figures_of(sized(tmp_path / "one", {"tiny": 78_768})) == []
    assert figures_of(sized(tmp_path / "same", {"tiny": 78_768, "tony": 78_768})) == []
    two = {name: SIZES[name] for name in [*SIZES][:2]}
    assert figures_of(sized(tmp_path / "none", two, losses=("smmd", "emd"))) == []
    other = sized(tmp_path / "other", two)
    reconfigure(other, cells="*-1", data="other.csv")
    assert figures_of(other) == []
    assert "Effect by model size" not in write_report(tmp_path / "one").read_text(encoding="utf-8")


def test_page(tmp_path: Path):
    page = ReportPage(write_report(sized(tmp_path, splits=("interpolate", "extrapolate"))))
    (label,) = [given["aria-label"] for given in page.all("svg") if given["aria-label"].startswith("Effect by model size")]
    assert label.startswith(
        "Effect by model size: regression. ce decided by median, tiny, 78,768 parameters, in range: +100.0 points ("
    )
    assert "sizes1.csv" in page.downloads
    assert len(ids := page.values("id")) == len(set(ids))
    assert "#sizes1" in [given["href"] for given in page.all("a", within="nav")]
    (told,) = re.findall(r"From tiny \(78,768 parameters\).*?is not tested\.", page.text)
    assert told.startswith(
        "From tiny (78,768 parameters) to SmolLM2-1.7B (1,711,376,384 parameters), in range: ce decided by median from +100.0 to "
        "+100.0 points, ce decided by mean from −100.0 to −100.0 points and smmd decided by median from +83.3 to −33.3 points."
    )
    figures = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["figures"]
    (rows,) = [figure["rows"] for figure in figures if figure["figure"] == "sizes"]
    assert len(rows) == 3 * 3 * 2  # sizes, pairs, splits


@pytest.mark.parametrize("sizes", [SIZES, {f"model-number-{i}-of-a-long-name": 10**6 + 10**4 * i for i in range(5)}])
def test_labels_do_not_touch(tmp_path: Path, sizes: Mapping[str, int]):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    (plan,) = figures_of(sized(tmp_path, sizes, splits=("interpolate", "extrapolate")))
    with drawing():
        figure = plan.draw(plan.data)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        lines = [  # every label is two lines below empty ones
            (box.x0, box.x1, round(box.y0))
            for text in axes.get_xticklabels()
            if (box := text.get_window_extent(canvas.get_renderer()))
        ]
        assert len(lines) == len(sizes)
        for at, (x0, x1, y0) in enumerate(lines):
            assert all(y0 != other[2] or x1 < other[0] or other[1] < x0 for other in lines[at + 1 :])
