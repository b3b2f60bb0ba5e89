"""Lightning: a module with a numeric objective. The gradient is right for any accumulation and any number of processes."""

import lightning as L
import tiny
import torch
from transformers import DataCollatorForSeq2Seq

import numerate as nm
from numerate.integrations.lightning import StepDataLoader, step_counts

ACCUMULATE = 4


class Arithmetic(L.LightningModule):
    """A language model with a numeric objective."""

    def __init__(self, model: torch.nn.Module, objective: nm.NumericObjective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def logits(self, batch):
        """Return logits ``[B, T, V]``."""
        return self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits

    def training_step(self, batch, batch_idx):
        """Divide by the counts of the whole optimizer step. Labels are raw, so they are shifted."""
        counts = step_counts(self, batch, batch_idx)
        out = self.objective(self.logits(batch), batch["labels"], shift=True, **counts)
        self.log_dict({"cross_entropy": out.cross_entropy, "numeric": out.numeric}, prog_bar=True)
        return out.loss

    def validation_step(self, batch, batch_idx):
        """Divide by the counts of the batch."""
        out = self.objective(self.logits(batch), batch["labels"], shift=True)
        self.log_dict({"val/cross_entropy": out.cross_entropy, "val/numeric": out.numeric})

    def configure_optimizers(self):
        """Use any optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


tokenizer = tiny.tokenizer()
vocab = nm.NumericVocab.from_tokenizer(tokenizer)
objective = nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3)
module = Arithmetic(tiny.model(tokenizer).train(), objective)
collate = DataCollatorForSeq2Seq(tokenizer)

train = StepDataLoader(
    tiny.examples(tokenizer, 2000), objective=objective, accumulate=ACCUMULATE, batch_size=16, shuffle=True, collate_fn=collate
)
valid = torch.utils.data.DataLoader(tiny.examples(tokenizer, 200, seed=1), batch_size=200, collate_fn=collate)

trainer = L.Trainer(
    max_steps=20,
    accumulate_grad_batches=ACCUMULATE,
    gradient_clip_val=1.0,
    log_every_n_steps=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
(before,) = trainer.validate(module, valid, verbose=False)
trainer.fit(module, train)
(after,) = trainer.validate(module, valid, verbose=False)
for part in before:
    print(f"{part}: {before[part]:.3f} -> {after[part]:.3f}")
