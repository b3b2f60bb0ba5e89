"""A judge: its distributions are those of enumerating every token, whatever tokens write a score; refusals, rewards, metrics."""

from __future__ import annotations

import math
import sys
from asyncio import run
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from string import ascii_letters, digits
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.decode.models import small_llama
from tests.decode.stand_in import CHUNKS, Toy, serving
from tests.grpo import grpo_trainer
from tests.samples import refused
from tests.test_numbers import TOKENIZERS, loaded
from transformers import LlamaForCausalLM

from numerate.decode import CompletionServer
from numerate.judge import Judge, JudgeReward, ScoreScale, deepeval_metric

SCALES: dict[str, Any] = {
    "1 to 10": "1 to 10",
    "0 to 5": "0 to 5",
    "0.0 to 5.0": "0.0 to 5.0",
    "-2 to 2": "-2 to 2",
    "0 to 100": "0 to 100",
    "A to E": "A to E",
    "labels": ["poor", "fair", "good", "very good"],
    "values": {"no": 0, "partly": "0.5", "yes": 1},
}
SPACES = {" ", "\n"}
EXACT: dict[str, Any] = {"width": None, "covered": 1.0}


class Biased(LlamaForCausalLM):  # type: ignore[misc]
    """A small model that likes some tokens, and never writes others."""

    bias: torch.Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits + self.bias
        return outputs


def texts_of(tokenizer: Any) -> dict[int, str]:
    """The text that each token adds to a text before it, by decoding both."""
    (anchor,) = tokenizer("x", add_special_tokens=False)["input_ids"][-1:]
    special = {*tokenizer.all_special_ids}
    ids = [i for i in range(len(tokenizer)) if i not in special]
    start = tokenizer.decode([anchor])
    texts = tokenizer.batch_decode([[anchor, i] for i in ids], clean_up_tokenization_spaces=False)
    return {i: text.removeprefix(start) for i, text in zip(ids, texts, strict=True)}


def enumerated(model: Any, prompt: list[int], texts: dict[int, str], scale: dict[str, Any], joined: str) -> dict[Any, float]:
    """The probability of each value, and of None: all sequences of tokens, those of one length in a forward pass."""
    starts = {text[:end] for text in scale for end in range(len(text) + 1)}
    known = {character for text in scale for character in text}
    able = {
        i: text
        for i, text in texts.items()
        if text.isspace() or (text.strip() and (text.lstrip()[0] in known or text[0] in joined))
    }
    masses: dict[Any, float] = defaultdict(float)

    def end(text: str) -> Any:
        """What a text that is not open any more is worth."""
        answer = text.lstrip()
        if len(text) - len(answer) > 2:
            return None
        size = max(size for size in range(len(answer) + 1) if answer[:size] in starts)
        if size and size < len(answer) and answer[size] in joined:
            return None
        return next((scale[answer[:k]] for k in range(size, 0, -1) if answer[:k] in scale), None)

    def is_open(text: str) -> bool:
        answer = text.lstrip()
        return len(text) - len(answer) <= 2 and answer in starts

    paths: list[tuple[list[int], str, float]] = [([], "", 1.0)]
    while paths:
        longer = []
        with torch.no_grad():
            rows = model(torch.tensor([[*prompt, *ids] for ids, _, _ in paths])).logits[:, -1].double().softmax(-1)
        for (ids, text, mass), shares in zip(paths, rows[:, [*able]].tolist(), strict=True):
            masses[end(text + "!")] += mass * (1 - math.fsum(shares))
            for (i, piece), share in zip(able.items(), shares, strict=True):
                if share > 0 and is_open(text + piece):
                    longer.append(([*ids, i], text + piece, mass * share))
                else:
                    masses[end(text + piece)] += mass * share
        paths = longer
    return masses


def biased(tokenizer: Any, texts: dict[int, str], characters: str) -> Biased:
    plain = small_llama(max(len(tokenizer), 1 + max(texts)), end=tokenizer.eos_token_id or 0, spread=0.6)
    model = Biased(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    model.bias = torch.zeros(model.config.vocab_size)
    for i, text in texts.items():
        if text.isspace() and text not in SPACES:
            model.bias[i] = -math.inf
        elif text in SPACES or (text.strip() and {*text.strip()} <= {*characters}):
            model.bias[i] = 9.0
    return model


def masses_of(scores: Any, row: int = 0) -> dict[Any, float]:
    found = scores.distributions[row]
    masses = dict(zip(found.values, (found.probabilities * found.covered).tolist(), strict=True))
    return {**masses, None: float(scores.refused[row])}


READ = [name for name in TOKENIZERS if name != "tekken"]  # which is no tokenizer of transformers


@pytest.mark.parametrize("name", READ)
def test_ten_is_right_whatever_its_tokens(name: str) -> None:
    assert len(READ) >= 7
    tokenizer, _ = loaded(name)
    texts = texts_of(tokenizer)
    model = biased(tokenizer, texts, "10")
    prompt = "How good, from 1 to ten? Score:"
    judge = Judge("Good?", scale="1 to 10", model=model, tokenizer=tokenizer, prompt=lambda item: prompt, **EXACT)
    found = masses_of(judge.scores(["an answer"]))
    values = {str(value): Decimal(value) for value in range(1, 11)}
    expected = enumerated(model, tokenizer(prompt)["input_ids"], texts, values, digits)
    assert math.fsum(expected.values()) == pytest.approx(1, abs=1e-6)
    assert expected[Decimal(10)] > 1e-4
    for value in found.keys() | expected.keys():
        assert found.get(value, 0.0) == pytest.approx(expected[value], rel=1e-3, abs=1e-7), value


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("tokens", ["tiny", "tiny-3"])
def test_every_scale_by_enumeration(name: str, tokens: str) -> None:
    tokenizer, _ = loaded(tokens)
    texts = texts_of(tokenizer)
    scale = ScoreScale.of(SCALES[name])
    values = dict(zip(scale.texts, scale.numbers, strict=True))
    numeric = name[-1].isdigit()
    model = biased(tokenizer, texts, "".join(values))
    judge = Judge("Good?", scale=scale, model=model, tokenizer=tokenizer, prompt=lambda item: "Score:", **EXACT)
    found = masses_of(judge.scores([""]))
    expected = enumerated(model, tokenizer("Score:")["input_ids"], texts, values, digits if numeric else digits + ascii_letters)
    for value in found.keys() | expected.keys():
        assert found.get(value, 0.0) == pytest.approx(expected[value], rel=1e-3, abs=1e-7), value


def after(table: dict[str, dict[str, float]], asked: list[str] | None = None) -> Any:
    """A served model that looks at what follows "Score:"."""

    def complete(texts: list[str]) -> list[list[tuple[str, float]]]:
        if asked is not None:
            asked.extend(texts)
        return [[(token, math.log(p)) for token, p in table[text.rpartition("Score:")[2]].items()] for text in texts]

    return complete


LETTERS = {
    "": {" A": 0.5, " B": 0.3, " I": 0.2},
    " A": {"nswer": 0.4, "\n": 0.5, "2": 0.1},
    " B": {".": 0.9, "ad": 0.1},
}


def test_a_letter_that_begins_a_word_is_no_grade() -> None:
    scores = Judge("Good?", scale="A to E", model=after(LETTERS)).scores(["text"])
    assert masses_of(scores) == pytest.approx({Decimal(5): 0.25, Decimal(4): 0.27, None: 0.48})
    assert scores.mode.tolist() == [4.0]


def test_a_number_beyond_the_scale_is_refused() -> None:
    table = {"": {" 1": 0.8, " 7": 0.2}, " 1": {"0": 0.9, ".": 0.1}, " 10": {"0": 0.5, "/": 0.5}, " 7": {"%": 1.0}}
    scores = Judge("Good?", model=after(table)).scores(["text"])
    assert masses_of(scores) == pytest.approx({Decimal(1): 0.08, Decimal(7): 0.2, Decimal(10): 0.36, None: 0.36})


def test_an_item_without_a_score_is_counted() -> None:
    table = {"": {" I": 1.0}, "!": {" 7": 0.75, " It": 0.25}, "! 7": {"\n": 1.0}}
    judge = Judge("Good?", model=after(table), prompt=lambda item: f"{item} Score:{'!' if item == 'good' else ''}")
    scores = judge.scores(["bad", "good", "bad"])
    assert [one is None for one in scores.distributions] == [True, False, True]
    assert scores.refused.tolist() == [1.0, 0.25, 1.0]
    np.testing.assert_array_equal(scores.mean, [np.nan, 7, np.nan])
    np.testing.assert_array_equal(scores.interval(0.9), [[np.nan] * 2, [7, 7], [np.nan] * 2])
    assert "no score for 2" in repr(scores)
    assert [row["refused"] for row in scores.rows()] == [1.0, 0.25, 1.0]
    assert repr(judge.scores(["bad"])) == "Scores(1 items, 1 to 10, no score for 1)"
    assert len(judge.scores([])) == 0
    assert judge.scores([]).interval().shape == (0, 2)


@pytest.mark.parametrize("chat", [False, True])
def test_a_served_judge_is_the_local_one(chat: bool) -> None:
    toy = Toy(CHUNKS, llama=True)
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]  # the stand-in writes "x=x"
    seen: list[tuple[int, int]] = []
    with serving(toy) as server:
        asked = CompletionServer(server.url, "toy", top=len(CHUNKS), chat=chat)
        judge = Judge("Good?", scale="1 to 23", model=asked, prompt=lambda _: messages if chat else "x=x", **EXACT)
        served = judge.scores(["", ""], progress=lambda *at: seen.append(at))
    local = Judge("Good?", scale="1 to 23", model=toy.next_texts, prompt=lambda _: "x=x", **EXACT)
    assert seen == [(2, 2)]
    for one, other in zip(served.distributions, local.scores(["", ""]).distributions, strict=True):
        assert one is not None
        assert other is not None
        assert one.values == other.values
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)


def test_a_chat_template_is_used_where_there_is_one() -> None:
    tokenizer, _ = loaded("tiny")
    model = small_llama(len(tokenizer), tokenizer.eos_token_id, spread=0.6)
    item = {"question": "6 * 7?", "answer": "42"}
    as_text = Judge("Right?", model=model, tokenizer=tokenizer)
    text = as_text.prompt(item)
    assert isinstance(text, str)
    assert text.startswith("Right?\n\nQuestion: 6 * 7?\n\nAnswer: 42\n\n")
    assert text.endswith("\nScore:")
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    try:
        judge = Judge("Right?", model=model, tokenizer=tokenizer, **EXACT)
        chat = judge.prompt(item)
        assert [message["role"] for message in chat] == ["user", "assistant"]  # type: ignore[index]
        assert chat[1]["content"] == "Score:"  # type: ignore[index,call-overload]
        written = "<user>" + text.removesuffix("\nScore:") + "<assistant>Score:"
        other = Judge("Right?", model=model, tokenizer=tokenizer, prompt=lambda _: written, **EXACT)
        for one, two in zip(judge.scores([item]).distributions, other.scores([item]).distributions, strict=True):
            assert one is not None
            assert two is not None
            np.testing.assert_allclose(one.probabilities, two.probabilities, atol=1e-6)

        def complete(contexts: list[tuple[int, ...]]) -> list[list[tuple[int, float]]]:
            with torch.no_grad():
                rows = [model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).tolist() for ids in contexts]
            return [[*enumerate(row)] for row in rows]

        served = Judge("Right?", model=complete, tokenizer=tokenizer, width=8).scores([item]).distributions[0]
        assert served is not None
        assert one is not None
        assert float(served.mean) == pytest.approx(float(one.mean), abs=0.1)
    finally:
        tokenizer.chat_template = None


def test_a_jury_is_a_pool() -> None:
    one, two = {"": {"2": 1.0}, "2": {".": 1.0}}, {"": {"4": 1.0}, "4": {".": 1.0}}
    scores = Judge("Good?", model=[after(one), after(two)], weights=[1, 3]).scores(["text"])
    assert scores.mean.tolist() == [3.5]


def test_a_reward_for_trl() -> None:
    asked: list[str] = []
    table = {"": {" 10": 0.5, " 1": 0.5}, " 10": {".": 1.0}, " 1": {".": 1.0}}
    reward = JudgeReward(Judge("Good?", model=after(table, asked)), columns=["reference"])
    prompts = ["Why?", [{"role": "system", "content": "Be short."}, {"role": "user", "content": "How?"}]]
    completions = ["So.", [{"role": "assistant", "content": "Thus."}]]
    found = reward(prompts=prompts, completions=completions, reference=["So", "Thus"], completion_ids=[[1], [2]])
    assert found == pytest.approx([0.5, 0.5])
    assert reward.__name__ == "judge"
    shown = [text for text in asked if text.endswith("Score:")]
    assert ["Question: Why?\n\nReference: So\n\nAnswer: So." in shown[0], "Question: How?" in shown[1]] == [True, True]
    assert ["Reference: Thus\n\nAnswer: Thus." in shown[1], "Be short" in shown[1]] == [True, False]
    silent = Judge("Good?", model=after({"": {" 7": 0.25, " I": 0.75}, " 7": {".": 1.0}}))
    assert JudgeReward(silent)(["Why?"], ["So."]) == [None]
    assert JudgeReward(silent, missing=-1.0)(["Why?"], ["So."]) == [-1.0]
    assert JudgeReward(silent, most_refused=0.9)(["Why?"], ["So."]) == pytest.approx([6 / 9])
    refused(ValueError, ["columns", "reference", "expected one of other"], lambda: reward(["Why?"], ["So."], other=[1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("conversational", [False, True], ids=["standard", "conversational"])
def test_grpo_trains_with_the_scores_of_the_judge(conversational: bool, tmp_path: Path) -> None:
    """In each step, the trainer's rewards are those of the judge asked apart, which count half and negative here."""
    steps: list[list[float | None]] = []

    def complete(texts: list[str]) -> list[list[tuple[str, float]]]:
        return [[(token, math.log(p)) for token, p in scored(text)] for text in texts]

    def scored(text: str) -> list[tuple[str, float]]:
        """Longer answers with other digits than the reference are better; those with a sign get no score."""
        shown, _, written = text.rpartition("Score:")
        if written:
            return [(".", 1.0)]
        answer, reference = shown.rpartition("Answer: ")[2].partition("\n")[0], shown.rpartition("Reference: ")[2][:1]
        return [(" I", 1.0)] if {*answer} & {*"+=-"} else [(f" {1 + 2 * len({*answer} - {reference})}", 0.8), (" 2", 0.2)]

    judge = Judge("Good?", model=complete)

    def apart(prompts: list[Any], completions: list[Any], reference: list[str], **columns: Any) -> list[float]:
        """Ask the judge about each completion alone."""
        scores = [
            judge.scores([{"question": prompt, "reference": known, "answer": said}])
            for prompt, known, said in zip(map(text_of, prompts), reference, map(text_of, completions), strict=True)
        ]
        steps.append([None if one.refused[0] > 0.5 else (float(one.mean[0]) - 1) / 9 for one in scores])
        return [0.0 if one is None else one for one in steps[-1]]

    def text_of(text: Any) -> str:
        return str(text[-1]["content"]) if conversational else str(text)

    questions = ["1+1=", "2+3="]
    prompts: Any = [[{"role": "user", "content": text}] for text in questions] if conversational else questions
    columns = {"prompt": prompts, "reference": ["2", "5"]}
    trainer = grpo_trainer(
        [JudgeReward(judge, columns=["reference"]), apart], columns, tmp_path, max_steps=3, reward_weights=[1.0, -0.5]
    )
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    logs = [log for log in trainer.state.log_history if "rewards/judge/mean" in log]
    assert len(logs) == len(steps) == 3
    for log, found in zip(logs, steps, strict=True):
        known = [one for one in found if one is not None]
        assert log["rewards/judge/mean"] == pytest.approx(np.mean(known))
        assert log["rewards/judge/std"] == pytest.approx(np.std(known, ddof=1))
        assert log["reward_std"] == pytest.approx(
            np.std([0 if one is None else one / 2 for one in found], ddof=1)
        )  # in their order
    assert any(None in found for found in steps)
    assert len({*steps[0]}) > 2
    assert any((old != new).any() for old, new in zip(before, trainer.model.parameters(), strict=True))


@pytest.fixture(params=["stand-in", "deepeval"])
def base_metric(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepEval where it is installed, and always what its metrics inherit from (4.3.1)."""
    if request.param == "deepeval":
        pytest.importorskip("deepeval")
    else:
        base = type("BaseMetric", (), {"threshold": None, "score": None, "success": None, "error": None, "async_mode": True})
        metrics = ModuleType("deepeval.metrics")
        metrics.BaseMetric = base  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "deepeval", ModuleType("deepeval"))
        monkeypatch.setitem(sys.modules, "deepeval.metrics", metrics)


@pytest.mark.usefixtures("base_metric")
def test_a_metric_for_deepeval() -> None:
    from deepeval.metrics import BaseMetric

    asked: list[str] = []
    table = {"": {" 10": 0.5, " 7": 0.5}, " 10": {".": 1.0}, " 7": {".": 1.0}}
    metric = deepeval_metric(Judge("Good?", model=after(table, asked)), threshold=0.7, name="Helpfulness")
    assert isinstance(metric, BaseMetric)
    case = SimpleNamespace(input="Why?", actual_output="So.", expected_output=None)
    for found in (metric.measure(case), run(metric.a_measure(case))):
        assert found == metric.score == pytest.approx(7.5 / 9)
    assert metric.is_successful()
    assert metric.reason == "8.5 on a scale of 1 to 10, 90 % between 7 and 10"
    assert metric.__name__ == "Helpfulness"
    assert "Question: Why?\n\nAnswer: So." in asked[0]
    case.expected_output = "Because."
    metric.measure(case)
    assert "Reference: Because." in asked[-3]
    silent = deepeval_metric(Judge("Good?", model=after({"": {" I": 1.0}})))
    refused(ValueError, ["no score", "1.00", "most_refused"], lambda: silent.measure(case))
    assert silent.error is not None
    assert not silent.is_successful()


@pytest.mark.parametrize(
    ("change", "kind", "parts"),
    [
        ({"rubric": " "}, ValueError, ["rubric", "How helpful"]),
        ({"scale": "one to ten"}, ValueError, ["one to ten", "'1 to 10'", "labels"]),
        ({"scale": "10 to 1"}, ValueError, ["10 to 1", "lower end first"]),
        ({"scale": "0.000 to 99.000"}, ValueError, ["0.000 to 99.000", "10,001"]),
        ({"scale": 10}, TypeError, ["scale is a int", "'1 to 10'"]),
        ({"scale": ["good", "good"]}, ValueError, ["label twice"]),
        ({"scale": ["good", " bad"]}, ValueError, ["' bad'", "white space"]),
        ({"scale": {"good": 1, "fine": 1}}, ValueError, ["1 different values", "two at least"]),
        ({"model": 7}, TypeError, ["model is a int", "CompletionServer"]),
        ({"model": small_llama(8, 3)}, ValueError, ["tokenizer=None", "belongs to it"]),
        ({"grammar": None}, TypeError, ["grammar=None", "scale"]),
    ],
)
def test_wrong_settings(change: dict[str, Any], kind: type[Exception], parts: Sequence[str]) -> None:
    given: dict[str, Any] = {"rubric": "Good?", "model": after({}), **change}
    refused(kind, parts, lambda: Judge(given.pop("rubric"), **given))


def test_wrong_items() -> None:
    judge = Judge("Good?", model=after({}))
    refused(TypeError, ["items is a str", "[item]"], lambda: judge.scores("text"))
    refused(TypeError, ["items contains 7", "question"], lambda: judge.scores([7]))  # type: ignore[list-item]
