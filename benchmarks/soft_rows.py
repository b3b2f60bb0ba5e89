"""``python -m benchmarks.soft_rows``: rows per second with drawn numbers and soft targets, and padded alone, on one core."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import typer

from numerate.targets import Bell, DrawnDataset, SoftCollator, SoftNumbers
from numerate.tokenizers import PACKAGED, load_tokenizer

Rows = list[dict[str, Any]]
BATCH = 32


@dataclass(frozen=True)
class RowSpeed:
    """Rows per second of CPU time: in the first epoch, in later ones, and of the collator alone."""

    name: str
    first: float
    later: float
    plain: float


def table_rows(tokenizer: Any, count: int) -> Rows:
    """Rows of a table as texts, of which the price at the end is trained."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        carat = round(rng.lognormvariate(-0.4, 0.5), 2)
        price = int(4000 * carat**1.7 * rng.lognormvariate(0, 0.2)) + 300
        question = (
            f"carat: {carat}, cut: {rng.choice(['Ideal', 'Premium', 'Good'])}, color: {rng.choice('DEFGHIJ')}, depth: "
            f"{rng.uniform(58, 65):.1f}, table: {rng.randint(53, 60)}, x: {6 * carat**0.33:.2f}\nprice:"
        )
        rows.append(_row(tokenizer, question, f" {price}"))
    return rows


def text_rows(tokenizer: Any, count: int) -> Rows:
    """Worked solutions with eight numbers, all of which are trained."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        boxes, each, price = rng.randint(3, 40), rng.randint(5, 60), rng.randint(2, 90)
        question = f"A shop gets {boxes} boxes of {each} pens and sells each pen for {price} euros. How much does it earn?\n"
        pens = boxes * each
        answer = f"There are {boxes} * {each} = {pens} pens. Sold for {price} euros each, they earn {pens} * {price} = "
        rows.append(_row(tokenizer, question, f"{answer}{pens * price} euros. #### {pens * price}"))
    return rows


def _row(tokenizer: Any, question: str, answer: str) -> dict[str, Any]:
    asked, trained = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (question, answer))
    trained = [*trained, tokenizer.eos_token_id]
    ids = [*asked, *trained]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * len(asked) + trained}


KINDS: dict[str, tuple[Callable[[Any, int], Rows], Any]] = {"table": (table_rows, "answer"), "text": (text_rows, "all")}
"""What makes the rows, and which of their numbers are drawn."""


def row_speed(name: str, tokenizer: Any, kind: str, *, count: int = 512, epochs: int = 5) -> RowSpeed:
    """Measure rows per second; later epochs and the collator alone take turns, and their medians count."""
    from transformers import DataCollatorForSeq2Seq

    make, where = KINDS[kind]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows, collator = make(tokenizer, count), DataCollatorForSeq2Seq(tokenizer)
    data, soft = DrawnDataset(rows, SoftNumbers(tokenizer, Bell(relative=0.05), where=where)), SoftCollator(collator)

    def seconds(batches: Iterable[Any]) -> float:
        begin = time.process_time()
        for _ in batches:
            pass
        return time.process_time() - begin

    def drawn(epoch: int) -> Iterable[Any]:
        data.set_epoch(epoch)
        return (soft(data.__getitems__(range(count)[start : start + BATCH])) for start in range(0, count, BATCH))

    first = seconds(drawn(0))
    turns = [
        (seconds(drawn(epoch)), seconds(collator(rows[start : start + BATCH]) for start in range(0, count, BATCH)))
        for epoch in range(1, epochs + 1)
    ]
    later, plain = (median(times) for times in zip(*turns, strict=True))
    return RowSpeed(f"{name}, {kind}", count / first, count / later, count / plain)


def main() -> None:
    """Print the speeds."""
    torch.set_num_threads(1)
    for name in PACKAGED:
        for kind in KINDS:
            speed = row_speed(name, load_tokenizer(name), kind)
            typer.echo(f"{speed.name}: {speed.first:,.0f} rows/s, {speed.later:,.0f} in later epochs, {speed.plain:,.0f} padded")


if __name__ == "__main__":
    main()
