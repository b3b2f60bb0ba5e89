"""Recommendations: loss and decision exist and can be run, and every figure stands on the page that is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import numerate as nm
from numerate.checks import choices
from numerate.cli.settings import experiment_types, parse_settings
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data import TASKS, Regression
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.evaluation.decisions import GREEDY, check_decisions
from numerate.lab.report.recommended import recommended_for
from numerate.lab.training.config import CROSS_ENTROPY, RULES, SOFT, in_format
from numerate.recommendation import NumberKind

ROOT = Path(__file__).parents[1]
every_kind = pytest.mark.parametrize("kind", choices(NumberKind))


@every_kind
def test_loss_and_decision_exist(kind: NumberKind):
    best = nm.recommended(kind)
    assert isinstance(best, nm.recommendation.Recommendation)
    assert best.kind == kind
    assert best.loss in (CROSS_ENTROPY, *nm.LOSSES, *SOFT)
    assert best.decision in (GREEDY, *RULES)
    assert best.format == ("padded" if kind == "sums" else "plain")


@every_kind
@pytest.mark.parametrize("parameters", [None, 494_000_000])
def test_the_section_exists_and_has_every_figure(kind: NumberKind, parameters: int | None):
    best = nm.recommended(kind, parameters=parameters)
    name, _, anchor = best.results.partition("#")
    page = (ROOT / name).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    number = r"\d+(?:[.,]\d+)*"
    figures = re.findall(rf"{number}(?: to {number})?(?: %)?", best.reason)  # 0.494, 1,000, 13 to 55 %
    told = " ".join(page.split())
    assert [figure for figure in figures if re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", told) is None] == []


def test_figures_that_other_pages_repeat():
    """Each figure is quoted by a reason, and the one that sells is the same wherever it stands."""
    figures = json.loads((ROOT / "src" / "numerate" / "results.json").read_text(encoding="utf-8"))
    reasons = " ".join(nm.recommended(kind, parameters=p).reason for kind in choices(NumberKind) for p in (None, 10**9))
    assert [name for name, figure in figures.items() if figure not in reasons] == []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    claims = [claim for page in pages for claim in re.findall(r"cut the\s+error\s+by\s+(\d+ to \d+ %)", page.read_text("utf-8"))]
    assert set(claims) == {figures["tables_few"]}


@pytest.mark.parametrize(("task", "chosen"), [*((task, {}) for task in TASKS), ("arithmetic", {"operations": "+"})])
def test_what_is_recommended_for_a_task_can_be_run(task: str, chosen: dict[str, str]):
    """Every task has a kind of numbers, and ``numerate compare`` takes the options for it."""
    best = recommended_for(TASKS[task](**chosen), "tiny")
    assert best.format == ("padded" if chosen else "plain")
    words = best.options.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    settings = parse_settings([given["--set"]] if "--set" in given else [], experiment_types([task]))
    formats = given.get("--format", "plain")
    values = {"losses": [given["--loss"]], "formats": formats, "tasks": [task], "task_settings": chosen, **settings}
    cells = read_experiment(values).cells()
    (mine,) = [cell for cell in cells if cell.seed == 0 and cell.name == in_format(best.loss, best.format)]
    assert TaskFormat.fit(TASKS[task](**chosen), mine.format, most=10).format.kind == best.format
    assert mine.decide == (() if best.decision == GREEDY else (best.decision,))
    check_decisions(mine.decide, TASKS[task]())


def test_ratings_are_a_kind_of_their_own():
    own = [Regression(target="x"), Regression(target="x", average="mean"), Regression(target="x", raters=("a", "b"))]
    assert [task.number_kind for task in own] == ["table", "raters", "raters"]


def test_the_size_of_the_model_decides_which_figures_are_quoted():
    small, sizes = nm.recommended("table"), [nm.recommended("table", parameters=10**power) for power in (6, 9, 10)]
    assert sizes[0] == small
    assert "pre-trained" in sizes[1].reason
    assert "pre-trained" not in small.reason
    assert "has been measured" in sizes[2].reason
    assert "has been measured" not in sizes[1].reason
    assert {(best.loss, best.decision) for best in sizes} == {("soft", "median")}
    assert [best.members for best in (small, *sizes)] == [8, 8, 1, 1]  # pools of pre-trained models are not measured
    with pytest.raises(ValueError, match="parameters=0 .*expected the number of parameters of a model"):
        nm.recommended("table", parameters=0)


def test_a_format_is_recommended_only_for_models_from_scratch():
    small, large = nm.recommended("sums"), nm.recommended("sums", parameters=135_000_000)
    assert small == nm.recommended("sums", parameters=10**6)
    assert (small.format, large.format) == ("padded", "plain")
    assert small.options == "--loss ce --format padded"
    assert large.options == "--loss ce"
    assert str(small).startswith("For sums, train with ce on padded numbers and give greedy answers. ")
    assert str(large).startswith("For sums, train with ce and give greedy answers. ")
    assert large.reason == f"{small.reason} Pre-trained models have not been measured with padded numbers."


@pytest.mark.parametrize("wrong", ["tables", "", None, 3])
def test_an_unknown_kind_is_refused(wrong: object):
    with pytest.raises(ValueError, match=r"kind=.* is not known: expected one of 'table', 'raters', 'sums'"):
        nm.recommended(wrong)  # type: ignore[arg-type]


def test_needs_no_torch():
    script = "import sys, numerate; numerate.recommended('table'); print('torch' in sys.modules or 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
