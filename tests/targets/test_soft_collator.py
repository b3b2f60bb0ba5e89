"""Collators of transformers, TRL and one's own: soft targets and weights land where the row's tokens do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.targets.small import encoded, row_targets, tokenizer
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    default_data_collator,
)
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as TRLCollator

from numerate.targets import Bell, SoftCollator, SoftNumbers
from numerate.targets.soft_targets import SoftTargets

EMPTY: dict[str, Any] = {"soft_positions": [], "soft_token_ids": [], "soft_probabilities": []}


def make_rows(mask: bool = False) -> list[dict[str, Any]]:
    tokens = tokenizer("digits")
    soft, rng = SoftNumbers(tokens, Bell(width=9), mask=mask), np.random.default_rng(0)
    rows = []
    for text in ("x=99", "a longer one: 1000\n", "=0"):
        ids = [*encoded(tokens, text), 0]
        start = max(len(ids) - 6, 0)
        rows.append(soft({"input_ids": ids, "labels": [-100] * start + ids[start:]}, rng=rng))
    return rows


def seq2seq(side: str) -> Any:
    tokens = tokenizer("digits")
    tokens.padding_side = side
    return DataCollatorForSeq2Seq(tokens, return_tensors="pt")


def check(batch: Any, rows: list[dict[str, Any]]) -> None:
    """Each entry of the batch says of the same token what the entry of its row says."""
    found = SoftTargets.from_batch(batch)
    assert found is not None
    found.checked(batch["labels"])
    expected = sorted(
        (row["labels"][place], k, np.float32(p)) for row in rows for place, o in row_targets(row).items() for k, p in o.items()
    )
    ours = []
    for line, places in enumerate(found.positions.tolist()):
        for i, place in enumerate(places):
            if place >= 0:
                ours.append(
                    (int(batch["labels"][line, place]), int(found.token_ids[line, i]), float(found.probabilities[line, i]))
                )
    assert sorted(ours) == [(a, b, pytest.approx(c)) for a, b, c in expected]


@pytest.mark.parametrize("side", ["left", "right"])
def test_seq2seq_pads_on_either_side(side: str):
    rows = make_rows()
    batch = SoftCollator(seq2seq(side))(rows)
    check(batch, rows)
    lengths = [len(row["input_ids"]) for row in rows]
    shift = max(lengths) - lengths[0] if side == "left" else 0
    first = [place for place in batch["soft_positions"][0].tolist() if place >= 0]
    assert first == [place + shift for place in rows[0]["soft_positions"]]
    assert "soft_positions" in rows[0], "the rows are left alone"


@pytest.mark.parametrize("options", [{}, {"padding_free": True}, {"padding_free": True, "pad_to_multiple_of": 64}], ids=str)
def test_trl(options: dict[str, Any]):
    rows = make_rows(mask=True)
    batch = SoftCollator(TRLCollator(pad_token_id=0, **options))(rows)
    check(batch, rows)
    assert batch["soft_positions"].shape[0] == (1 if options else 3)
    weights = [w for row in rows for w in row["position_weights"]]
    if options:
        assert batch["position_weights"][:, : len(weights)].tolist() == [weights]
    assert float(batch["position_weights"].sum()) == sum(weights)
    assert batch["position_weights"].shape == batch["labels"].shape


def test_trl_takes_the_label_of_the_first_token_of_a_joined_row():
    soft = {"soft_positions": [0, 1], "soft_token_ids": [5, 6], "soft_probabilities": [1.0, 1.0]}
    rows = [{"input_ids": [5, 6], **soft}, {"input_ids": [5, 6], **soft}]
    batch = SoftCollator(TRLCollator(pad_token_id=0, padding_free=True))(rows)
    assert batch["labels"].tolist() == [[-100, 6, -100, 6]]
    assert batch["soft_positions"].tolist() == [[1, 3]]


def test_transformers_flattening():
    rows = make_rows()
    batch = SoftCollator(DataCollatorWithFlattening())(rows)
    assert batch["input_ids"].shape[0] == 1
    starts = np.cumsum([0, *(len(row["input_ids"]) for row in rows)])
    expected = [place + start for row, start in zip(rows, starts, strict=False) for place in row["soft_positions"]]
    assert batch["soft_positions"].tolist() == [expected]


def test_language_modeling_collator_takes_the_labels_of_end_tokens_that_are_padding():
    rows = [{name: value for name, value in row.items() if name != "labels"} for row in make_rows()]
    tokens = tokenizer("digits")
    tokens.padding_side = "right"
    batch = SoftCollator(DataCollatorForLanguageModeling(tokens, mlm=False))(rows)
    assert [[p for p in places if p >= 0] for places in batch["soft_positions"].tolist()] == [
        [place for place in row["soft_positions"] if row["input_ids"][place] != 0] for row in rows
    ]


def test_rows_without_anything_soft_pass_through():
    rows = [{"input_ids": [1, 2], "labels": [1, 2]}]
    assert SoftCollator(default_data_collator)(rows).keys() == {"input_ids", "labels"}


def test_padding_that_looks_like_text():
    """An end token as padding, before a row of end tokens: the mask tells the sides apart."""
    row = {"input_ids": [0, 0], "soft_positions": [1], "soft_token_ids": [0], "soft_probabilities": [1.0]}
    other = {"input_ids": [1, 2, 3], **EMPTY}
    for side, place in (("left", 2), ("right", 1)):
        tokens = tokenizer("digits")
        tokens.padding_side = side
        batch = SoftCollator(lambda rows, t=tokens: t.pad(rows, return_tensors="pt"))([row, other])
        assert batch["soft_positions"][0].tolist() == [place]


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda rows: {"input_ids": [[1]]}, "the collator's input_ids is list: expected a tensor .B, T."),
        (lambda rows: {"input_ids": torch.tensor([[9, 9], [9, 9]])}, "row 0 is not in the collator's batch"),
        (lambda rows: {"input_ids": torch.tensor([[1, 2]])}, r"made input_ids \(1, 2\) of 2 rows with 3 tokens"),
    ],
)
def test_batches_in_which_rows_cannot_be_found(collate, message: str):
    rows = [{"input_ids": [1, 2], **EMPTY}, {"input_ids": [3], **EMPTY}]
    with pytest.raises(ValueError, match=message):
        SoftCollator(collate)(rows)


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="collator=None cannot be called"):
        SoftCollator(None)
    with pytest.raises(ValueError, match="token_weights has 1 entries and input_ids 2"):
        SoftCollator(TRLCollator(pad_token_id=0))([{"input_ids": [1, 2], "token_weights": [1.0]}])
    uneven = [{"input_ids": [1, 2], **EMPTY, "soft_positions": [1]}, {"input_ids": [1, 2], **EMPTY, "soft_token_ids": [1]}]
    with pytest.raises(ValueError, match="of different lengths: expected one of each for each entry"):
        SoftCollator(TRLCollator(pad_token_id=0))(uneven)


@given(
    kinds=st.lists(st.tuples(st.integers(1, 5), *[st.booleans()] * 3), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    width=st.integers(1, 7),
)
def test_what_belongs_to_a_token_stays_with_it(kinds: list[tuple[int, bool, bool, bool]], side: str, width: int):
    """Rows with and without soft targets and weights, padded or cut on either side; no two tokens are equal but padding."""
    rows: list[dict[str, Any]] = []
    for line, (length, has_soft, has_position, has_token) in enumerate(kinds, 1):
        row: dict[str, Any] = {"input_ids": [100 * line + i for i in range(length)]}
        row |= {name: [7 + id_ / 1024 for id_ in row["input_ids"]] for name in ["position_weights"] * has_position}
        row |= {name: [9 + id_ / 1024 for id_ in row["input_ids"]] for name in ["token_weights"] * has_token}
        if has_soft:
            places = [place for place in range(length) for _ in range(2)]
            row |= {"soft_positions": places, "soft_token_ids": [*range(2 * length)], "soft_probabilities": [0.5] * 2 * length}
        rows.append(row)

    def collate(given_rows: list[dict[str, Any]]) -> dict[str, Any]:
        lines = []
        for row in given_rows:
            assert row.keys() == {"input_ids"}
            ids, room = row["input_ids"], [0] * (width - len(row["input_ids"]))
            lines.append([*room, *ids][-width:] if side == "left" else [*ids, *room][:width])
        return {"input_ids": torch.tensor(lines)}

    batch = SoftCollator(collate)(rows)
    for name, base in (("position_weights", 7), ("token_weights", 9)):
        assert (name in batch) == any(name in row for row in rows)
        for row, ids, weights in zip(rows, batch["input_ids"].tolist(), batch.get(name, torch.empty(len(rows), 0)), strict=True):
            if name in batch:
                assert weights.tolist() == [(base + id_ / 1024 if name in row else 1.0) if id_ else 0.0 for id_ in ids]
    assert ("soft_positions" in batch) == any("soft_positions" in row for row in rows)
    for line, row in enumerate(rows if "soft_positions" in batch else []):
        fields = (batch[name][line].tolist() for name in ("soft_positions", "soft_token_ids"))
        found = {(int(batch["input_ids"][line, place]), token) for place, token in zip(*fields, strict=True) if place >= 0}
        kept = {*batch["input_ids"][line].tolist()} - {0} if "soft_positions" in row else set()
        assert found == {(id_, 2 * (id_ % 100) + option) for id_ in kept for option in (0, 1)}


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_in_labels_of_an_encoder_decoder(side):
    """Questions and labels are padded to lengths of their own."""

    def collate(chosen):
        def pad(name, fill):
            lines = [torch.tensor(row[name]) for row in chosen]
            return torch.nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=fill, padding_side=side)

        return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100)}

    soft = {"soft_positions": [1, 1], "soft_token_ids": [7, 8], "soft_probabilities": [0.5, 0.5], "token_weights": [1.0, 2.0]}
    short = {"input_ids": [1] * 9, "labels": [5, 7], **soft}
    long = {"input_ids": [2], "labels": [5, 6, 7], "token_weights": [1.0, 1.0, 1.0]}
    batch = SoftCollator(collate, sequence="labels")([short, long])
    moved = 1 if side == "left" else 0
    assert batch["soft_positions"].tolist() == [[1 + moved] * 2, [-1, -1]]
    assert batch["token_weights"].tolist()[0] == ([0.0, 1.0, 2.0] if side == "left" else [1.0, 2.0, 0.0])
