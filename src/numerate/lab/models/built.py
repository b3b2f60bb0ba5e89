"""Models that are built from a configuration, with random weights, and their tokenizer of one token per character."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from numerate.tokenizers import wrapped

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

IMAGE = "<image>"
"""The token of a picture."""

PICTURE, PATCH = 112, 14
"""Pixels of tiny-vlm's pictures and patches."""

_POSITIONS = 0.5  # range of its position embeddings


def tiny_tokenizer(digits: Literal[1, 3] = 1) -> PreTrainedTokenizerBase:
    """Return a tokenizer with one token per character, and numbers in tokens of one digit, or of one to three from the left."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "<eos>", "<unk>", IMAGE]
    characters = [*"\n", *(c for c in string.printable if c.isprintable())]
    numbers = [f"{k:0{width}d}" for width in range(2, digits + 1) for k in range(10**width)]
    words = {text: i for i, text in enumerate([*special, *characters, *numbers])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{1,3}|\D" if digits == 3 else r"[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    return wrapped(
        raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=[IMAGE],
        clean_up_tokenization_spaces=False,
    )


def _text_config(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 48,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _tiny(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_text_config(tokenizer)))


def _tiny_vlm(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=PICTURE,
        patch_size=PATCH,
        projection_dim=96,
    )
    wider = {"hidden_size": 96, "intermediate_size": 256, "initializer_range": 0.06}
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**_text_config(tokenizer) | wider),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    # CLIP draws positions with a range of 0.02, a fifteenth of what patches have: where something is gets lost, and clocks are
    # not learned in 2,000 steps (research/log.md). With ranges of 0.25 and 1 they are learned late.
    with torch.no_grad():
        tower = model.model.vision_tower
        tower = getattr(tower, "vision_model", tower)  # of transformers 4
        tower.embeddings.position_embedding.weight.mul_(_POSITIONS / vision.initializer_range)
    return model


def _small(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    larger = {"hidden_size": 128, "intermediate_size": 336, "num_hidden_layers": 3, "initializer_range": 0.06}
    return LlamaForCausalLM(LlamaConfig(**_text_config(tokenizer) | larger))


BUILDERS = {"tiny": _tiny, "tiny-3": _tiny, "tiny-vlm": _tiny_vlm, "small": _small}


def scaled(pixels: Tensor) -> Tensor:
    """Return bytes as the ``pixel_values`` of tiny-vlm, between -1 and 1; the same on every device."""
    # A number instead of the tensor would be inverted and multiplied with on a GPU, and round differently.
    return pixels.float() / torch.tensor(127.5, device=pixels.device) - 1
