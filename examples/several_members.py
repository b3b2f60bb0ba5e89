"""Several members: three models that differ in their seeds answer as one, with an interval and how far they disagree."""

import tiny
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import numerate as nm
from numerate.distribution import pool, spread

tokenizer = tiny.tokenizer()
members = []
for seed in range(3):  # or adapters of one model: member_distributions(peft_model, prompts, tokenizer, adapters=["a", "b", "c"])
    members.append(tiny.model(tokenizer, seed))
    trainer = Trainer(
        members[-1],
        TrainingArguments("runs/several_members", max_steps=80, learning_rate=3e-3, seed=seed, report_to="none"),
        train_dataset=tiny.examples(tokenizer, 2000),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )
    nm.attach(trainer, soft=0.05)
    trainer.train()

prompts = ["12 + 30 = ", "48 + 35 = ", "7 + 5 = "]
for prompt, answers in zip(prompts, nm.decode.member_distributions(members, prompts, tokenizer), strict=True):
    pooled, apart = pool(answers), spread(answers)
    low, high = pooled.interval(0.9)
    alone = ", ".join(str(answer.median) for answer in answers)
    print(f"{prompt}{pooled.median} (members: {alone}), 90 % in {low} to {high}, disagreement {apart.between:.2f}")
