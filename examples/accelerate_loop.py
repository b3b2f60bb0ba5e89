"""Your own training loop, with accelerate. The gradient is right for any accumulation and any number of processes.

Run `python accelerate_loop.py`, or `accelerate launch --num_processes 2 accelerate_loop.py`. Without accelerate, leave out
`engine=` and call `loss.backward()`; with Lightning's Fabric, pass `engine=fabric` and call `fabric.backward(loss)`.
"""

import tiny
import torch
from accelerate import Accelerator
from transformers import DataCollatorForSeq2Seq

import numerate as nm
from numerate.integrations.loop import Steps

ACCUMULATE = 4

tokenizer = tiny.tokenizer()
vocab = nm.NumericVocab.from_tokenizer(tokenizer)
objective = nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3)
collate = DataCollatorForSeq2Seq(tokenizer)
valid = collate(tiny.examples(tokenizer, 200, seed=1))

accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE)
model = tiny.model(tokenizer).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(tiny.examples(tokenizer, 1400), batch_size=16, shuffle=True, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def logits_of(batch):
    """Return logits ``[B, T, V]``. Without labels, the model computes no loss."""
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


@torch.no_grad()
def validate():
    """Return the objective of all validation examples. Their labels are raw, so they are shifted."""
    batch = {name: tensor.to(accelerator.device) for name, tensor in valid.items()}
    return objective(logits_of(batch), batch["labels"], shift=True)


before = validate()
for step in Steps(loader, model, objective, accumulate=ACCUMULATE, engine=accelerator):
    for batch in step:
        accelerator.backward(step.objective(logits_of(batch)).loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
after = validate()

accelerator.print(f"valid/cross_entropy: {before.cross_entropy:.3f} -> {after.cross_entropy:.3f}")
accelerator.print(f"valid/numeric: {before.numeric:.3f} -> {after.numeric:.3f}")
accelerator.end_training()
