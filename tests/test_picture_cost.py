"""scripts/picture_cost.py has a line for every visual task."""

from __future__ import annotations

from numerate.lab.data import TASKS


def test_every_visual_task_has_a_line(script, capsys):
    script.main(["--count", "2"])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == [f"`{name}`" for name, task in TASKS.items() if task.visual]
    assert all(float(line[2].replace(",", "")) > 0 for line in lines)
