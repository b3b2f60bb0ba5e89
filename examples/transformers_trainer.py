"""Hugging Face Trainer: labels may be 5 % off, so `attach` trains on soft labels."""

import tiny
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm

tokenizer = tiny.tokenizer()
trainer = Trainer(
    tiny.model(tokenizer),
    TrainingArguments("runs/transformers_trainer", max_steps=20, learning_rate=1e-2, report_to="none"),
    train_dataset=tiny.examples(tokenizer, 2000),
    eval_dataset=tiny.examples(tokenizer, 200, seed=1),
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)
nm.attach(trainer, soft=0.05)

before = trainer.evaluate()
trainer.train()
tiny.compare(before, trainer.evaluate())
