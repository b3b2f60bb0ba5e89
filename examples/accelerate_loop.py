"""Your own loop, with accelerate; `engine=fabric` for Lightning's Fabric, none for plain PyTorch, DDP and FSDP."""

from typing import Any

import tiny
import torch
from accelerate import Accelerator
from transformers import DataCollatorForSeq2Seq

from numerate.integrations.loop import attach

tokenizer = tiny.tokenizer()
accelerator, model = Accelerator(gradient_accumulation_steps=4), tiny.model(tokenizer).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data: Any = tiny.examples(tokenizer, 1400)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, collate_fn=DataCollatorForSeq2Seq(tokenizer))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

steps = attach(loader, model, "smmd", weight=0.3, soft=0.05, accumulate=4, engine=accelerator)
before = tiny.evaluate(model, steps.numeric_objective, tokenizer)
for step in steps:
    for batch in step:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        accelerator.backward(step.objective(logits).loss)
    optimizer.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    tiny.compare(before, tiny.evaluate(model, steps.numeric_objective, tokenizer))
