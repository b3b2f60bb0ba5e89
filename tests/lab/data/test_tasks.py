"""Contracts of every task: disjoint splits, the same bytes for the same seed, right scores at both ends."""

from __future__ import annotations

import hashlib
import math
import operator
import re
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.data.formats import WRITERS

from numerate.answers import clock_time
from numerate.answers.metrics import METRICS
from numerate.lab.data import TASKS, Arithmetic, NumberSkills, Regression, Times, WordProblems
from numerate.lab.data.base import content_hash
from numerate.lab.data.number_skills import SKILLS
from numerate.lab.data.readers import READERS
from numerate.lab.data.row_reader import BadData

SPLITS = ("train", "interpolate", "extrapolate")
VARIANTS = [
    *((name, {}) for name in TASKS),
    ("arithmetic", {"operands": "decimals"}),
    ("arithmetic", {"operands": "rationals", "difficulty": 3}),
    ("arithmetic", {"operands": "mixed", "difficulty": 5}),
    ("arithmetic", {"difficulty": 1, "operations": "+-"}),
    ("word_problems", {"steps": 6}),
    ("regression", {"kind": "series"}),
    *(("number_skills", {"notation": notation}) for notation in ("integers", "decimals", "fractions", "scientific")),
    ("times", {"longest": 360}),
]
EACH = pytest.mark.parametrize(("name", "chosen"), VARIANTS, ids=[f"{n}-{'-'.join(map(str, c.values()))}" for n, c in VARIANTS])


def few(name):
    return 2 if TASKS[name].visual else 60


@EACH
@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_answer_scores_perfectly(name, chosen, split):
    task = TASKS[name](**chosen)
    for example in task.examples(split, few(name), seed=3):
        scores = task.score(example, example.answer)
        assert task.measures[0] in scores
        for measure, value in scores.items():
            metric = METRICS.get(measure)
            best = 1.0 if metric is None or metric.higher_is_better else 0.0
            assert value == best, (measure, example.prompt, example.answer)


@EACH
def test_an_answer_names_places_in_its_picture_alone(name, chosen):
    task = TASKS[name](**chosen)
    example = task.examples("train", 1, seed=3)[0]
    shapes = task.outlines(example.answer)
    assert bool(shapes) == (name in ("grounding", "scene_text"))
    assert all(len(corners) in (4, 8) and all(0 <= side <= 1 for side in corners) for corners in shapes)
    assert task.outlines("I cannot tell.") == []


@pytest.mark.parametrize("name", TASKS)
def test_no_answer_scores_the_worst(name):
    task = TASKS[name]()
    example = task.examples("train", 1)[0]
    scores = task.score(example, "I cannot tell.")
    for measure, value in scores.items():
        if measure in METRICS:
            assert value == METRICS[measure].no_answer, measure


@pytest.mark.parametrize("name", TASKS)
def test_any_text_can_be_scored(name):
    task = TASKS[name]()
    example = task.examples("train", 1)[0]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.text() | st.sampled_from(["9" * 10_000, "1/0", "\u200f7\u200e", '[{"box": [1, 2', "-", "1e999999", "[" * 5000]))
    def score(text):
        for value in task.score(example, text).values():
            assert value == value  # no NaN

    score()


def fingerprint(example):
    pixels = b"" if example.image is None else example.image.tobytes()
    return hashlib.sha256(repr((example.prompt, example.answer)).encode() + pixels).hexdigest()


@EACH
def test_same_seed_same_bytes(name, chosen):
    first, again, other = (
        [fingerprint(example) for example in TASKS[name](**chosen).examples("train", few(name), seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert not (TASKS[name].visual and set(first) & set(other))


@EACH
def test_splits_are_disjoint(name, chosen):
    task = TASKS[name](**chosen)
    n = 25 if task.visual else 150

    def marks(split, seed):
        return {content_hash(task.content(spec)) for spec in task.examples(split, n, seed).specs}

    first = {split: marks(split, 0) for split in SPLITS}
    both = {split: first[split] | marks(split, 1) for split in SPLITS}
    assert not both["train"] & both["interpolate"]
    assert not both["train"] & both["extrapolate"]
    assert not both["interpolate"] & both["extrapolate"]
    assert len(first["interpolate"]) == len(first["extrapolate"]) == n


LOOKS = {
    "clock": lambda one, _: replace(one, seed=one.seed + 1),
    "charts": lambda one, other: replace(one, look=other.look),
    "grounding": lambda one, _: one._replace(seed=one.seed + 1, ground=(one.ground + 1) % 3),
    "scene_text": lambda one, _: one._replace(seed=one.seed + 1, looks=one.looks[::-1], ground=1),
    "math_vision": lambda one, _: one._replace(turn=7, mirror=not one.mirror, style=0, names="PQRST"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_looks_are_no_content(name):
    """Else a picture in other colours could be in training and in the test."""
    task = TASKS[name]()
    one, other = task.examples("train", 2).specs
    changed = LOOKS[name](one, other)
    assert changed != one
    assert task.content(changed) == task.content(one) != task.content(other)


def test_examples_are_made_when_looked_at():
    examples = Arithmetic().examples("train", 10)
    assert len(examples) == 10
    assert examples[2:4][0] == examples[2] == list(examples)[2]
    assert "10 examples" in repr(examples)


def test_an_exhausted_range_says_so():
    task = Arithmetic(difficulty=1, operations="+")
    assert len(task.examples("train", 5000)) == 5000  # training may repeat itself
    with pytest.raises(ValueError, match=r"n=5000 is more than there are: .* has about \d+ different examples of 'interpolate'"):
        task.examples("interpolate", 5000)


REFUSED = [
    ("arithmetic", {"difficulti": 2}, "difficulti=2 is not a setting of the task 'arithmetic': .*Did you mean 'difficulty'"),
    ("arithmetic", {"difficulty": 9}, "expected an integer from 1 to 8"),
    ("arithmetic", {"operands": "complex"}, "expected one of 'integers', 'decimals', 'rationals', 'mixed'"),
    ("arithmetic", {"operations": "%"}, "some of"),
    ("arithmetic", {"operations": "/"}, "needs operands='rationals'"),
    ("word_problems", {"steps": 0}, "expected an integer from 1 to 6"),
    ("word_problems", {"largest": 3}, "at least 10"),
    ("regression", {"kind": "tree"}, "expected one of 'table', 'series'"),
    ("regression", {"extrapolate": 0.9}, "expected a share"),
    ("regression", {"target": "rent", "columns": "area"}, "expected several names"),
    ("clock", {"size": 10}, "size=10 is out of range: expected an integer from 64 to 4096"),
    ("clock", {"size": 224.0}, "size=224.0"),
    ("clock", {"step": 7}, "step=7 does not divide the hour"),
    ("clock", {"rotation": -1}, "rotation=-1 is out of range"),
    ("clock", {"rotation": 181}, ">= 0 and <= 180"),
    ("clock", {"second_hand": float("nan")}, "second_hand=nan"),
    ("clock", {"wording": "short"}, "wording='short'"),
    ("charts", {"size": 100}, "size=100 is out of range: expected an integer from 320 to 4096"),
    ("charts", {"categories": 9}, "categories=9 is out of range: expected an integer from 3 to 6"),
    ("charts", {"largest": 500.0}, "largest=500.0"),
    ("grounding", {"form": "pixels"}, "form='pixels' is not known: expected one of 'numbers', 'thousandths', 'locations'"),
    ("grounding", {"wording": "short"}, "wording='short'"),
    ("grounding", {"objects": (0, 5)}, r"objects=\(0, 5\) is out of range"),
    ("grounding", {"objects": (6, 5)}, r"objects=\(6, 5\) is out of range"),
    ("grounding", {"objects": 5}, "objects=5 is out of range"),
    ("scene_text", {"form": "polygons"}, "form='polygons' is not known: expected one of 'boxes', 'quads'"),
    ("scene_text", {"words": (1, 2.5)}, r"words=\(1, 2.5\) is out of range: expected \(fewest, most\) within 1 to 6"),
    ("scene_text", {"angle": 60}, "angle=60 is out of range: expected an integer from 0 to 45"),
    ("math_vision", {"largest": 10}, "largest=10 is out of range: expected an integer from 20 to 1000"),
    ("math_vision", {"size": 64}, "size=64 is out of range: expected an integer from 224 to 2048"),
]


@pytest.mark.parametrize(("name", "chosen", "message"), REFUSED)
def test_settings_are_checked(name, chosen, message):
    with pytest.raises((ValueError, TypeError), match=message):
        TASKS[name](**chosen)


@pytest.mark.parametrize(
    ("split", "n", "message"),
    [
        ("test", 3, "expected one of 'train', 'interpolate', 'extrapolate'"),
        ("train", None, "generates them without limit: expected a number"),
        ("train", -1, "expected an integer"),
    ],
)
def test_what_is_asked_for_is_checked(split, n, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic().examples(split, n)


@pytest.mark.parametrize(("name", "chosen"), [("clock", {}), ("grounding", {}), ("grounding", {"form": "locations"})])
def test_a_bare_question_has_the_same_answer(name, chosen):
    full, bare = (TASKS[name](wording=wording, **chosen).examples("train", 5) for wording in ("full", "bare"))
    for plain, short in zip(full, bare, strict=True):
        assert short.answer == plain.answer
        assert short.prompt == plain.meta.get("expression", "time?")


# Arithmetic


def value_of(text):
    return eval(re.sub(r"\d+(\.\d+)?", lambda m: f"Fraction('{m[0]}')", text), {"Fraction": Fraction})


@pytest.mark.parametrize("operands", ["integers", "decimals", "rationals", "mixed"])
@pytest.mark.parametrize("split", SPLITS)
def test_expressions_have_the_value_of_their_answer(operands, split):
    for _, text, answer in Arithmetic(operands=operands, difficulty=3).examples(split, 300).specs:
        assert value_of(text) == Fraction(answer), (text, answer)


def test_extrapolation_is_longer_and_larger():
    task = Arithmetic(difficulty=2)

    def shape(text):
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        return len(numbers) - 1, min(numbers), max(numbers)

    near = [shape(text) for _, text, _ in task.examples("train", 1000).specs]
    far = [shape(text) for _, text, _ in task.examples("extrapolate", 1000).specs]
    assert max(count for count, _, _ in near) == 2 < min(count for count, _, _ in far)
    assert max(top for _, _, top in near) <= 99 < min(low for _, low, _ in far)


def test_word_problems_add_up():
    for example in WordProblems().examples("extrapolate", 200):
        *lines, last = example.answer.split("\n")
        for line in lines:
            left, right = line.split(" = ")
            assert value_of(left) == int(right), line
        assert last == f"#### {lines[-1].split(' = ')[1]}"


def test_strict_and_flexible_answers():
    task = WordProblems()
    example = task.examples("train", 1)[0]
    number = example.answer.rsplit(" ", 1)[1]
    scores = task.score(example, f"I think it is {number}.")
    assert (scores["exact"], scores["exact_strict"]) == (1.0, 0.0)


def test_flats_and_series_lie_outside_the_range():
    area = [int(example.prompt.split()[1]) for example in Regression().examples("train", 500)]
    far = [int(example.prompt.split()[1]) for example in Regression().examples("extrapolate", 500)]
    assert max(area) < min(far)


@pytest.mark.parametrize("kind", sorted(READERS))
@pytest.mark.parametrize("name", [name for name in TASKS if name != "regression"])
def test_a_table_of_ones_own_is_sent_to_the_right_task(name, kind, tmp_path):
    """Whatever is wrong with it for a dataset's reader, the error names what the task reads, and the task for tables."""
    WRITERS[f"t{kind}"](tmp_path / f"t{kind}", [{"area": i, "price": 9 * i} for i in range(12)])
    with pytest.raises(BadData) as raised:
        TASKS[name].from_files(tmp_path / f"t{kind}")
    reads = f"The task {name!r} reads {TASKS[name].dataset};" if TASKS[name].dataset else "Leave out the path;"
    assert f"{reads} your own table is for the task 'regression'" in str(raised.value)


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_has_an_effect_somewhere(name):
    """On generated examples, on what is read from files, or both; a setting that has none is refused."""
    kind = TASKS[name]
    known = {own.name for own in fields(kind)}
    assert set(kind.reads_with) <= known
    assert (known if kind.generates_with is None else {*kind.generates_with}) | {*kind.reads_with} == known
    for own in fields(kind):
        for data in (None, "my.csv"):
            used = own.name in kind.reads_with if data else kind.generates_with is None or own.name in kind.generates_with
            value = {"target": "price"}.get(own.name, own.default)
            if used or value is None:
                kind.check_source({own.name: value}, data)
                continue
            with pytest.raises(ValueError, match=f"{own.name}=.* has no effect on (real data|generated examples)"):
                kind.check_source({own.name: value}, data)


def asked(skill, notation):
    return [(e.prompt, e.answer) for e in NumberSkills(skill=skill, notation=notation, difficulty=5).examples("extrapolate", 40)]


def test_answers_of_number_skills_are_right():
    """Recomputed from the questions, by other means where there are some."""
    signs = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    for notation, skills in SKILLS.items():
        for skill in ("add", "subtract", "multiply"):
            for prompt, answer in asked(skill, notation):
                left, sign, right = prompt.removeprefix("What is ").removesuffix("?").split()
                assert signs[sign](Fraction(left), Fraction(right)) == Fraction(answer)
        for prompt, answer in asked("larger", notation) + asked("smaller", notation):
            a, b = prompt.split(", ")[1].rstrip("?").split(" or ")
            assert Fraction(answer) == ((max if "larger" in prompt else min)(Fraction(a), Fraction(b)))
        for prompt, answer in asked("round", notation) if "round" in skills else ():
            number, digits = prompt.split()[1], int(prompt.split()[3])
            step = Fraction(10) ** (math.floor(math.log10(Fraction(number))) + 1 - digits)
            assert Fraction(answer) == math.floor(Fraction(number) / step + Fraction(1, 2)) * step
    for notation in ("integers", "decimals"):
        for prompt, answer in asked("digit", notation):
            place, number = int(prompt.split()[3]), prompt.split()[5].rstrip(",")
            assert number.replace(".", "")[place - 1] == answer
        for prompt, answer in asked("length", notation):
            assert len(prompt.split()[4].replace(".", "")) == int(answer)
        for prompt, answer in asked("count", notation):
            digit, number = prompt.split()[5], prompt.split()[8].rstrip("?")
            assert number.count(digit) == int(answer)
    for prompt, answer in asked("quotient", "integers"):
        assert divmod(int(prompt.split()[2]), int(prompt.split()[4].rstrip(",")))[0] == int(answer)
    for prompt, answer in asked("remainder", "integers"):
        assert divmod(int(prompt.split()[5]), int(prompt.split()[7].rstrip("?")))[1] == int(answer)


def test_a_skill_that_a_notation_does_not_have():
    with pytest.raises(ValueError, match="notation='fractions' does not have skill='round': expected integers or decimals or"):
        NumberSkills(notation="fractions", skill="round")


def test_answers_of_times_are_right():
    for example in Times().examples("interpolate", 100):
        words = example.prompt.split()
        hour, minute = words[2].rstrip(".").split("_")
        change = int(words[7]) * (1 if words[9].startswith("later") else -1)
        assert (int(hour) % 12 * 60 + int(minute) + change) % 720 == clock_time(example.answer)
