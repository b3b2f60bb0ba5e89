"""A model small enough to be searched by brute force."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def small_llama(
    vocab_size: int, end: int, *, width: int = 16, layers: int = 1, key_heads: int = 2, spread: float = 1.0, seed: int = 0
) -> LlamaForCausalLM:
    """Return a Llama with random weights of this ``spread``; token 0 is padding."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=key_heads,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=end,
        initializer_range=spread,
    )
    return LlamaForCausalLM(config).eval()
