"""attach with a format: soft labels are drawn in it, losses read it, whatever makes the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.samples import refused
from tests.targets import small

pytest.importorskip("transformers")
from tests.decode.models import small_llama
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm
from numerate.formats import KINDS, NumberFormat, as_format
from numerate.integrations import loop
from numerate.integrations.asked import Asked
from numerate.integrations.first_rows import FirstRows
from numerate.targets import Bell, SoftNumbers

NUMBERS = ["12.5", "99.9", "7.0", "100.0"]
TOKENS = small.tokenizer("triples")


def rows_in(format: NumberFormat) -> list[dict[str, list[int]]]:
    rows = []
    for number in NUMBERS:
        prompt, answer = (TOKENS(text)["input_ids"] for text in ("x 3", f" is {format.write(number)}."))
        ids = [*prompt, *answer, TOKENS.eos_token_id]
        rows.append({"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt) :], "attention_mask": [1] * len(ids)})
    return rows


def model() -> Any:
    return small_llama(len(TOKENS), TOKENS.eos_token_id, spread=0.1)


def answers(data: Any, format: NumberFormat) -> list[float]:
    texts = (TOKENS.decode([i for i in row["labels"] if i >= 0]) for row in data)
    return [float(format.read(text.removeprefix(" is ").removesuffix(".<end>")) or "nan") for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_soft_labels_in_a_trainer(kind: str, tmp_path: Path) -> None:
    format = NumberFormat.fit(NUMBERS, kind)
    settings: Any = {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True, "save_strategy": "no"}
    args = TrainingArguments(str(tmp_path), report_to="none", **settings)
    trainer = Trainer(model(), args, train_dataset=rows_in(format), data_collator=DataCollatorForSeq2Seq(TOKENS))
    attached = nm.attach(trainer, soft=Bell(width=0.3, shape="uniform"), format=format, tokenizer=TOKENS)
    assert attached.summary.endswith("4 of 4 rows")
    drawn = []
    for epoch in range(4):
        trainer.train_dataset.set_epoch(epoch)
        drawn.append(answers(trainer.train_dataset, format))
    np.testing.assert_allclose(drawn, np.tile([float(number) for number in NUMBERS], (4, 1)), atol=0.3 + 1e-9)
    assert np.ptp(drawn, axis=0).max() > 0
    assert attached.soft.left_hard == 0
    trainer.train()


@pytest.mark.parametrize("kind", KINDS)
def test_widths_and_losses_by_name(kind: str) -> None:
    """The width that labels suggest, and the vocabulary of a loss, do not depend on how rows write the labels."""
    format = NumberFormat.fit(NUMBERS, kind)
    _, plain = Asked(soft=True).built(lambda: TOKENS, FirstRows(rows_in(NumberFormat())))
    objective, soft = Asked("smmd", soft=True, format=format).built(lambda: TOKENS, FirstRows(rows_in(format)))
    assert soft.target == plain.target
    assert as_format(objective.numeric_loss.vocab.format or "plain") == format


def test_a_loop() -> None:
    format = as_format("spaced")
    loader = torch.utils.data.DataLoader(rows_in(format), batch_size=4, collate_fn=DataCollatorForSeq2Seq(TOKENS))
    network, target, drawn = model(), Bell(width=0.3, shape="uniform"), set[float]()
    steps = loop.attach(loader, network, soft=target, format="spaced", tokenizer=TOKENS)
    for _ in range(3):
        for step in steps:
            for batch in step:
                drawn |= {*answers([{"labels": row} for row in batch["labels"].tolist()], format)}
                step.objective(network(input_ids=batch["input_ids"]).logits).loss.backward()
    assert len(drawn) > len(NUMBERS)
    assert all(min(abs(value - float(number)) for number in NUMBERS) < 0.31 for value in drawn)


def test_one_format_for_all() -> None:
    vocab = nm.NumericVocab.from_tokenizer(TOKENS, format="spaced")
    assert Asked(nm.SMMDLoss(vocab), SoftNumbers(TOKENS, Bell(width=1), format="spaced"), format="spaced")
    for asked, remedy in (
        ({"loss": nm.SMMDLoss(vocab)}, "NumericVocab.from_tokenizer"),
        ({"loss": nm.NumericObjective(nm.SMMDLoss(vocab))}, "NumericVocab.from_tokenizer"),
        ({"soft": SoftNumbers(TOKENS, Bell(width=1), format="spaced")}, "SoftNumbers"),
    ):
        refused(ValueError, ["format='reversed'", "'spaced'", remedy], lambda asked=asked: Asked(**asked, format="reversed"))
    refused(ValueError, ["kind='spced'"], lambda: Asked(soft=0.1, format="spced"))


def test_soft_labels_take_the_format_of_a_loss() -> None:
    loss = nm.NTILLoss(nm.NumericVocab.from_tokenizer(TOKENS, format="spaced"))
    _, soft = Asked(loss, soft=0.05).built(lambda: TOKENS, FirstRows(rows_in(as_format("spaced"))))
    assert soft is not None
    assert soft.format == as_format("spaced")
