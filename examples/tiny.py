"""A tiny Llama, its tokenizer and sums to train it on, in place of your model and data. Nothing is downloaded."""

import random
from collections.abc import Mapping

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import DataCollatorForSeq2Seq, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from numerate import NumericObjective


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character."""
    tokens = ["<pad>", "<eos>", *"0123456789+-= "]
    characters = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")


def model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """Return a model with two layers and random weights."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ids))


def example(tokenizer: PreTrainedTokenizerFast, question: str, answer: str) -> dict[str, list[int]]:
    """Return a row as trainers expect it. Only the answer has labels, so only the answer is learned."""
    asked, answered = tokenizer.encode(question), tokenizer.encode(f"{answer}<eos>")
    return {"input_ids": asked + answered, "labels": [-100] * len(asked) + answered}


def examples(tokenizer: PreTrainedTokenizerFast, count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Return sums such as ``12 + 30 = 42``."""
    numbers = random.Random(seed)
    pairs = [(numbers.randrange(100), numbers.randrange(100)) for _ in range(count)]
    return [example(tokenizer, f"{a} + {b} = ", str(a + b)) for a, b in pairs]


@torch.no_grad()
def evaluate(model: torch.nn.Module, objective: NumericObjective, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Return the parts of an objective on 200 other sums, for loops that have no evaluation of their own."""
    batch = DataCollatorForSeq2Seq(tokenizer)(examples(tokenizer, 200, seed=1))
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    out = objective(logits, batch["labels"], shift=True)
    return {"loss/cross_entropy": float(out.cross_entropy), "loss/numeric": float(out.numeric)}


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Print the parts of the loss before and after training."""
    for name in before:
        if name.endswith(("loss/cross_entropy", "loss/numeric")) and before[name]:
            print(f"{name}: {before[name]:.3f} -> {after[name]:.3f}")


if __name__ == "__main__":
    characters = tokenizer()
    for row in examples(characters, 3):
        print(characters.convert_ids_to_tokens(row["input_ids"]))
    print(f"{model(characters).num_parameters():,} parameters")
