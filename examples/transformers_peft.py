"""LoRA with the Hugging Face Trainer: a published loss and soft labels together."""

import tiny
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm

tokenizer = tiny.tokenizer()
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["lm_head"])
trainer = Trainer(
    get_peft_model(tiny.model(tokenizer), lora),
    TrainingArguments("runs/transformers_peft", max_steps=20, learning_rate=1e-2, report_to="none"),
    train_dataset=tiny.examples(tokenizer, 2000),
    eval_dataset=tiny.examples(tokenizer, 200, seed=1),
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)
nm.attach(trainer, "ntil", weight=0.3, soft=0.02)

before = trainer.evaluate()
trainer.train()
tiny.compare(before, trainer.evaluate())
