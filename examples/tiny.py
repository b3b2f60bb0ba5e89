"""A tiny Llama, its tokenizer and sums to train it on, in place of your model and data. Nothing is downloaded."""

import random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character."""
    tokens = ["<pad>", "<eos>", *"0123456789+-= "]
    characters = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")


def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a model with two layers and random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ids))


def examples(tokenizer: PreTrainedTokenizerFast, count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Return sums such as ``12 + 30 = 42``. Only the answer has labels, so only the answer is learned."""
    numbers = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b = numbers.randrange(100), numbers.randrange(100)
        question, answer = tokenizer.encode(f"{a} + {b} = "), tokenizer.encode(f"{a + b}<eos>")
        rows.append({"input_ids": question + answer, "labels": [-100] * len(question) + answer})
    return rows


if __name__ == "__main__":
    characters = tokenizer()
    for row in examples(characters, 3):
        print(characters.convert_ids_to_tokens(row["input_ids"]))
    print(f"{model(characters).num_parameters():,} parameters")
