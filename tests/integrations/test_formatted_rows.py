"""Rows that FormatRows has mapped are what each trainer trains on, in every kind: one line in each program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")
from datasets import Dataset
from tests.decode.models import small_llama
from tests.samples import some_of_each
from tests.targets import small
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

import numerate as nm
from numerate.formats import KINDS, FormatRows, NumberFormat
from numerate.integrations import loop

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SUMS = [(3, 12), (250, 1234), (70, 41), (999, 1)]
TOKENS = copy.deepcopy(small.tokenizer("digits"))
TOKENS.chat_template = "{% for message in messages %}{{ message['role'][0] }}: {{ message['content'] }}\n{% endfor %}"
END = TOKENS.eos_token

Trained = tuple[list[str], dict[str, float]]
"""The texts of a trainer's labels, and the log of a step."""


def pairs() -> Dataset:
    return Dataset.from_list([{"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a, b in SUMS])


def chats(nested: bool = False) -> Dataset:
    rows = []
    for a, b in SUMS:
        asked, said = [{"role": "user", "content": f"{a} + {b}?"}], [{"role": "assistant", "content": f"It is {a + b}."}]
        rows.append({"prompt": asked, "completion": said} if nested else {"messages": asked + said})
    return Dataset.from_list(rows)


def written(kind: str, frame: str) -> list[str]:
    """The texts that are trained, with each number written by hand in the format of all of them."""
    format = NumberFormat.fit([number for a, b in SUMS for number in (a, b, a + b)], kind)
    return sorted(frame.format(a=format.write(a), b=format.write(b), c=format.write(a + b)) for a, b in SUMS)


def texts_of(labels: torch.Tensor) -> list[str]:
    return [TOKENS.decode(row[row >= 0]) for row in labels]


def tokenised(row: dict[str, str]) -> dict[str, list[int]]:
    prompt, answer = (TOKENS(row[name], add_special_tokens=False)["input_ids"] for name in ("prompt", "completion"))
    ids = [*prompt, *answer, TOKENS.eos_token_id]
    return {"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt) :], "attention_mask": [1] * len(ids)}


def model() -> Any:
    return small_llama(len(TOKENS), TOKENS.eos_token_id, spread=0.1)


def run(trainer: Trainer) -> Trained:
    nm.attach(trainer, "smmd")
    labels = [text for batch in trainer.get_train_dataloader() for text in texts_of(batch["labels"])]
    trainer.train()
    return labels, next(entry for entry in trainer.state.log_history if "numeric/share" in entry)


def with_trainer(rows: FormatRows, table: Dataset, out: Path) -> Trained:
    table = table.map(rows).map(tokenised, remove_columns=table.column_names)
    settings: Any = {"max_steps": 1, "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True}
    args = TrainingArguments(str(out), report_to="none", save_strategy="no", **settings)
    return run(Trainer(model(), args, train_dataset=table, data_collator=DataCollatorForSeq2Seq(TOKENS)))


def with_sft(rows: FormatRows, table: Dataset, out: Path) -> Trained:
    settings: Any = {"max_steps": 1, "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True, "bf16": False}
    config = SFTConfig(str(out), report_to="none", save_strategy="no", **settings)
    return run(SFTTrainer(model(), args=config, train_dataset=table.map(rows), processing_class=TOKENS))


def with_loop(rows: FormatRows, table: Dataset, out: Path) -> Trained:
    data: Any = [tokenised(rows(row)) for row in table]
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=DataCollatorForSeq2Seq(TOKENS))
    network = model()
    labels: list[str] = []
    for step in loop.attach(loader, network, "smmd", tokenizer=TOKENS):
        for batch in step:
            labels += texts_of(batch["labels"])
            out_of = step.objective(network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits)
            out_of.loss.backward()
    return labels, {"numeric/share": float(out_of.numeric)}


Program = Callable[[FormatRows, Dataset, Path], Trained]
PROGRAMS: dict[str, tuple[Program, Callable[[], Dataset], str]] = {
    "Trainer": (with_trainer, pairs, " {c}" + END),
    "SFTTrainer": (with_sft, pairs, " {c}" + END),
    "SFTTrainer, messages": (with_sft, chats, "u: {a} + {b}?\na: It is {c}.\n"),
    "SFTTrainer, prompt and completion of messages": (with_sft, lambda: chats(nested=True), "a: It is {c}.\n"),
    "a loop": (with_loop, pairs, " {c}" + END),
}


@pytest.mark.parametrize(("kind", "name"), some_of_each(KINDS, PROGRAMS))
def test_what_is_trained_is_in_the_format(name: str, kind: str, tmp_path: Path) -> None:
    program, table, frame = PROGRAMS[name]
    rows = FormatRows.fit(table(), kind, prompts="all")
    labels, log = program(rows, table(), tmp_path)
    assert sorted(labels) == written(kind, frame)
    assert log["numeric/share"] > 0
    row, mapped = table()[0], rows(table()[0])
    asked = row.get("prompt") or row["messages"][:1]  # later, the model is asked as it was trained
    assert rows.prompt(asked) == (mapped.get("prompt") or mapped["messages"][:1])
