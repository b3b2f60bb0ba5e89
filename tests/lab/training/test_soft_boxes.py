"""Soft labels of answers that hold several numbers: a bell for each coordinate, against brute force over all boxes."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from tests.targets.small import KINDS, conditionals, encoded, tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from numerate.lab.data import TASKS, Example, Grounding, SceneText
from numerate.lab.data.coordinates import CoordinateTask
from numerate.lab.models.encoding import AnswerNumbers, SharedData
from numerate.lab.models.loading import PIXELS, PromptEncoder, load_encoder, load_model
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.prepare import check_run, run_data
from numerate.targets import AnswerDistribution
from numerate.targets.soft_targets import SOFT_FIELDS

THOUSANDTHS = Grounding(form="thousandths")
NUMBERS, LOCATIONS, SIGNS, QUADS = Grounding(), Grounding(form="locations"), SceneText(), SceneText(form="quads")
TRICKY = json.dumps('0.500, 0.250], "text": "x')  # a sign that looks like the end of a box
CASES = {
    "inside": (NUMBERS, "[0.332, 0.492, 0.576, 0.656]"),
    "at the borders": (NUMBERS, "[0.000, 0.999, 1.000, 0.099]"),
    "thousandths": (THOUSANDTHS, "[0, 9, 1000, 656]"),
    "locations": (LOCATIONS, "<loc0000><loc0099><loc1023><loc0500>"),
    "a sign": (SIGNS, f'[{{"box": [0.100, 0.899, 1.000, 0.250], "text": {TRICKY}}}]'),
}
BUILT = ("tiny-vlm", "tiny-3")  # one digit and up to three digits a token


@cache
def merging(*merges: tuple[str, str]) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each character, and some that are merged."""
    vocab = ["<end>", *map(chr, range(32, 127)), *(a + b for a, b in merges)]
    made = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(vocab)}, [*merges]))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")


@cache
def locating(*, special: bool) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each location, as that of PaliGemma."""
    made = Tokenizer(models.BPE({chr(code): code - 32 for code in range(32, 127)}, []))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="~", pad_token="~")
    wrapped.add_tokens(
        [AddedToken(f"<loc{k:04d}>", special=special, normalized=False) for k in range(1024)], special_tokens=special
    )
    return wrapped


TOKENIZERS = {
    **{name: lambda name=name: load_encoder(name).tokenizer for name in BUILT},
    **{kind: lambda kind=kind: tokenizer(kind) for kind in KINDS},
    "merged with the separator": lambda: merging(("0", ","), ("9", ","), ("1", ">"), (" ", "1"), (" ", "0"), ("0", "]")),
}


def near(example: Example) -> AnswerDistribution:
    """Three values with different probabilities, fewer at the borders."""
    task = LOCATIONS if "." not in example.answer else NUMBERS
    unit = 1 if task is LOCATIONS else 0.001
    answers = task.soft_target(width=1.2 * unit, shape="uniform")(example)
    return AnswerDistribution(answers.texts, [1.0, 2.5, 4.0][: len(answers)])


def answers_of(task: CoordinateTask, answer: str) -> dict[str, float]:
    """All answers with their probabilities, by brute force."""
    spans = [match.span() for match in task.soft_pattern.finditer(answer)]
    choices = [near(Example("", answer[start:end])) for start, end in spans]
    found: dict[str, float] = {}
    for members in itertools.product(*(zip(each.texts, each.probabilities.tolist(), strict=True) for each in choices)):
        text, last = "", 0
        for (start, end), (member, _) in zip(spans, members, strict=True):
            text, last = text + answer[last:start] + member, end
        found[text + answer[last:]] = float(np.prod([p for _, p in members]))
    return found


def numbers(tokens: Any, task: CoordinateTask, target: Any = near, **options: Any) -> AnswerNumbers:
    return AnswerNumbers(PromptEncoder("", tokens), target, task.soft_pattern, **options)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# Targets


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_targets_are_those_of_brute_force_over_all_boxes(name, case):
    tokens, (task, answer) = TOKENIZERS[name](), CASES[case]
    every = answers_of(task, answer)
    assert len(every) >= 36
    sequences = {text: [*encoded(tokens, text), tokens.eos_token_id] for text in every}
    texts = {tuple(ids): text for text, ids in sequences.items()}
    soft, example, label = numbers(tokens, task), Example("", answer), sequences[answer]
    for path in [soft.answer(example, label, None), *(soft.answer(example, label, rng(seed)) for seed in range(12))]:
        expected = conditionals(path.token_ids, [*sequences.values()], [*every.values()])
        assert path.targets == [pytest.approx(options, abs=1e-9) for options in expected]
        product = np.prod([options[token] for token, options in zip(path.token_ids, path.targets, strict=True)])
        assert product == pytest.approx(every[texts[tuple(path.token_ids)]], rel=1e-9)
    assert soft.answer(example, label, None).token_ids == label


@pytest.mark.parametrize("name", BUILT)
def test_drawn_coordinates_have_the_frequencies_of_their_bells(name):
    tokens, answer = load_encoder(name).tokenizer, "[0.003, 0.492, 0.576, 0.998]"
    target = NUMBERS.soft_target(width=0.003)
    soft, label = numbers(tokens, NUMBERS, target), [*encoded(tokens, answer), tokens.eos_token_id]
    drawn, generator = [], rng(0)  # one stream: the first uniforms of the seeds 0 to 1999 happen to be correlated in numpy itself
    for _ in range(4000):
        ids = soft.answer(Example("", answer), label, generator).token_ids
        drawn.append(json.loads(tokens.decode(ids[:-1])))
    centers = json.loads(answer)
    for place, center in enumerate(centers):
        bell = target(Example("", f"{center:.3f}"))
        counts = Counter(f"{box[place]:.3f}" for box in drawn)
        assert counts.keys() <= set(bell.texts)
        expected = bell.probabilities * len(drawn)
        often, seen = expected >= 5, np.array([counts[text] for text in bell.texts])
        observed, due = [*seen[often], seen[~often].sum()], [*expected[often], expected[~often].sum()]
        assert chisquare(observed, due).pvalue > 0.001
    assert np.abs(np.corrcoef(np.array(drawn).T) - np.eye(4)).max() < 0.06  # four standard errors: each is drawn by itself


@pytest.mark.parametrize("task", [NUMBERS, LOCATIONS, SIGNS, QUADS], ids=["numbers", "locations", "boxes", "quads"])
def test_drawn_answers_stay_in_the_picture_and_keep_their_text(task):
    tokens = load_encoder("tiny-vlm").tokenizer
    soft = numbers(tokens, task, task.soft_target(width=0.05 * task.coordinates.side))
    fixed = {task.soft_pattern.sub("#", example.answer) for example in task.examples("train", 4)}
    moved = 0
    for seed, example in enumerate(task.examples("train", 4)):
        label = [*encoded(tokens, example.answer), tokens.eos_token_id]
        text = tokens.decode(soft.answer(example, label, rng(seed)).token_ids[:-1])
        assert task.soft_pattern.sub("#", text) in fixed
        before, after = task.soft_pattern.findall(example.answer), task.soft_pattern.findall(text)
        assert len(before) == len(after) >= 4
        assert all(len(number) == len(label) for number, label in zip(after, before, strict=True))
        assert all(0 <= float(number) <= task.coordinates.highest for number in after)
        assert task.read(text) is not None
        moved += sum(a != b for a, b in zip(before, after, strict=True)) / len(before)
    assert moved / 4 > 0.9
    wide = task.soft_target(width=0.01 * task.coordinates.side, lowest=-1, highest=5000)
    ends = ("0000", "1023") if task is LOCATIONS else ("0.000", "1.000")
    values = [float(text) for end in ends for text in wide(Example("", end)).texts]
    assert (min(values), max(values)) == tuple(map(float, ends))


def test_the_label_is_kept_where_bounds_leave_it_out():
    tokens, answer = load_encoder("tiny-vlm").tokenizer, CASES["inside"][1]
    target, label = NUMBERS.soft_target(width=0.1, lowest=0.4), [*encoded(tokens, answer), tokens.eos_token_id]
    path = numbers(tokens, NUMBERS, target, with_label=True).answer(Example("", answer), label, None)
    assert path.token_ids == label
    assert any(len(options) > 1 for options in path.targets)


# Tokenizers


def test_location_tokens():
    tokens, (task, answer) = locating(special=False), CASES["locations"]
    label = [*encoded(tokens, answer), tokens.eos_token_id]
    assert len(label) == 5
    path = numbers(tokens, task).answer(Example("", answer), label, rng(0))
    assert [sorted(tokens.convert_ids_to_tokens([*options])) for options in path.targets] == [
        ["<loc0000>", "<loc0001>"],
        ["<loc0098>", "<loc0099>", "<loc0100>"],
        ["<loc1022>", "<loc1023>"],
        ["<loc0499>", "<loc0500>", "<loc0501>"],
        ["~"],
    ]


def test_tokenizers_that_do_not_fit_are_refused():
    task, answer = CASES["locations"]
    tokens = locating(special=True)
    with pytest.raises(ValueError, match="show 0 of its 4 numbers: expected tokens with the text of the answer"):
        numbers(tokens, task).answer(Example("", answer), [*encoded(tokens, answer), tokens.eos_token_id], rng(0))


MERGED = {
    "digit, separator, digit": (("2", ","), ("2,", " "), ("2, ", "0")),
    "separator and digit first": ((",", " "), (", ", "0"), ("2", ", 0")),
}


@pytest.mark.parametrize("merges", MERGED)
@pytest.mark.parametrize("answer", ["[0.332, 0.492, 0.576, 0.656]", "[0.332, 1.000, 0.576, 0.656]"])
def test_tokens_that_hold_digits_of_two_numbers_are_refused(answer, merges):
    """The token ``2, 0`` depends on two coordinates, whether the label has it or only a box that is drawn."""
    tokens = merging(*MERGED[merges])
    soft, label = numbers(tokens, NUMBERS), [*encoded(tokens, answer), tokens.eos_token_id]
    with pytest.raises(ValueError, match="digits of two numbers.*a tokenizer that splits digits from what is beside them"):
        [soft.answer(Example("", answer), label, rng(seed)) for seed in range(64)]


def test_a_tokenizer_that_does_not_fit_is_refused_before_training():
    encoder = PromptEncoder("x", merging(*MERGED["digit, separator, digit"]), sees=True)
    config = checked(RunConfig, {"task": "grounding", "model": "tiny-vlm", "loss": "soft"})
    with pytest.raises(ValueError, match="digits of two numbers.*a tokenizer that splits digits from what is beside them"):
        check_run(config, Grounding(), encoder)


# Tasks

WITHOUT = {"word_problems": "an answer of the task 'word_problems' is a worked solution"}
"""Tasks without soft labels, and what they say."""


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_soft_labels_or_says_why_not(name):
    model = "tiny-vlm" if TASKS[name].visual else "tiny"
    config, task, encoder = checked(RunConfig, {"task": name, "model": model, "loss": "soft"}), TASKS[name](), load_encoder(model)
    if name in WITHOUT:
        with pytest.raises(ValueError, match=WITHOUT[name]):
            check_run(config, task, encoder)
        return
    assert check_run(config, task, encoder) is not None
    target, pattern = task.soft_target(**config.soft.model_dump(exclude={"path"})), task.soft_pattern
    answers = [example.answer for example in task.examples("train", 60)]
    labels = [label for answer in answers for label in ([answer] if pattern is None else pattern.findall(answer))]
    bells = {label: target(Example("", label)) for label in labels}
    assert all(label in bell.texts for label, bell in bells.items())
    assert sum(len(bell) > 1 for bell in bells.values()) > len(bells) / 2


def test_the_documentation_has_every_task():
    page = (Path(__file__).parents[3] / "docs" / "soft_labels.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page.split("## Tasks of the lab")[1].split("\n## ")[0], re.MULTILINE))
    assert rows.keys() == TASKS.keys()
    assert {name for name, width in rows.items() if width == "none"} == WITHOUT.keys()


# Runs


@pytest.mark.parametrize("path", ["drawn", "fixed", "jitter"])
def test_rows_are_the_same_alone_and_shared(path):
    """What is drawn depends on the seed and the position alone; a second run of a stack finds the distributions made."""
    task, loaded = Grounding(), load_model("tiny-vlm")
    settings = {"task": "grounding", "model": "tiny-vlm", "soft": {"path": path}, "steps": 3, "batch_size": 2}
    settings["train_examples"] = 4
    configs, shared = [checked(RunConfig, {**settings, "seed": seed}) for seed in (1, 2)], SharedData()
    for config in configs:
        alone, together = run_data(config, task, loaded)[0], run_data(config, task, loaded, shared)[0]
        hard = run_data(config.model_copy(update={"soft": None}), task, loaded)[0]
        rows = [
            [{name: row[name] for name in row if name != PIXELS} for row in map(data.__getitem__, (5, 0))]
            for data in (alone, together)
        ]
        assert rows[0] == rows[1]
        for row, plain in zip(rows[0], (hard[5], hard[0]), strict=True):
            begin = plain["labels"].count(-100)
            assert row["input_ids"][:begin] == plain["input_ids"][:begin]
            assert (row["input_ids"] == plain["input_ids"]) == (path == "fixed")
            assert (SOFT_FIELDS[0] in row) == (path != "jitter")
            assert all(place > begin for place in row.get(SOFT_FIELDS[0], ()))
    assert len(shared.tries) == 1
