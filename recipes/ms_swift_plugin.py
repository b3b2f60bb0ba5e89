"""ms-swift: a numeric term in the loss, as a loss type.

    swift sft --external_plugins ms_swift_plugin.py --loss_type numeric ...

Set the loss below. A loss type of ms-swift is a class that is built with the trainer and called with the model's logits for each
micro-batch. It gets the number of label tokens of the optimizer step, but not of its numbers. So ``get_batch_samples`` of the
trainer, which holds all micro-batches of a step, is wrapped to count them. Both counts are those of the step, over all processes.

Logits are built: ms-swift does not pass labels to the model. ``loss_scale`` with weights other than 0 and 1, and sequence
parallelism, are refused.

Written against ms-swift 4.6.0 (transformers 5.19.0). Run with it on a CPU: full training (one micro-batch, four, eight, and two
on each of two processes gave the same losses and gradient norms), and LoRA. Not run: a GPU, packing, vision-language models,
Megatron (refused).
"""

from typing import Any

import torch
from swift.loss import BaseLoss, loss_map

import numerate as nm
from numerate.integrations.counts import count_step

LOSS = "smmd"  # a name of numerate.LOSSES
SETTINGS: dict[str, Any] = {}  # of the loss
WEIGHT = 0.3
NORMALIZE = "numeric"  # or "tokens"


class NumericLoss(BaseLoss):
    """Cross-entropy plus a numeric term."""

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        if self.is_megatron:
            raise NotImplementedError("Megatron's trainers count in another way: expected `swift sft`.")
        if trainer.template.sequence_parallel_size > 1:
            raise NotImplementedError("sequence parallelism cuts numbers in two: expected sequence_parallel_size=1.")
        loss = nm.LOSSES[LOSS](nm.NumericVocab.from_tokenizer(trainer.template.tokenizer), **SETTINGS)
        if loss.reads_numbers:
            # ms-swift drops rows without a label before the head, which would join the numbers on either side.
            args.use_logits_to_keep = False
        smoothing = args.label_smoothing_factor
        objective = nm.NumericObjective(loss, weight=WEIGHT, normalize=NORMALIZE, label_smoothing=smoothing)
        self.objective = objective.to(args.device)
        self.counts: tuple[torch.Tensor, torch.Tensor] | None = None
        take = trainer.get_batch_samples

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            batches, num_items = take(*args, **kwargs)
            self.counts = self.count(batches) if batches else None
            return batches, num_items

        trainer.get_batch_samples = get_batch_samples

    def count(self, batches: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Count batches, over all processes."""
        accelerator = self.trainer.accelerator
        group = torch.distributed.group.WORLD if accelerator.num_processes > 1 else None
        labels = [{"labels": batch["labels"]} for batch in batches]
        return count_step(self.objective, labels, group=group, device=accelerator.device)

    def __call__(
        self, outputs: Any, labels: torch.Tensor, *, num_items_in_batch: Any = None, loss_scale: Any = None, **_: Any
    ) -> torch.Tensor:
        """Return the loss of a micro-batch. ms-swift sums it over the step and averages over processes."""
        if loss_scale is not None:
            raise NotImplementedError(
                "loss_scale gives tokens weights, which is not supported here: expected --loss_scale default."
            )
        trainer, processes = self.trainer, self.trainer.accelerator.num_processes
        training = trainer.model.training and torch.is_grad_enabled()
        counts = self.counts if training and self.counts is not None else self.count([{"labels": labels}])
        step = dict(zip(("num_items", "num_units"), counts, strict=True))
        out = self.objective(outputs.logits, labels.to(outputs.logits.device), shift=True, **step)
        # ms-swift logs the mean over micro-batches and processes; the parts here are shares of the step's.
        shares = processes * (trainer.current_gradient_accumulation_steps if training else 1)
        metrics = trainer.custom_metrics["train" if training else "eval"]
        for name in ("cross_entropy", "numeric"):
            metrics[f"loss/{name}"].update(getattr(out, name) * shares)
        # ms-swift corrects for the average over processes only if it knows the step's tokens.
        known = num_items_in_batch is not None and trainer.args.average_tokens_across_devices
        return out.loss if known and trainer.model_accepts_loss_kwargs else out.loss * processes


loss_map["numeric"] = NumericLoss
