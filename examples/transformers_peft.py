"""LoRA with the Hugging Face Trainer: only the model differs from transformers_trainer.py."""

import tiny
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm
from numerate.integrations.transformers import attach

tokenizer = tiny.tokenizer()
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["lm_head"])
model = get_peft_model(tiny.model(tokenizer), lora)
model.print_trainable_parameters()

trainer = Trainer(
    model,
    TrainingArguments(
        "runs/transformers_peft",
        max_steps=20,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=100,
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
attach(trainer, nm.NumericObjective(nm.LOSSES["number"](vocab), weight=0.3))

before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
for part in ("eval_loss", "eval_loss/cross_entropy", "eval_loss/numeric", "eval_numeric/mass"):
    print(f"{part}: {before[part]:.3f} -> {after[part]:.3f}")
