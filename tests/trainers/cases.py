"""Tiny real models and batches of numbers, and the gradient of one step that a trainer makes of them.

`torchrun tests/trainers/cases.py FILE CASE..` writes the gradients that several processes come to.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from numerate import LOSSES, NumericObjective, NumericVocab
from numerate.integrations.transformers import attach

TEXTS = [*"0123456789", ".", "-", ",", " ", "x"]
VOCAB = NumericVocab.from_texts({text: i for i, text in enumerate(TEXTS)}, vocab_size=len(TEXTS))
VOCAB_SIZE, PAD, IMAGE = 40, 30, 31
EXAMPLES = 8


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config)


def qwen2_vl() -> nn.Module:
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
    }
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    text |= {"bos_token_id": None, "eos_token_id": None}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, bos_token_id=None, eos_token_id=None)
    model = Qwen2VLForConditionalGeneration(config)
    model.accepts_loss_kwargs = False  # as in the releases before, and in many vision-language models still
    return model


def t5() -> nn.Module:
    config = T5Config(
        vocab_size=VOCAB_SIZE,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=2,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        dropout_rate=0.0,
    )
    return T5ForConditionalGeneration(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "qwen2_vl": qwen2_vl, "t5": t5}


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype).train()


def dataset(model: str, *, padded: bool) -> list[dict[str, Any]]:
    """Few numbers in some examples, many in others, so that means of means would show."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for i in range(EXAMPLES):
        length = 12 + (i * 5) % 9 if padded else 16
        text = torch.randint(10, 15, (length,), generator=generator)
        digits = torch.randint(0, 10, (length,), generator=generator)
        ids = torch.where(torch.rand(length, generator=generator) < (i + 1) / (EXAMPLES + 1), digits, text)
        labels = ids.clone()
        labels[: 2 + i % 3] = -100
        row: dict[str, Any] = {"input_ids": ids, "labels": labels}
        if model == "qwen2_vl":
            ids[:4] = IMAGE
            row["labels"][:4] = -100
            row["pixel_values"] = torch.randn(16, 3 * 2 * 4 * 4, generator=generator, dtype=torch.float64)
            row["image_grid_thw"] = torch.tensor([[1, 4, 4]])
            row["mm_token_type_ids"] = (ids == IMAGE).long()
        rows.append(row)
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    def pad(name: str, fill: int) -> Tensor:
        return nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True, padding_value=fill)

    batch = {"input_ids": pad("input_ids", PAD), "labels": pad("labels", -100)}
    batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    if "pixel_values" in rows[0]:
        batch["mm_token_type_ids"] = pad("mm_token_type_ids", 0)
        batch |= {name: torch.cat([row[name] for row in rows]) for name in ("pixel_values", "image_grid_thw")}
    return batch


@dataclass(frozen=True)
class Case:
    """One way to make a step of all examples."""

    model: str = "llama"
    loss: str = "ntil"
    normalize: str = "numeric"
    padded: bool = True

    @property
    def objective(self) -> NumericObjective:
        return NumericObjective(LOSSES[self.loss](VOCAB), weight=0.7, normalize=self.normalize)

    @classmethod
    def parse(cls, text: str) -> Case:
        model, loss, normalize, padded = text.split(":")
        return cls(model, loss, normalize, padded == "True")

    def __str__(self) -> str:
        return f"{self.model}:{self.loss}:{self.normalize}:{self.padded}"


class Collect(TrainerCallback):
    """The gradients, just before the optimizer takes its step."""

    def __init__(self) -> None:
        self.grads: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.grads = gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).detach().clone() for name, g in found.items()}


def arguments(folder: str, accumulation: int = 1, **settings: Any) -> TrainingArguments:
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=1,
        per_device_train_batch_size=EXAMPLES // accumulation // processes,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=0.0,
        optim="sgd",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **settings,
    )


def trainer_for(model: nn.Module, rows: list[dict[str, Any]], args: TrainingArguments, **settings: Any) -> Trainer:
    return Trainer(model, args, train_dataset=rows, data_collator=collate, **settings)


def step(case: Case, accumulation: int = 1, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The gradient of a Trainer's step."""
    collect = Collect()
    with tempfile.TemporaryDirectory() as folder:
        rows = dataset(case.model, padded=case.padded)
        if torch.distributed.is_available() and "RANK" in __import__("os").environ:
            TrainingArguments(output_dir=folder, use_cpu=True).device  # noqa: B018 - begins the process group
        model = build(case.model) if model is None else model
        trainer = trainer_for(model, rows, arguments(folder, accumulation), callbacks=[collect])
        attach(trainer, case.objective)
        trainer.train()
    return collect.grads


def reference(case: Case, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The same by autograd, in float64, from one batch of everything."""
    model = build(case.model) if model is None else model
    batch = collate(dataset(case.model, padded=case.padded))
    labels = batch.pop("labels")
    if case.model == "t5":
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**batch).logits
    if case.model != "t5":
        logits, labels = logits[:, :-1], labels[:, 1:]
    loss = case.objective.numeric_loss
    count = loss.count(labels) if case.normalize == "numeric" else (labels != -100).sum()
    ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    (ce + 0.7 * loss(logits, labels, reduction="sum") / count).backward()
    return gradients(model)


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    found = {(name, k): step(Case.parse(name), k) for name in names for k in (1, 2)}
    if torch.distributed.get_rank() == 0:
        torch.save(found, Path(path))
    torch.distributed.destroy_process_group()
