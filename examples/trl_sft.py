"""TRL: NumericSFTTrainer in place of SFTTrainer, with packing, and a loss on the answers only."""

import tiny
from datasets import Dataset
from trl import SFTConfig

import numerate as nm
from numerate.integrations.trl import NumericSFTTrainer

tokenizer = tiny.tokenizer()
vocab = nm.NumericVocab.from_tokenizer(tokenizer)
trainer = NumericSFTTrainer(
    tiny.model(tokenizer),
    SFTConfig(
        "runs/trl_sft",
        max_steps=20,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=50,
        learning_rate=1e-2,
        logging_steps=5,
        packing=True,
        eval_packing=False,
        max_length=256,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Dataset.from_list(tiny.examples(tokenizer, 2000)),
    eval_dataset=Dataset.from_list(tiny.examples(tokenizer, 200, seed=1)),
    processing_class=tokenizer,
    objective=nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3),
)

before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
for part in ("eval_loss", "eval_loss/cross_entropy", "eval_loss/numeric", "eval_numeric/mass", "eval_mean_token_accuracy"):
    print(f"{part}: {before[part]:.3f} -> {after[part]:.3f}")
