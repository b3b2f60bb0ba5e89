"""TRL: a published loss in SFTTrainer as it is, with packing."""

import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

import numerate as nm

tokenizer = tiny.tokenizer()
args = SFTConfig("runs/trl_sft", max_steps=20, learning_rate=1e-2, packing=True, eval_packing=False, max_length=256, bf16=False)
args.gradient_checkpointing, args.per_device_train_batch_size = False, 4
trainer = SFTTrainer(
    tiny.model(tokenizer),
    args,
    train_dataset=Dataset.from_list(tiny.examples(tokenizer, 2000)),
    eval_dataset=Dataset.from_list(tiny.examples(tokenizer, 200, seed=1)),
    processing_class=tokenizer,
)
nm.attach(trainer, "smmd", weight=0.3)

before = trainer.evaluate()
trainer.train()
tiny.compare(before, trainer.evaluate())
