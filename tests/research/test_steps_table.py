"""The table of training steps in docs/benchmarks.md, which is shorter than what ``benchmarks/training_speed.py`` prints."""

from __future__ import annotations

from pathlib import Path

from benchmarks import training_speed

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_was_measured(capsys):
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
