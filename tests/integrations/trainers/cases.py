"""Tiny models, batches of numbers, and one training step of them: gradients, logs, evaluation.

`torchrun tests/integrations/trainers/cases.py CASE.. --out FILE` trains on several processes, with one and with two
micro-batches each, and writes the outcomes; so do `accelerate launch` and plain `python`. `--check` compares the gradients
with those of one batch.
"""

from __future__ import annotations

import argparse
import functools
import gc
import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from packaging.version import Version
from tests.integrations.trainers.soft import collate_fields, parts_of, with_fields
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    EvalPrediction,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from numerate import LOSSES, NumericObjective, NumericVocab
from numerate.integrations.fields import LABEL_FIELDS
from numerate.integrations.lazy_logits import LazyHead
from numerate.integrations.transformers import attach
from numerate.objective import ObjectiveOutput

TEXTS = [*"0123456789", ".", "-", ",", " ", "x"]
VOCAB = NumericVocab.from_texts({text: i for i, text in enumerate(TEXTS)}, vocab_size=len(TEXTS))
VOCAB_SIZE, PAD, IMAGE = 40, 30, 31
EXAMPLES = 8
TOLERANCE = 1e-6
PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single characters, for models of `build`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {text: i for i, text in enumerate(TEXTS)} | {f"<{i}>": i for i in range(len(TEXTS), VOCAB_SIZE)}
    raw = Tokenizer(models.WordLevel(words, unk_token="x"))
    raw.decoder = decoders.Fuse()
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=f"<{PAD}>", eos_token="<32>")


SMALL = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": PAD, "bos_token_id": None, "eos_token_id": None}


BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_position_embeddings": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "forced_eos_token_id": None,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}


def llama(**settings: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SMALL | {"num_hidden_layers": 2} | settings))


def llama_tied() -> nn.Module:
    return llama(tie_word_embeddings=True)


def qwen2_vl() -> nn.Module:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    name = "rope_scaling" if Version(transformers.__version__) < Version("5") else "rope_parameters"
    text = SMALL | {"num_hidden_layers": 2, name: rope}
    del text["pad_token_id"]
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    tokens = {"image_token_id": IMAGE, "vision_start_token_id": IMAGE + 1, "bos_token_id": None, "eos_token_id": None}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
    model = Qwen2VLForConditionalGeneration(config)
    model.accepts_loss_kwargs = False  # as many vision-language models have it
    return model


T5 = {"vocab_size": VOCAB_SIZE, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 2, "dropout_rate": 0.0}
T5 |= {"pad_token_id": PAD, "decoder_start_token_id": PAD}


def t5() -> nn.Module:
    return T5ForConditionalGeneration(T5Config(**T5, num_layers=1))


def mixtral() -> nn.Module:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    model = MixtralForCausalLM(MixtralConfig(**SMALL, **experts))
    model.set_experts_implementation("eager")  # the others do not support float64
    return model


class Switch(SwitchTransformersForConditionalGeneration):
    """Returns its router's losses, which its configuration cannot turn on."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **{"output_router_logits": True, **kwargs})

    forward.__signature__ = inspect.signature(SwitchTransformersForConditionalGeneration.forward)  # type: ignore[attr-defined]


def switch() -> nn.Module:
    layers = {"num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    router = {"router_jitter_noise": 0.0, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}
    model = Switch(SwitchTransformersConfig(**T5, **layers, **router, num_experts=2, expert_capacity=512))
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            module.dtype = torch.float64  # the configuration does not set it
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama,
    "llama_tied": llama_tied,
    "qwen2_vl": qwen2_vl,
    "t5": t5,
    "mixtral": mixtral,
    "switch": switch,
}
if Version(transformers.__version__) < Version("5.22"):
    del MODELS["switch"]  # cannot return its router's losses in 5.17
SEQUENCE_TO_SEQUENCE = ("t5", "switch")
ROUTED = ("mixtral", "switch")


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype).train()


def lora(**settings: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    base = build("llama")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **settings)
    with warnings.catch_warnings():  # before 0.20, PEFT says so of every head, tied or not
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        return peft.get_peft_model(base, config).double().train()


def prompt_tuning() -> nn.Module:
    """Return a model with three virtual tokens, the last of which predicts the first label."""
    peft = pytest.importorskip("peft")
    base = build("llama")
    torch.manual_seed(1)
    return peft.get_peft_model(base, peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")).double().train()


def logged(loss: float) -> Any:
    """Return what the log of a step should hold: transformers 4 rounds it to four digits."""
    return pytest.approx(loss, **({"abs": 5e-5} if Version(transformers.__version__) < Version("5") else {"rel": 1e-5}))


def dataset(model: str, *, padded: bool) -> list[dict[str, Any]]:
    """Return examples with few and with many numbers, so that a mean of means differs.

    All the same for a model with a router: its loss is a mean over micro-batches, and is then that of one batch.
    """
    if model in ROUTED:
        return dataset("llama", padded=padded)[:1] * EXAMPLES
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
    batch |= collate_fields(rows)
    if "pixel_values" in rows[0]:
        batch["mm_token_type_ids"] = pad("mm_token_type_ids", 0)
        batch |= {name: torch.cat([row[name] for row in rows]) for name in ("pixel_values", "image_grid_thw")}
    return batch


class Watched(NumericObjective):
    """Counts the calls with hidden states and a head, and those with logits."""

    fused_calls = 0
    plain_calls = 0

    def fused(self, *args: Any, **kwargs: Any) -> ObjectiveOutput:
        self.fused_calls += 1
        return super().fused(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> ObjectiveOutput:
        self.plain_calls += 1
        return super().forward(*args, **kwargs)


@dataclass(frozen=True)
class Case:
    """The settings of one training step on all examples."""

    model: str = "llama"
    loss: str = "ntil"
    normalize: str = "numeric"
    padded: bool = True
    dtype: str = "float64"  # bfloat16: float32 weights, mixed precision
    units: str = ""  # what FSDP shards together: modules of these classes, "model" for all at once; "" for the default
    fields: str = ""  # of the batches, that belong to labels: see `with_fields`

    @property
    def objective(self) -> Watched:
        if self.loss == "none":
            return Watched(None, weight=0.7, normalize=self.normalize, vocab=VOCAB)
        return Watched(LOSSES[self.loss](VOCAB), weight=0.7, normalize=self.normalize)

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows = with_fields(dataset(self.model, padded=self.padded), self.fields)
        return rows[:1] * EXAMPLES if self.model in ROUTED else rows

    @classmethod
    def parse(cls, text: str) -> Case:
        """Invert ``str``; fields left out at the end have their defaults."""
        model, loss, normalize, padded, *rest = text.split(":")
        return cls(model, loss, normalize, padded == "True", *rest)

    def __str__(self) -> str:
        return ":".join(map(str, astuple(self)))


@dataclass
class Outcome:
    """The results of a step."""

    grads: dict[str, Tensor]
    logs: dict[str, float]
    fused_calls: int  # of the objective
    plain_calls: int
    late_logits: int  # how often deferred logits were computed after all
    sharded: bool  # whether all parameters were sharded
    evaluation: dict[str, float]  # after the step


class Collect(TrainerCallback):
    """Keeps the gradients from just before the optimizer step."""

    def __init__(self) -> None:
        self.grads: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.grads = gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).detach().clone() for name, g in found.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare gradients; those below ``floor`` times the largest are rounding (a key's bias has a zero gradient)."""
    assert found.keys() == expected.keys()
    floor, tolerance = (1e-2, 1e-5) if next(iter(found.values())).dtype == torch.float32 else (1e-6, 1e-6)
    largest = max(grad.norm() for grad in expected.values())
    for name, grad in expected.items():
        error = float((found[name] - grad).norm() / torch.maximum(grad.norm(), floor * largest))
        assert error < tolerance, (name, error)


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest error of a gradient's entry, relative to the largest entry of that gradient."""
    assert found.keys() == expected.keys()
    return float(torch.stack([(found[name] - grad).abs().max() / grad.abs().max() for name, grad in expected.items()]).max())


def arguments(folder: str, accumulation: int = 1, **settings: Any) -> TrainingArguments:
    defaults = {
        "use_cpu": True,
        "max_steps": 1,
        "per_device_train_batch_size": EXAMPLES // accumulation // PROCESSES,
        "per_device_eval_batch_size": EXAMPLES // 2 // PROCESSES,
        "gradient_accumulation_steps": accumulation,
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    return TrainingArguments(output_dir=folder, **(defaults | settings))


def trainer_for(model: nn.Module, rows: list[dict[str, Any]], args: TrainingArguments, **settings: Any) -> Trainer:
    return Trainer(model, args, train_dataset=rows, data_collator=collate, **settings)


def step(case: Case, accumulation: int = 1, model: nn.Module | None = None) -> dict[str, Tensor]:
    """Return the gradients of a Trainer's step."""
    return run(case, accumulation, model, evaluate=False).grads


def run(case: Case, accumulation: int = 1, model: nn.Module | None = None, *, evaluate: bool = True, **settings: Any) -> Outcome:
    """Run a Trainer's step, and an evaluation in two batches, the last of which is not full; ``settings`` of its arguments."""
    units = {"FSDP_TRANSFORMER_CLS_TO_WRAP": case.units} if case.units not in ("", "model") else {}
    mixed = case.dtype == "bfloat16"
    collect, objective = Collect(), case.objective
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, units):
        rows = case.rows
        model = build(case.model, torch.float32 if mixed else getattr(torch, case.dtype)) if model is None else model
        args = arguments(folder, accumulation, bf16=mixed, **settings)
        if case.units == "model" and PROCESSES > 1:
            fully_shard(model, reshard_after_forward=True)
        metrics = None if "parallelism_config" in settings else label_logit  # of whole sequences
        trainer = trainer_for(model, rows, args, callbacks=[collect], eval_dataset=rows[:-1], compute_metrics=metrics)
        attach(trainer, objective)
        with mock.patch.object(LazyHead, "compute", autospec=True, side_effect=LazyHead.compute) as compute:
            trainer.train()
        calls = objective.fused_calls, objective.plain_calls, compute.call_count
        sharded = all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
        if evaluate:
            trainer.evaluate()
    logs = next(logs for logs in trainer.state.log_history if "loss" in logs)
    return Outcome(collect.grads, logs, *calls, sharded, evaluation=trainer.state.log_history[-1])


def label_logit(prediction: EvalPrediction) -> dict[str, float]:
    """Return the mean logit of the labels: a metric that needs logits after the model's forward."""
    outputs = prediction.predictions if isinstance(prediction.predictions, tuple) else (prediction.predictions,)
    logits = torch.as_tensor(next(output for output in outputs if output.ndim == 3))
    labels = torch.as_tensor(prediction.label_ids)
    chosen = logits.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    return {"label_logit": float(chosen[labels != -100].double().mean())}


@functools.cache
def reference(case: Case) -> dict[str, Tensor]:
    """Return the gradients by autograd, in float64, from one batch of all examples."""
    model = build(case.model)
    batch = collate(case.rows)
    fields = {name: batch.pop(name) for name in list(batch) if name in LABEL_FIELDS}
    labels = batch.pop("labels")
    own = model(**batch, labels=labels).loss
    if case.model in SEQUENCE_TO_SEQUENCE:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**batch).logits
    shift = case.model not in SEQUENCE_TO_SEQUENCE
    ce, numeric = parts_of(case.objective, logits, labels, fields, shift=shift)
    plain, _ = parts_of(case.objective, logits, labels, {}, shift=shift)
    value = ce + 0.7 * numeric
    (value + own - plain if case.model in ROUTED else value).backward()
    return gradients(model)


def allow_fsdp_on_cpu() -> None:
    """Make accelerate use FSDP on CPUs, where it silently trains with DDP instead."""
    begin = AcceleratorState.__init__

    def init(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)

    AcceleratorState.__init__ = init


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", type=Case.parse)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    allow_fsdp_on_cpu()
    gc.freeze()  # a training begins with a garbage collection, which takes longer than the training itself
    found = {(str(case), k): run(case, k) for case in options.cases for k in (1, 2)}
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if int(os.environ.get("RANK", 0)) != 0:
        return
    if options.out:
        torch.save({key: vars(outcome) for key, outcome in found.items()}, options.out)
    if options.check:
        errors = [difference(outcome.grads, reference(Case.parse(case))) for (case, _), outcome in found.items()]
        largest = float(torch.tensor(errors).max())
        print(f"largest difference from the gradient of one process: {largest:.1e} (allowed: {TOLERANCE:.0e})")  # noqa: T201
        sys.exit(not largest < TOLERANCE)


if __name__ == "__main__":
    main()
