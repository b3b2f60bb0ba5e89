"""Lightning: one call makes the loader and its objective; `step_counts` counts the numbers of a whole step."""

from typing import Any

import lightning as L
import tiny
import torch
from transformers import DataCollatorForSeq2Seq

from numerate.integrations.lightning import attach, step_counts

tokenizer = tiny.tokenizer()
trainer = L.Trainer(max_steps=20, accumulate_grad_batches=4, logger=False, enable_checkpointing=False)
collate = DataCollatorForSeq2Seq(tokenizer)
loader = attach(trainer, tiny.examples(tokenizer, 2000), "smmd", soft=0.05, batch_size=16, collate_fn=collate)


class Arithmetic(L.LightningModule):
    """A language model."""

    model = tiny.model(tokenizer).train()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Divide by the counts of the whole step."""
        counts = step_counts(self, batch, batch_idx)
        logits = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return loader.objective(logits, batch["labels"], shift=True, **counts).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use any optimizer."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)


module = Arithmetic()
before = tiny.evaluate(module.model, loader.objective, tokenizer)
trainer.fit(module, loader)
tiny.compare(before, tiny.evaluate(module.model, loader.objective, tokenizer))
