"""Unsloth: a numeric term in the loss of its ``SFTTrainer``.

    python unsloth_train.py MODEL DATA.jsonl OUTPUT    # lines with "prompt" and "completion"

Unsloth's models (Llama, Mistral, Qwen, Gemma, Granite, Cohere) compute the cross-entropy inside their forward pass without
``model.loss_function``, so ``attach`` cannot be used; and its ``SFTTrainer`` is based on TRL releases that ``attach``
does not support. ``compute_loss_func`` works: the trainer then passes no labels to the model, the model returns its logits, and
the loss is computed from them, in one forward pass.

Consequences:

- Logits of the batch are built, which Unsloth otherwise avoids. With long sequences, use smaller batches and accumulate.
- ``normalize="tokens"``: such a function gets the number of label tokens of a step, but not of its numbers.
- No packing: such a function does not see where packed examples begin.

Written against unsloth and unsloth_zoo 2026.10.9 (transformers 5.17.0, trl 1.15.0). Run with them on Unsloth's CPU backend: LoRA
on a 4-bit model; one micro-batch and four gave the same loss and gradient norm in the first step. Not run: a GPU, where Unsloth
patches more. That its models return logits without labels, and that its trainer passes ``compute_loss_func`` on, is taken
from its source.
"""

import sys
from typing import Any

import unsloth  # noqa: F401 - before trl and transformers, which it patches
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

import numerate as nm
from numerate.integrations.transformers import compute_loss_func


def numeric_loss(tokenizer: Any, loss: str = "smmd", weight: float = 0.3, **settings: Any) -> Any:
    """Return a function for ``SFTTrainer(compute_loss_func=...)``; ``settings`` are those of the loss."""
    vocab = nm.NumericVocab.from_tokenizer(tokenizer)
    objective = nm.NumericObjective(nm.LOSSES[loss](vocab, **settings), weight=weight, normalize="tokens")
    return compute_loss_func(objective, shift=True)  # cannot be found: Unsloth's models return no logits along with a loss


def train(model_name: str, data: str, output: str, **settings: Any) -> SFTTrainer:
    """Train LoRA on a model with a numeric loss; ``settings`` are those of ``SFTConfig``."""
    model, tokenizer = FastLanguageModel.from_pretrained(model_name, max_seq_length=2048)
    model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(output_dir=output, packing=False, padding_free=False, **settings),
        train_dataset=load_dataset("json", data_files=data, split="train"),
        processing_class=tokenizer,
        compute_loss_func=numeric_loss(tokenizer),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    train(*sys.argv[1:4])
