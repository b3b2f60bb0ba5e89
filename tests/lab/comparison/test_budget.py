"""What fits into a time, with made-up speeds; nothing is trained."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.lab.comparison.budget import (
    ENOUGH_STEPS,
    LEAST_TESTS,
    Budget,
    Choice,
    GridWork,
    Kind,
    Options,
    Pace,
    best_choice,
    finished,
    kept_order,
    left_out,
    quick_look,
)
from numerate.lab.files.durations import seconds_of

LOSSES = ("ce", "soft", "smmd", "ntil")
OPTIONS = Options(LOSSES, 2, (1, 8), (10, 600), ENOUGH_STEPS, (LEAST_TESTS, 500))


def work(step=0.1, answer=0.01, begin=2.0, **settings):
    paces = {"ce": 1.0, "soft": 2.0, "smmd": 1.1, "ntil": 1.3}
    kinds = tuple(Kind(loss, Pace(begin, step * slower, answer), splits=(1200,)) for loss, slower in paces.items())
    return GridWork(kinds, **{"slots": 2, "report": (6.0, 0.001), **settings})


@st.composite
def problems(draw):
    """Options, of which some are given and so have one value, and a machine."""
    most = Choice(draw(st.integers(2, 6)), draw(st.integers(1, 10)), draw(st.integers(1, 2000)), draw(st.integers(1, 2000)))
    fixed = draw(st.sets(st.sampled_from(Choice._fields)))
    names = tuple(f"loss{index}" for index in range(most.losses))
    options = Options(
        names,
        most.losses if "losses" in fixed else 2,
        (most.seeds if "seeds" in fixed else 1, most.seeds),
        (most.steps if "steps" in fixed else min(10, most.steps), most.steps),
        draw(st.sampled_from([50, 300])),
        (most.tests if "tests" in fixed else min(LEAST_TESTS, most.tests), most.tests),
    )
    speed = st.floats(0.001, 2.0)
    paces = [Pace(draw(speed), draw(speed), draw(speed) / 10) for _ in names]
    rows = draw(st.sampled_from([(None,), (300,), (None, None)]))
    kinds = tuple(Kind(name, pace, splits=rows) for name, pace in zip(names, paces, strict=True))
    machine = {"slots": draw(st.integers(1, 4)), "stacked": draw(st.booleans()), "trials": draw(st.integers(0, 3))}
    return options, GridWork(kinds, **machine, report=(draw(speed), draw(speed) / 1000)), fixed, most


SECONDS = st.floats(1.0, 1e5)


@given(problems(), SECONDS)
def test_what_is_planned_fits_or_is_said_not_to(problem, seconds):
    options, machine, fixed, most = problem
    choice, needed = best_choice(options, machine, seconds)
    assert needed == machine.seconds(choice, options.losses)
    if needed > seconds:  # then it is the least there is, and nothing else fits either
        assert choice == (options.least_losses, options.seeds[0], options.steps[0], options.tests[0])
        assert all(machine.seconds(other, options.losses) > seconds for other in options.choices())
    for name in fixed:
        assert getattr(choice, name) == getattr(most, name)


@given(problems(), SECONDS, SECONDS)
def test_more_time_never_gives_less_of_everything(problem, one, other):
    options, machine, _, _ = problem
    (less, _), (more, _) = (best_choice(options, machine, seconds) for seconds in sorted((one, other)))
    assert not (more.losses < less.losses and more.seeds < less.seeds and more.steps < less.steps)
    preferred = list(options.choices())
    assert preferred.index(more) <= preferred.index(less)


@given(problems())
def test_the_order_of_preference_never_prefers_less(problem):
    options, _, _, _ = problem
    for better, worse in pairwise(options.choices()):
        assert any(mine > other for mine, other in zip(better, worse, strict=True))


@pytest.mark.parametrize(
    ("seconds", "choice"),
    [
        (10_000, (4, 8, 600, 500)),
        (600, (4, 5, 360, 500)),  # first, more seeds than five and more steps than enough
        (400, (3, 5, 330, 350)),  # then losses
        (300, (2, 5, 300, 500)),
        (200, (2, 3, 330, 350)),  # then more than three seeds
        (130, (2, 3, 210, 200)),  # then steps
        (60, (2, 2, 100, 350)),  # then seeds, as untrained models tell nothing
        (30, (2, 1, 100, 60)),  # then test rows
        (20, (2, 1, 30, 500)),
    ],
)
def test_what_is_left_out_first(seconds, choice):
    assert best_choice(OPTIONS, work(), seconds)[0] == choice


def test_test_rows_are_left_out_where_evaluation_dominates():
    slow = best_choice(OPTIONS, work(answer=0.3), 1000)[0]
    fast = best_choice(OPTIONS, work(answer=0.001), 1000)[0]
    assert (slow.tests, fast.tests) == (200, 500)
    assert slow.steps >= ENOUGH_STEPS


def test_trials_runs_at_a_time_and_stacks_count():
    choice = Choice(2, 3, 100, 200)
    alone = work(slots=1).seconds(choice, LOSSES)
    assert work(slots=2).seconds(choice, LOSSES) < alone
    assert work(slots=1, stacked=True).seconds(choice, LOSSES) == pytest.approx(alone)
    trials = sum(kind.seconds(choice) for kind in work().kinds[:2])
    assert work(slots=1, trials=2).seconds(choice, LOSSES) == pytest.approx(alone + 2 * trials)


def test_pictures_are_drawn_once_per_seed():
    kind = Kind("ce", Pace(0.0, 0.0, 0.0), pictures=0.5, pictured=100)
    assert GridWork((kind,)).seconds(Choice(1, 3, 40, 200), ["ce"]) == 3 * 40 * 0.5
    assert GridWork((kind,)).seconds(Choice(1, 3, 400, 200), ["ce"]) == 3 * 100 * 0.5


def test_when_the_last_job_ends():
    assert finished([0.0], [1.0, 2.0, 3.0]) == 6.0
    assert finished([0.0, 0.0], [3.0, 1.0, 1.0]) == 3.0
    assert finished([5.0, 0.0], [4.0]) == 5.0
    assert finished([], []) == 0.0


def test_baseline_and_recommended_loss_are_kept_longest():
    assert kept_order(["emd", "ce", "smmd", "soft"], ["ce", "soft", "absent"]) == ("ce", "soft", "emd", "smmd")


def test_what_is_left_out_is_said():
    words = left_out(OPTIONS, Choice(3, 3, 300, 200), Choice(4, 5, 600, 500))
    assert words == ["ntil", "2 of 5 seeds", "300 of 600 steps", "300 of 500 test rows"]
    assert left_out(OPTIONS, Choice(4, 8, 600, 500), Choice(4, 5, 600, 500)) == []


def test_a_quick_look_says_so():
    assert quick_look(OPTIONS, Choice(4, 3, 300, 200)) == ""
    assert (
        quick_look(OPTIONS, Choice(4, 3, 300, 200), late=60.0) == "What was asked for takes about 1 min longer than the budget."
    )
    assert quick_look(OPTIONS, Choice(2, 1, 300, 200)).startswith("This is a quick look: 1 seed. ")
    told = quick_look(OPTIONS, Choice(2, 2, 20, 60), late=95.0)
    assert told.startswith("This is a quick look: 2 seeds, 20 steps, 60 test rows. ")
    assert told.endswith("about 1 min 35 s longer than the budget.")


@pytest.mark.parametrize("value", ["2s", "29s", 12.5])
def test_a_budget_below_the_floor_names_it(value):
    with pytest.raises(ValueError, match=r"is too short to load and train anything: expected --budget 30s or more\.$"):
        Budget.of(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300), ("90s", 90), ("5m", 300), ("5 min", 300), ("1h", 3600), ("1.5h", 5400), (42.5, 42.5)]
)
def test_times(text, seconds):
    assert seconds_of("budget", text) == Budget.of(text).seconds == seconds


@pytest.mark.parametrize(
    "text", ["", "5x", "m", "-5m", "5m30", "nan", "inf", "0", "0.5s", True, None, float("nan"), float("inf"), -1]
)
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
