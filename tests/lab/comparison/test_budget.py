"""What fits into a time, with made-up speeds; nothing is trained."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.lab.comparison.budget import (
    LEAST_TESTS,
    Budget,
    Choice,
    GridWork,
    Kind,
    Pace,
    best_choice,
    finished,
    left_out,
    quick_look,
)

LOSSES = ("ce", "soft", "smmd", "ntil")
LEAST, MOST, ENOUGH = Choice(2, 1, 10, LEAST_TESTS), Choice(4, 8, 600, 500), 300


def work(step=0.1, answer=0.01, begin=2.0, **settings):
    paces = {"ce": 1.0, "soft": 2.0, "smmd": 1.1, "ntil": 1.3}
    kinds = [Kind(loss, Pace(begin, step * slower, answer), (1200,)) for loss, slower in paces.items()]
    return GridWork(LOSSES, kinds, **{"slots": 2, **settings})


def best(seconds, **machine):
    return best_choice(LEAST, MOST, ENOUGH, work(**machine).seconds, seconds)


@st.composite
def problems(draw):
    """The least and the most, of which some parts are given and so the same, and a machine."""
    most = Choice(draw(st.integers(2, 6)), draw(st.integers(1, 10)), draw(st.integers(1, 2000)), draw(st.integers(1, 2000)))
    fixed = draw(st.sets(st.sampled_from(Choice._fields)))
    low = zip(Choice._fields, most, (2, 1, 10, LEAST_TESTS), strict=True)
    least = Choice(*(high if name in fixed else min(few, high) for name, high, few in low))
    names = [f"loss{index}" for index in range(most.losses)]
    speed = st.floats(0.001, 2.0)
    paces = [Pace(draw(speed), draw(speed), draw(speed) / 10) for _ in names]
    rows = draw(st.sampled_from([(math.inf,), (300,), (math.inf, math.inf)]))
    kinds = [Kind(name, pace, rows) for name, pace in zip(names, paces, strict=True)]
    machine = {"slots": draw(st.integers(1, 4)), "stacked": draw(st.booleans()), "trials": draw(st.integers(0, 3))}
    return least, most, draw(st.sampled_from([50, 300])), GridWork(names, kinds, **machine)


@given(problems(), st.floats(1.0, 1e5))
def test_what_is_planned_fits_or_is_the_least(problem, seconds):
    least, most, enough, machine = problem
    choice = best_choice(least, most, enough, machine.seconds, seconds)
    assert choice == least or machine.seconds(choice) <= seconds
    assert all(low <= size <= high for low, size, high in zip(least, choice, most, strict=True))
    if machine.seconds(most) <= seconds:
        assert choice == most


@pytest.mark.parametrize(
    ("seconds", "choice"),
    [
        (10_000, (4, 8, 600, 500)),
        (600, (4, 5, 350, 200)),  # first, more seeds than five, and more steps and test rows than enough
        (400, (3, 5, 300, 200)),  # then losses
        (250, (2, 4, 300, 200)),  # then more than three seeds
        (130, (2, 3, 200, 200)),  # then steps
        (60, (2, 2, 100, 200)),  # then seeds, since untrained models show nothing
        (25, (2, 1, 50, 0)),  # then test rows and steps
    ],
)
def test_what_is_left_out_first(seconds, choice):
    losses, seeds, steps, tests = best(seconds)
    assert (losses, seeds, steps // 50 * 50, tests // 50 * 50) == choice


def test_test_rows_are_left_out_where_evaluation_dominates():
    slow, fast = best(1000, answer=0.3), best(1000, answer=0.001)
    assert (slow.tests, fast.tests) == (200, 500)
    assert slow.steps >= ENOUGH


def test_trials_runs_at_a_time_and_stacks_count():
    choice = Choice(2, 3, 100, 200)
    alone = work(slots=1).seconds(choice)
    assert work(slots=2).seconds(choice) < alone
    assert work(slots=1, stacked=True).seconds(choice) == pytest.approx(alone)
    trials = sum(kind.seconds(choice) for kind in work().kinds[:2])
    assert work(slots=1, trials=2).seconds(choice) == pytest.approx(alone + 2 * trials)


def test_when_the_last_job_ends():
    assert finished(1, [1.0, 2.0, 3.0]) == 6.0
    assert finished(2, [3.0, 1.0, 1.0]) == 3.0
    assert finished(2, []) == 0.0


def test_what_is_left_out_is_said():
    text = left_out(LOSSES, Choice(3, 3, 300, 200), Choice(4, 5, 600, 500))
    assert text == "Left out: ntil, 2 of 5 seeds, 300 of 600 steps, 300 of 500 test rows."
    assert left_out(LOSSES, Choice(4, 8, 600, 500), Choice(4, 5, 600, 500)) == "Nothing is left out."


def test_a_quick_look_says_so():
    enough = Choice(4, 3, 300, 200)
    assert quick_look(enough, MOST, ENOUGH) == ""
    assert quick_look(enough, MOST, ENOUGH, late=60.0) == "What was asked for takes about 1 min longer than the budget."
    assert quick_look(enough._replace(seeds=1), MOST, ENOUGH).startswith("This is a quick look: 1 seed. ")
    text = quick_look(Choice(2, 2, 20, 60), MOST, ENOUGH, late=95.0)
    assert text.startswith("This is a quick look: 2 seeds, 20 steps, 60 test rows. ")
    assert text.endswith("about 1 min 35 s longer than the budget.")


@pytest.mark.parametrize("value", ["2s", "29s", 12.5, "0", "0.5s", -1])
def test_a_budget_below_the_floor_names_it(value):
    with pytest.raises(ValueError, match=r"is too short to load and train anything: expected --budget 30s or more\.$"):
        Budget.of(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300), ("90s", 90), ("5m", 300), ("5 min", 300), ("1h", 3600), ("1.5h", 5400), (42.5, 42.5)]
)
def test_times(text, seconds):
    assert Budget.of(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "5x", "m", "-5m", "5m30", "nan", "inf", True, None, float("nan"), float("inf")])
def test_times_that_are_none(text):
    with pytest.raises(ValueError, match=r"^budget=.* such as 300, 90s, 5m or 1h"):
        Budget.of(text)


@pytest.mark.launch
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5 apples", "budget='5 apples' is not a time: expected seconds, or a number with s, m or h"),
        ("2s", "expected --budget 30s"),
    ],
)
def test_a_wrong_budget_is_an_error_before_torch_is_imported(value, message):
    script = """
import sys
from numerate.cli import app
try:
    app(["compare", "--budget", sys.argv[1]], prog_name="numerate")
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, value], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["1", "False"]
    assert message in " ".join(done.stderr.split())
