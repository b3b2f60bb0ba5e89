"""The pages of results are what their commands print, their figures are drawn from the scores, and their links lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from benchmarks import training_speed

ROOT = Path(__file__).parents[2]
RESEARCH = sorted(ROOT.glob("research/**/*.md"))


def names(folder: str) -> list[str]:
    return [page.stem for page in sorted((ROOT / folder).glob("*.md")) if "<!-- python research/" in page.read_text("utf-8")]


@pytest.mark.parametrize("name", [*names("research/results"), *names("docs")])
def test_the_tables_of_a_page_are_those_of_its_commands(script, name):
    (page,) = (page for page in script.pages() if page.stem == name)
    text = page.read_text(encoding="utf-8")
    assert text.count(script.MARK) == text.count("<!-- end -->")
    assert script.fill(text) == text, f"run python research/pages.py {name}"


def test_a_table_is_replaced(script, monkeypatch):
    monkeypatch.setattr(script, "output", lambda command: f"\n| {command} |\n")
    page = "before\n<!-- python research/a.py x -->\n| old |\n| old |\n<!-- end -->\nafter `python research/b.py`\n"
    assert script.fill(page) == page.replace("| old |\n| old |", "| a.py x |")


def test_a_command_that_fails_says_so(script):
    with pytest.raises(ValueError, match=r"tables.py nothing failed: usage"):
        script.output("tables.py nothing")
    with pytest.raises(ValueError, match="no file fits research/none"):
        script.output("tables.py tests research/none*.xz")


def test_figures_are_drawn_from_the_scores(script):
    import figures

    for name, figure in figures.FIGURES.items():
        with Image.open(ROOT / figure.file) as image:
            assert image.text[figures.DIGEST] == figure.digest, f"run python research/figures.py {name}"


def test_every_picture_is_a_figure(script):
    import figures

    drawn = {figure.file for figure in figures.FIGURES.values()}
    assert {f"research/images/{file.name}" for file in (ROOT / "research" / "images").iterdir()} <= drawn
    shown = [image for page in RESEARCH for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))]
    elsewhere = {"results.png", "gains.png"}  # docs/results.md and README.md
    assert {Path(image).name for image in shown} == {Path(file).name for file in drawn} - elsewhere


@pytest.mark.parametrize("page", RESEARCH, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", RESEARCH, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page):
    named = re.findall(r"(?:research|scripts|docs)/[\w/.-]+\.(?:py|yaml|csv|xz|md)\b", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists() and not name.endswith("_.yaml")] == []


@pytest.mark.parametrize(("file", "row"), [("training", "training: "), ("decoding", "decoding: ")])
def test_the_counts_of_architectures(file, row):
    statuses = pd.read_csv(ROOT / "research" / "scores" / f"architectures_{file}.csv")["status"].value_counts()
    (line,) = re.findall(rf"^\| {row}.*", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"), re.MULTILINE)
    wrong = statuses.reindex(["differs", "refused", "fails"]).fillna(0).sum()
    counts = (statuses.sum(), statuses["exact"], wrong, statuses["not built"], statuses["nothing to compare"])
    assert line.endswith(" | ".join(f"{count:.0f}" for count in counts) + " |")


def test_the_counts_of_architectures_with_soft_labels():
    scores = pd.read_csv(ROOT / "research" / "scores" / "architectures_training.csv")
    exact = scores[scores["status"] == "exact"]
    counts = f"for {(exact['soft'] == 'yes').sum()} of the {(exact['kind'] != 'masked').sum()} exact models"
    assert counts in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_the_page_of_benchmarks_shows_what_was_measured(capsys):
    """Rows of docs/benchmarks.md: objective, then time and memory with ``attach`` and from logits."""
    kept = [str(ROOT / "research" / "scores" / f"{name}_steps.csv") for name in ("llama", "qwen15", "smollm2")]
    training_speed.main(["--table", *kept])
    measured = [_cells(line) for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").partition("## From logits")[0]
    shown = [_cells(line)[1:] for line in page.splitlines() if line.startswith("|")][2:]  # without the head
    assert len(shown) == 19
    assert all(row in [[cells[0], cells[1], cells[3], cells[4], cells[6]] for cells in measured] for row in shown)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
