"""A GRPOTrainer of a tiny model that writes digits and signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch


def grpo_trainer(functions: Sequence[Callable[..., Any]], columns: Mapping[str, Any], folder: Path, **settings: Any) -> Any:
    """Return the trainer; it samples four completions of each prompt, for two prompts a step."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pieces = ["<pad>", "<eos>", *"0123456789+=-"]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<eos>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(pieces), pad_token_id=0, bos_token_id=None, eos_token_id=1, **sizes))
    given = {
        "output_dir": str(folder),
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 4,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    }
    return trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[*functions],
        train_dataset=datasets.Dataset.from_dict({**columns}),
        args=trl.GRPOConfig(**given, **settings),
    )
