"""Several people's ratings: train on all of them, from a column of the data."""

import random

import tiny
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm

people = random.Random(0)
tokenizer = tiny.tokenizer()
rows = tiny.examples(tokenizer, 2000)
rated = [{**row, "ratings": [people.choice([3, 4, 4, 5]) for _ in range(10)]} for row in rows]
trainer = Trainer(
    tiny.model(tokenizer),
    TrainingArguments("runs/ratings", max_steps=20, learning_rate=1e-2, report_to="none"),
    train_dataset=rated,
    eval_dataset=[tiny.example(tokenizer, "4 + 0 = ", str(rating)) for rating in (3, 4, 4, 5)],
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)
nm.attach(trainer, soft=nm.Ratings("ratings"))

before = trainer.evaluate()
trainer.train()
tiny.compare(before, trainer.evaluate())
