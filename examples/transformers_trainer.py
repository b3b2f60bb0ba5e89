"""Hugging Face Trainer: one added line, `attach`, gives the loss a numeric term."""

import tiny
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm
from numerate.integrations.transformers import attach

tokenizer = tiny.tokenizer()
trainer = Trainer(
    tiny.model(tokenizer),
    TrainingArguments(
        "runs/transformers_trainer",
        max_steps=20,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=tiny.examples(tokenizer, 2000),
    eval_dataset=tiny.examples(tokenizer, 200, seed=1),
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)

vocab = nm.NumericVocab.from_tokenizer(tokenizer)
attach(trainer, nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3))

before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
for part in ("eval_loss", "eval_loss/cross_entropy", "eval_loss/numeric", "eval_numeric/mass"):
    print(f"{part}: {before[part]:.3f} -> {after[part]:.3f}")
