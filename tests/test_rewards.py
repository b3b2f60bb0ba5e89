"""Rewards are bounded, right where the answer is known, fall with the error, and train a model in TRL."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.grpo import grpo_trainer

from numerate import rewards
from numerate.answers import METRICS
from numerate.rewards import REWARDS, crps, exact, iou, log_error, relative_error, time_gap_circular, with_settings

Reward = Callable[..., list[float]]

GOLD: dict[str, Any] = {"exact": 42, "relative_error": "42", "log_error": 42.0, "iou": [1, 2, 3, 4], "time_gap_circular": "2_55"}
POINTWISE = [name for name in REWARDS if name != "crps"]  # rewards of each answer alone
TEXT = st.one_of(st.text(), st.text(alphabet="0123456789.,-+/eE:_ ()[]×^\n−１\u200f"))
NUMBERS = st.one_of(
    st.integers(), st.fractions(), st.floats(allow_nan=False, allow_infinity=False).map(lambda x: Fraction(repr(x)))
)


def one(reward: Reward, text: str, gold: Any, **settings: Any) -> float:
    (value,) = reward([text], [gold], **settings)
    return value


def test_the_registry_has_every_reward_by_its_name() -> None:
    assert list(GOLD) == POINTWISE
    for name, reward in REWARDS.items():
        assert reward.__name__ == name
        assert getattr(rewards, name) is reward


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("The answer is 7/2.", "3.5", 1.0),
        ("1,200", "$1200", 1.0),
        ("0.1", 0.1, 1.0),
        ("0.1", np.float32(0.1), 1.0),
        ("0.3", Decimal("0.30"), 1.0),
        ("0.333", Fraction(1, 3), 0.0),
        ("6", "5 + 1 = 6 #### 6", 1.0),
        ("", 0, 0.0),
    ],
)
def test_exact(text: str, gold: Any, expected: float) -> None:
    assert one(exact, text, gold) == expected


def test_exact_to_the_last_of_many_digits() -> None:
    number = "1234567890" * 1000
    assert exact([number, number[:-1] + "1"], [number, number]) == [1.0, 0.0]
    assert exact([number, "1e9999"], [10**9999, 10**9999]) == [0.0, 1.0]
    assert one(relative_error, number[:-1] + "1", number) == 1.0  # off by a part in 10^10,000
    assert one(relative_error, number, 5) == 0.0
    assert one(log_error, number, 5) == pytest.approx(0.3 / (0.3 + 9999 + math.log10(1.2345678901) - math.log10(6)))
    assert one(log_error, f"-{number}", number) == pytest.approx(0.3 / (0.3 + 2 * 9999 + 2 * math.log10(1.2345678901)))


@pytest.mark.parametrize(
    ("text", "gold", "settings", "expected"),
    [
        ("100", 100, {}, 1.0),
        ("90", 100, {}, 0.5),
        ("-110", -100, {}, 0.5),
        ("0", 100, {}, 1 / 11),
        ("101", 100, {"scale": 0.01}, 0.5),
        ("0.0", 0, {}, 1.0),
        ("1e-9", 0, {}, 0.0),
        ("1", 0, {"floor": 1}, 1 / 11),
        ("3", 2, {"floor": 1}, 1 / 6),
    ],
)
def test_relative_error(text: str, gold: Any, settings: dict[str, float], expected: float) -> None:
    assert one(relative_error, text, gold, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "gold", "settings", "expected"),
    [
        ("99", 99, {}, 1.0),
        ("999", 99, {}, 0.3 / 1.3),
        ("999", 99, {"scale": 1}, 0.5),
        ("-9", 9, {}, 0.3 / 2.3),
        ("0", 9, {}, 0.3 / 1.3),
        ("0", 0, {}, 1.0),
        ("0.099", 0.009, {"unit": 0.001, "scale": 1}, 0.5),
        ("1e600", "1e500", {"scale": 100}, 0.5),
    ],
)
def test_log_error(text: str, gold: Any, settings: dict[str, float], expected: float) -> None:
    assert one(log_error, text, gold, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "gold", "plain", "generalized"),
    [
        ("[0, 0, 10, 10]", "[0, 0, 10, 10]", 1, 1),
        ("[10, 10, 0, 0]", (0, 0, 10, 10), 1, 1),
        ("(5,0),(15,10)", [0, 0, 10, 10], 1 / 3, 2 / 3),
        ("[5, 5, 15, 15]", [0, 0, 10, 10], 1 / 7, (1 / 7 + 175 / 225) / 2),
        ("[90, 0, 100, 10]", [0, 0, 10, 10], 0, 0.1),
        ("[3, 4, 3, 4]", [3, 4, 3, 4], 1, 1),
        ("[3, 4, 3, 9]", [3, 4, 3, 5], 0, 0),
        ("[3, 4, 3, 4]", [0, 0, 10, 10], 0, 0.5),
        ("[0, 0, 10]", [0, 0, 10, 10], 0, 0),
    ],
)
def test_iou(text: str, gold: Any, plain: float, generalized: float) -> None:
    assert one(iou, text, gold) == pytest.approx(plain, rel=1e-12)
    assert one(iou, text, gold, form="giou") == pytest.approx(generalized, rel=1e-12)


@pytest.mark.parametrize("name", sorted(REWARDS.keys() & METRICS.keys()))
def test_a_name_shared_with_a_metric_has_one_meaning(name: str) -> None:
    texts = {
        "iou": ["[1, 2, 3, 4]", "[1, 2, 3, 3.5]", "[2, 2, 3, 4]", "[7, 7, 9, 9]"],
        "time_gap_circular": ["2:55", "2:50", "3:25", "12:55", "1:00", "11:00"],
    }.get(name, ["42", "41", "45", "-42", "420"])
    metric, gold = METRICS[name], GOLD[name]
    scores = [metric(gold, text) if metric.higher_is_better else -metric(gold, text) for text in texts]
    values = REWARDS[name](texts, [gold] * len(texts))
    assert [[a < b for b in scores] for a in scores] == [[a < b for b in values] for a in values]


@pytest.mark.parametrize(
    ("text", "gold", "gap"),
    [
        ("2_55", "2:55", 0),
        ("14:55", "2_55", 0),
        ("2_55", 175 + 720, 0),
        ("4_35", "6_20", 105),
        ("11_55", "12_05", 10),
        ("12_00", "6_00", 360),
        ("1:00", 175.5, 115.5),
    ],
)
def test_time_gap_circular(text: str, gold: Any, gap: float) -> None:
    assert one(time_gap_circular, text, gold) == pytest.approx((1 - gap / 360) / (1 + gap / 30), rel=1e-12)
    assert one(time_gap_circular, text, gold, scale=1e12) == pytest.approx(1 - gap / 360)


@pytest.mark.parametrize("name", POINTWISE)
def test_completions_as_the_trainer_passes_them(name: str) -> None:
    gold = GOLD[name]
    text = f"It is {gold}"
    said = {"role": "assistant", "content": text}
    completions = [
        text,
        [said],
        [{"role": "assistant", "content": [{"type": "text", "text": text}]}],
        [{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
        [{"role": "assistant", "content": "7, 7:77"}, {"role": "tool", "content": "7"}, said],
        [{"content": text}],
        [said, {"role": "tool", "content": text}],
        [said, {"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "assistant", "tool_calls": []}],
        [],
        "no idea",
    ]
    given_by_trainer = {"prompts": ["?"] * 11, "completion_ids": [[0]] * 11, "trainer_state": object(), "level": [1] * 11}
    assert REWARDS[name](completions=completions, answer=[gold] * 11, **given_by_trainer) == [1.0] * 6 + [0.0] * 5


@pytest.mark.parametrize("name", POINTWISE)
@given(text=TEXT)
def test_any_text_scores_between_0_and_1(name: str, text: str) -> None:
    for value in REWARDS[name]([text, [{"role": "assistant", "content": text}]], [GOLD[name]] * 2):
        assert type(value) is float
        assert 0 <= value <= 1


@given(gold=st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_means_what_it_prints(gold: float) -> None:
    assert one(exact, str(gold), gold) == 1.0


@pytest.mark.parametrize("reward", [relative_error, log_error])
@given(gold=NUMBERS, steps=st.tuples(NUMBERS, NUMBERS), floor=st.sampled_from([0, 1]))
def test_a_farther_number_scores_no_more(reward: Reward, gold: Fraction, steps: tuple[Fraction, Fraction], floor: float) -> None:
    settings = {"floor": floor} if reward is relative_error else {}
    near, far = sorted(abs(Fraction(step)) for step in steps)
    for sign in (1, -1):
        right, nearer, farther = reward([f"{gold + sign * step}" for step in (0, near, far)], [gold] * 3, **settings)
        assert right == 1.0
        assert right >= nearer
        assert nearer >= farther - 1e-12


@given(gold=st.integers(0, 719), gaps=st.tuples(st.integers(0, 360), st.integers(0, 360)))
def test_a_farther_time_scores_no_more(gold: int, gaps: tuple[int, int]) -> None:
    near, far = sorted(gaps)
    for sign in (1, -1):
        times = [(gold + sign * gap) % 720 for gap in (near, far)]
        nearer, farther = time_gap_circular([f"{t // 60}:{t % 60:02}" for t in times], [gold] * 2)
        assert nearer >= farther


def test_far_answers_are_told_apart_in_the_trainers_precision() -> None:
    for reward in (relative_error, log_error):
        values = torch.tensor(reward(["1e3", "1e6", "1e9"], [1] * 3), dtype=torch.float32)
        assert values[0] > values[1] > values[2] > 0
    values = torch.tensor(time_gap_circular(["2:54", "5:55", "7:55", "8:50"], ["2:55"] * 4), dtype=torch.float32)
    assert (values[:-1] > values[1:]).all()


@pytest.mark.parametrize(
    ("reward", "bad"),
    [
        (exact, "n/a"),
        (exact, None),
        (exact, math.inf),
        (exact, True),
        (exact, [5]),
        (relative_error, "1/0"),
        (log_error, Decimal("Infinity")),
        (iou, [1, 2, 3]),
        (iou, "no box"),
        (iou, 7),
        (time_gap_circular, "255"),
    ],
)
def test_a_gold_without_an_answer_is_an_error(reward: Reward, bad: Any) -> None:
    good = GOLD[reward.__name__]
    with pytest.raises(ValueError, match=r"answer\[1\]=.* cannot be scored: expected .* dataset.filter") as error:
        reward(["1", "1", "1"], [good, bad, good])
    assert repr(bad) in str(error.value)


def test_wrong_arguments_are_named() -> None:
    cases: list[tuple[Reward, Any, Any, dict[str, Any], str]] = [
        (exact, ["1", "2"], [1], {}, "completions has 2 entries and answer 1"),
        (exact, ["1", "2"], "12", {}, "answer='12' is a string: expected a list"),
        (exact, ["1", 2], [1, 2], {}, r"completions\[1\] is a int: expected a text or a list of chat messages"),
        (exact, [["1"]], [1], {}, r"completions\[0\] is a list"),
        (relative_error, ["1"], [1], {"scale": 0}, "scale=0 is out of range"),
        (iou, ["1"], [[1, 2, 3, 4]], {"form": "diou"}, "form='diou' is not known: expected one of 'iou', 'giou'"),
        (crps, ["1", "2"], [1, 1], {"prompts": ["?"]}, "prompts has 1 entries and completions 2: expected one per completion"),
        (crps, ["1"], [1], {"form": "biased"}, "form='biased' is not known: expected one of 'empirical', 'fair'"),
        (crps, ["1"], [1], {"unit": ["km"]}, "unit is a list of 1: .* with_settings"),
        (crps, ["1"], ["n/a"], {}, r"answer\[0\]='n/a' cannot be scored"),
    ]
    for reward, completions, answer, settings, message in cases:
        with pytest.raises((TypeError, ValueError), match=message):
            reward(completions, answer, **settings)
    assert with_settings(crps)(["1"], [1], prompts=["?"], unit=["km"]) == [0.0]


@pytest.mark.parametrize(
    ("reward", "setting"), [(relative_error, "scale"), (log_error, "unit"), (iou, "form"), (iou, "format"), (exact, "format")]
)
def test_a_column_named_like_a_setting_is_refused_or_ignored(reward: Reward, setting: str) -> None:
    gold = GOLD[reward.__name__]
    with pytest.raises(TypeError, match=f"{setting} is a list of 1: .* with_settings"):
        reward([str(gold)], [gold], **{setting: ["km"]})
    assert with_settings(reward)([str(gold)], [gold], **{setting: ["km"]}) == [1.0]


def test_with_settings() -> None:
    strict = with_settings(relative_error, scale=0.01)
    assert strict(completions=["101"], answer=[100], prompts=["?"]) == [0.5]
    assert strict.__name__ == "relative_error_scale_0.01"
    assert repr(strict) == "<reward relative_error_scale_0.01>"
    assert with_settings(iou, form="giou").__name__ == "iou_form_giou"
    assert with_settings(exact).__name__ == "exact"
    assert with_settings(time_gap_circular, scale=5, name="clock").__name__ == "clock"
    copy = pickle.loads(pickle.dumps(strict))
    assert (copy.__name__, copy(["101"], [100])) == (strict.__name__, [0.5])


def test_with_settings_checks_at_once() -> None:
    with pytest.raises(
        TypeError, match=r"not a setting of relative_error: .* scale, floor, decimal, format. Did you mean 'scale'\?"
    ):
        with_settings(relative_error, scal=0.1)
    with pytest.raises(TypeError, match="scale=0.1 is not a setting of exact: expected one of decimal, format."):
        with_settings(exact, scale=0.1)
    with pytest.raises(ValueError, match="scale=-1 is out of range: expected a finite number > 0"):
        with_settings(time_gap_circular, scale=-1)


def brute_crps(numbers: list[Fraction], gold: Fraction, form: str) -> Fraction:
    n = len(numbers)
    spread = sum((abs(a - b) for a in numbers for b in numbers), Fraction(0))
    terms = n * n if form == "empirical" else n * (n - 1)
    return sum((abs(x - gold) for x in numbers), Fraction(0)) / n - (spread / terms / 2 if spread else 0)


@given(
    numbers=st.lists(st.fractions(-100, 100, max_denominator=8), min_size=2, max_size=7),
    gold=st.integers(-50, 50),
    form=st.sampled_from(["empirical", "fair"]),
)
def test_credit_is_the_crps_without_an_answer_minus_that_with_it(numbers: list[Fraction], gold: int, form: Any) -> None:
    credits = crps([f"It is {x}" for x in numbers], [gold] * len(numbers), ["?"] * len(numbers), form=form)
    for i, credit in enumerate(credits):
        others = numbers[:i] + numbers[i + 1 :]
        expected = brute_crps(others, Fraction(gold), form) - brute_crps(numbers, Fraction(gold), form)
        assert credit == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
    if form == "fair" and len(numbers) > 2:
        assert sum(credits) == pytest.approx(0, abs=1e-9)  # what one answer adds, the others lack


def test_groups_of_crps() -> None:
    """Equal prompts, contiguous or not, with equal golds and pictures; messages are compared by content."""
    texts, golds = ["8", "1", "8", "3", "12", "2"], [10, 2, 10, 2, 10, 2]
    expected = [-1 / 9, *crps(["1", "3", "2"], [2] * 3, ["b"] * 3)]
    expected = [-1 / 9, expected[1], -1 / 9, expected[2], 8 / 9, expected[3]]
    said = {"a": [{"role": "user", "content": "a"}], "b": [{"role": "user", "content": "b"}]}
    for prompts in (list("ababab"), [[dict(message) for message in said[name]] for name in "ababab"], ["same"] * 6, None):
        assert crps(completions=texts, answer=golds, prompts=prompts, level=[1] * 6) == pytest.approx(expected)
    pictures = ["x", "y", "x", "y", "x", "y"]
    assert crps(texts, [10] * 6, ["time?"] * 6, image=pictures) == pytest.approx(crps(texts, [10] * 6, list("ababab")))
    assert with_settings(crps)(texts, [10] * 6, prompts=list("ababab")) == crps(texts, [10] * 6, list("ababab"))
    assert crps(["8", "9"], [10, 10], ["a", "b"]) == [0.0, 0.0]  # alone in their groups


def test_answers_without_a_number_earn_least() -> None:
    assert crps(["no", "no"], [1, 1], ["?"] * 2) == [-1.0, -1.0]
    assert crps(["7", "no"], [1, 1], ["?"] * 2, missing=0.5) == [0.0, -0.5]
    chat = [[{"role": "assistant", "content": "8"}], "8", "12", [], [{"role": "tool", "content": "10"}]]
    assert crps(chat, [10] * 5, ["?"] * 5) == pytest.approx([-1 / 9, -1 / 9, 8 / 9, -10 / 9, -10 / 9])
    assert crps(chat, [10] * 5, ["?"] * 5, scale=2.0)[2] == pytest.approx(4 / 9)


@given(
    numbers=st.lists(st.none() | st.integers(-20, 20), min_size=1, max_size=6),
    gold=st.integers(-10, 10),
    form=st.sampled_from(["empirical", "fair"]),
    missing=st.sampled_from([0, 0.25, 3]),
    scale=st.sampled_from([0.5, 1, 4]),
)
@example(numbers=[8, 12, None], gold=10, form="empirical", missing=1, scale=1)  # all credits are above 0
@example(numbers=[8, 30, None], gold=10, form="empirical", missing=1, scale=1)  # the lowest is below 0
def test_a_missing_answer_earns_less_than_every_number_and_than_nothing(
    numbers: list[int | None], gold: int, form: Any, missing: float, scale: float
) -> None:
    texts = ["no idea" if x is None else str(x) for x in numbers]
    credits = crps(texts, [gold] * len(texts), ["?"] * len(texts), form=form, missing=missing, scale=scale)
    alone = [text for text, x in zip(texts, numbers, strict=True) if x is not None]
    answered = crps(alone, [gold] * len(alone), ["?"] * len(alone), form=form, scale=scale)  # no part of the distribution
    assert [credit for credit, x in zip(credits, numbers, strict=True) if x is not None] == answered
    expected = pytest.approx(min([0.0, *answered]) - missing)
    assert all(credit == expected for credit, x in zip(credits, numbers, strict=True) if x is None)


def test_a_derailed_answer_is_bounded_and_can_be_taken_by_magnitude() -> None:
    wild = crps(["1", "2", "1" * 400], [1] * 3, ["?"] * 3)
    assert wild[2] == -1e15
    assert bool(torch.tensor(wild, dtype=torch.float32).std().isfinite())
    by_size = crps(["9", "99", "9e300"], [9] * 3, ["?"] * 3, unit=1.0)
    numbers = [Fraction(1), Fraction(2), Fraction(math.log10(9e300))]
    expected = brute_crps(numbers[:2], Fraction(1), "empirical") - brute_crps(numbers, Fraction(1), "empirical")
    assert by_size[2] == pytest.approx(float(expected))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("conversational", [False, True], ids=["standard", "conversational"])
def test_a_step_of_grpo(conversational: bool, tmp_path: Path) -> None:
    questions = ["1+1=", "2+3="]
    prompts = [[{"role": "user", "content": text}] for text in questions] if conversational else questions
    functions = [
        exact,
        with_settings(log_error, scale=1.0),
        with_settings(log_error, scale=0.1, name="near"),
        functools.partial(relative_error, floor=1),
        with_settings(crps),
        with_settings(crps, unit=1.0, name="log_crps"),
    ]
    trainer = grpo_trainer(functions, {"prompt": prompts, "answer": ["2", "5"], "unit": ["km", "m"]}, tmp_path, max_steps=2)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()

    log = trainer.state.log_history[0]
    names = ["exact", "log_error_scale_1.0", "near", "relative_error", "crps", "log_crps"]
    assert [key.split("/")[1] for key in log if key.startswith("rewards/") and key.endswith("/mean")] == names
    assert all(0 <= log[f"rewards/{name}/mean"] <= 1 for name in names[:4])
    assert all(log[f"rewards/{name}/std"] > 0 for name in names[4:])
    assert log["rewards/log_error_scale_1.0/mean"] > log["rewards/near/mean"] > 0
    assert log["reward_std"] > 0
    assert any((old != new).any() for old, new in zip(before, trainer.model.parameters(), strict=True))
