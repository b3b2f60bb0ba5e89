"""The table of losses in docs/choosing.md: complete, in the order of the registry, and extended by the site for a new loss."""

from __future__ import annotations

from pathlib import Path

import numerate
from numerate import LOSSES

PAGE = (Path(__file__).parents[1] / "docs" / "choosing.md").read_text(encoding="utf-8")
SEEN = [(name, loss.sees) for name, loss in LOSSES.items()]


def test_the_table_has_soft_labels_and_every_loss(script):
    assert script.rows(PAGE) == ["soft", *(name for name, loss in LOSSES.items() if loss.__name__ in numerate.losses.__all__)]


def test_a_new_loss_gets_a_row_at_the_end_of_the_table(script):
    new = ("power", "How far the mass lies from the target.")
    text = script.with_other_losses(PAGE, [*SEEN, new])
    assert script.rows(text) == [*script.rows(script.with_other_losses(PAGE, SEEN)), "power"]
    assert f"\n| `power` | {new[1]} | |\n" in text
    assert text.replace(f"| `power` | {new[1]} | |\n", "") == script.with_other_losses(PAGE, SEEN)


def test_a_table_that_has_every_loss_stays_as_it_is(script):
    assert script.with_other_losses(PAGE, [seen for seen in SEEN if seen[0] in script.rows(PAGE)]) == PAGE
