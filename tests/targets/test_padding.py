"""Batches padded as arrays, against those of the collator itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.targets.small import tokenizer
from transformers import BatchEncoding, DataCollatorForSeq2Seq, DataCollatorWithPadding

from numerate.targets.padding import padded


def make_row(ids: list[int], names: tuple[str, ...] = ("input_ids", "attention_mask", "labels")) -> dict[str, Any]:
    columns = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100, *ids[1:]], "token_type_ids": [0] * len(ids)}
    return {name: columns[name] for name in names}


@given(
    st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=12), min_size=1, max_size=5),
    st.sampled_from(["left", "right"]),
    st.sampled_from([None, 1, 8]),
    st.sampled_from([-100, 7]),
    st.permutations(["input_ids", "attention_mask", "labels"]),
)
def test_the_batch_is_that_of_the_collator(rows, side, multiple, label_pad, names):
    tokens = tokenizer("digits")
    tokens.padding_side = side
    collator = DataCollatorForSeq2Seq(tokens, pad_to_multiple_of=multiple, label_pad_token_id=label_pad)
    made = [make_row(ids, tuple(names)) for ids in rows]
    (ours, starts), theirs = padded(collator, made), collator(made)
    length = theirs["input_ids"].shape[1]
    assert starts == [length - len(ids) if side == "left" else 0 for ids in rows]
    assert isinstance(ours, BatchEncoding)
    assert [*ours] == [*theirs]
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert torch.equal(ours[name], value)
    assert made == [make_row(ids, tuple(names)) for ids in rows], "the rows are left alone"


class OwnPad(type(tokenizer("digits"))):
    def _pad(self, *args: Any, **kwargs: Any) -> Any:
        return super()._pad(*args, **kwargs)


class OwnCollator(DataCollatorForSeq2Seq):
    pass


PLAIN = make_row([5, 6])


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda t: DataCollatorForSeq2Seq(t, model=object()), [PLAIN]),
        (lambda t: DataCollatorForSeq2Seq(t, padding="max_length", max_length=9), [PLAIN]),
        (lambda t: DataCollatorForSeq2Seq(t, return_tensors="np"), [PLAIN]),
        (lambda t: DataCollatorForSeq2Seq(OwnPad(tokenizer_object=t._tokenizer, pad_token="<end>")), [PLAIN]),
        (DataCollatorWithPadding, [PLAIN]),
        (OwnCollator, [PLAIN]),
        (lambda t: lambda rows: rows, [PLAIN]),
        (DataCollatorForSeq2Seq, []),
        (DataCollatorForSeq2Seq, [make_row([])]),
        (DataCollatorForSeq2Seq, [PLAIN, make_row([5], ("input_ids", "labels"))]),
        (DataCollatorForSeq2Seq, [make_row([5], ("input_ids", "attention_mask", "labels", "token_type_ids"))]),
        (DataCollatorForSeq2Seq, [{**PLAIN, "labels": [5]}]),
        (DataCollatorForSeq2Seq, [{**PLAIN, "labels": None}]),
        (DataCollatorForSeq2Seq, [{**PLAIN, "attention_mask": [1.0, 0.5]}]),
        (DataCollatorForSeq2Seq, [{**PLAIN, "attention_mask": [True, True]}]),
        (DataCollatorForSeq2Seq, [{**PLAIN, "input_ids": np.array([5, 6])}]),
    ],
)
def test_everything_else_is_left_to_the_collator(make, rows):
    assert padded(make(tokenizer("digits")), rows) is None


def test_a_tokenizer_that_cannot_pad_is_left_to_the_collator():
    tokens = type(tokenizer("digits"))(tokenizer_object=tokenizer("digits")._tokenizer)
    assert padded(DataCollatorForSeq2Seq(tokens), [PLAIN]) is None
    tokens.pad_token = "<end>"
    assert padded(DataCollatorForSeq2Seq(tokens), [PLAIN]) is not None
    tokens.pad = None
    assert padded(DataCollatorForSeq2Seq(tokens), [PLAIN]) is None
