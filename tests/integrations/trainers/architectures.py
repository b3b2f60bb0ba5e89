"""Every language model of transformers, built small from its configuration alone, and batches of numbers for it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from numerate import NumericVocab

VOCAB_SIZE = 128
PAD, DIGITS, WORDS, END, SPECIAL = 0, 10, 24, 99, 100  # ids: padding; digits, point and minus; words; end; images and the like
TEXTS = {text: DIGITS + i for i, text in enumerate([*"0123456789", ".", "-", ",", " "])}
VOCAB = NumericVocab.from_texts(TEXTS, vocab_size=VOCAB_SIZE)
ROWS, LENGTHS = 2, (12, 16, 9)
DIM, HEADS, LAYERS, EXPERTS, IMAGE, PATCH = 32, 2, 2, 4, 16, 4


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single characters: those of `TEXTS`, and an arrow or the like for every other id."""
    ids = TEXTS | {chr(0x2190 + i): i for i in range(VOCAB_SIZE) if i not in TEXTS.values()}
    raw = Tokenizer(models.WordLevel(ids, unk_token=chr(0x2190 + PAD)))
    raw.decoder, raw.pre_tokenizer = decoders.Fuse(), pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=chr(0x2190 + PAD), eos_token=chr(0x2190 + END))


KINDS = {
    "causal": "CAUSAL_LM",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "masked": "MASKED_LM",
    "image-text": "IMAGE_TEXT_TO_TEXT",
    "speech": "SPEECH_SEQ_2_SEQ",
    "multimodal": "MULTIMODAL_LM",
}


@dataclass(frozen=True)
class Architecture:
    """A class of models, and the type of configuration that it is built from."""

    kind: str
    model_type: str
    model_class: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.model_type}/{self.model_class}"


def architectures() -> list[Architecture]:
    """Return the models of the automatic classes that predict tokens, each class and configuration once."""
    found: dict[tuple[str, str], Architecture] = {}
    for kind, mapping in KINDS.items():
        for model_type, classes in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES", {}).items():
            for model_class in [classes] if isinstance(classes, str) else classes:
                found.setdefault((model_type, model_class), Architecture(kind, model_type, model_class))
    return list(found.values())


# Small values of settings, by the first pattern that matches the whole name. Only numbers are replaced, and only by less.
SIZES: list[tuple[str, int | float]] = [
    (r"acoustic_tokenizer_chunk_size", 10**9),
    (r"hidden_size_global", DIM),
    (r"(type|task_type)_vocab_size|mel_vocab_size|.*_?(num|n)_langs", 4),
    (r".*vocab_size.*|.*vocab|n_token|num_embeddings|codebook_size|vocab_offset", VOCAB_SIZE),
    (r".*dropout.*|.*layerdrop|.*drop_rate|.*drop_path.*|.*_pdrop|.*jitter.*|.*drop_prob|drop(out)?", 0.0),
    (r"qk_rope_head_dim|qk_nope_head_dim|rotary_dim", DIM // HEADS // 2),
    (r".*lora_rank|.*_rank", 8),
    (r".*mamba_d_state|state_size|ssm_state_size", 8),
    (r"mamba_(num|n)_heads|n_mamba_heads", 2 * HEADS),
    (r".*head_dim|.*dim_head|d_kv|.*attention_head_size|kv_channels|d_head|query_pre_attn_scalar|head_size", DIM // HEADS),
    (r".*(n|num)_(group|groups)|topk_group|o_groups", 1),
    (r".*num_experts_per_tok(en)?|.*moe_?top_?k|moe_k|top_?k_experts|num_selected_experts", 2),
    (r".*shared_experts?(_num)?|moe_num_shared_experts|num_zero_experts|zero_expert_num", 1),
    (r".*experts|moe_num_experts", EXPERTS),
    (r".*heads.*|n_head|num_key_value_groups", HEADS),
    (r".*(dense_replace|dense_layers|mtp.*layers|nextn_predict_layers|layer_start_index)", 1),
    (r".*kv_shared_layers", 0),
    (r".*(sparse_step|layer_interval|no_rope_layer_interval)", 1),
    (r".*_layers|layers|n_layer|.*depth|num_blocks|resampler_depth|num_self_attends_per_block|.*cycles", LAYERS),
    (r"image_size|crop_size|resolution", IMAGE),
    (r"patch_size", PATCH),
    (r".*window.*|local_attention|attention_chunk_size|local_radius", 8),
    (r".*chunk_size|chunk_length|.*block_size|.*chunk_length", 8),
    (r"num_position_embeddings|num_patches|.*num_latents|resampler_n_latents|latent_query_num|num_query_tokens", 16),
    (r".*position.*|n_ctx|max_seq_len|context_length|max_num_patches|seq_len", 256),
    (r"intermediate_size.*|.*ffn_dim|.*intermediate_size|d_ff|dff|dim_ff|.*ffn_hidden_size|d_inner|ffn_size", DIM),
    (r"d_model|n_embd|emb_dim|dim|hidden_dim|.*embed_dim|.*hidden_size|.*_dim|.*embedding_size|.*_size|.*channels?|d_.*", DIM),
]


def small_value(name: str, value: Any) -> Any:
    """Return a small value for a setting."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, int) and re.fullmatch(r"(?!.*(ignore|layer|feature)).*_(id|index|idx)", name):
        return value if value < DIGITS else SPECIAL + sum(map(ord, name)) % (VOCAB_SIZE - SPECIAL)
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return type(value)(min(value, size))
    return value


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_CROSS = {"is_decoder": True, "add_cross_attention": True}
_ROPES = {"full_attention": _ROPE, "sliding_attention": _ROPE}
# What some types of models need besides.
SPECIAL_SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": SPECIAL, "IMGIMGA": SPECIAL + 1}},
    "codegen": {"n_head": 4, "rotary_dim": 4},
    "cohere_compass": {"text_config": {"rope_parameters": _ROPES}},
    "cohere_compass_text": {"rope_parameters": _ROPES},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_v4": {"mlp_layer_types": ["moe", "moe"]},
    "encoder-decoder": {"pad_token_id": PAD, "decoder": _CROSS},
    "vision-encoder-decoder": {"decoder": _CROSS},
    "speech-encoder-decoder": {"decoder": _CROSS},
    "emu3": {"vocabulary_map": {"<image>": SPECIAL, "<|extra_200|>": SPECIAL + 1, "<|visual token 000000|>": SPECIAL + 2}},
    "esm": {"vocab_size": VOCAB_SIZE, "mask_token_id": 3, "pad_token_id": PAD},
    "flint": {"mlp_only_layers": []},
    "florence2": {"vision_config": {"embed_dim": (8, 8, 8, 8), "num_heads": (1, 1, 1, 1), "num_groups": (1, 1, 1, 1)}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4}},
    "nemo_speechlm": {"audio_config": {"chunk_right_context": 2}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 2},
    "xlstm": {"hidden_size": 64, "num_heads": 2, "qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 0},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
}
# Set in every configuration that has them: so large a balance of routers shows in gradients.
ALWAYS = {
    "use_cache": False,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.3,
    "aux_loss_alpha": 0.3,
    "router_z_loss_coef": 0.3,
}


@dataclass(frozen=True)
class Attempt:
    """Extra settings to try, one after the other, until a model can be built and run."""

    fill: bool = False  # fill in what configurations leave open
    sections: tuple[int, ...] = ()  # of rotary embeddings for time, height and width; their sum is half of what is rotated


ATTEMPTS = [Attempt(), Attempt(True), *(Attempt(fill, s) for s in ((2, 3, 3), (2, 1, 1), (1, 1, 0)) for fill in (False, True))]
OPEN = {
    "head_dim": DIM // HEADS,
    "num_key_value_heads": HEADS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "indexer_n_heads": HEADS,
    "indexer_kv_heads": 1,
    "indexer_head_dim": DIM // HEADS,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}


def defaults_of(cls: type[PretrainedConfig]) -> dict[str, Any]:
    """Return the settings of a configuration and their defaults: fields since transformers 5, arguments before."""
    if dataclasses.is_dataclass(cls):
        return {field.name: None if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(cls)}
    arguments = inspect.signature(cls.__init__).parameters.values()
    return {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}


def small_config(cls: type[PretrainedConfig], attempt: Attempt = ATTEMPTS[0], **settings: Any) -> PretrainedConfig:
    """Return a small configuration, with small parts. A dictionary in ``settings`` is for a part."""
    default = cls()
    values: dict[str, Any] = {}
    defaults = defaults_of(cls)
    for name, value in defaults.items():
        part = vars(default).get(name)
        if isinstance(part, PretrainedConfig):
            given = settings.pop(name, {})
            small = small_config(given.pop("config_class", type(part)), attempt, **given)
            values[name] = small if dataclasses.is_dataclass(cls) else small.to_dict()
        elif isinstance(value, (list, tuple)) and "layer" in name:
            values[name] = value[:LAYERS]
        elif value is not None:
            values[name] = small_value(name, value)
        elif attempt.fill and name in OPEN:
            values[name] = OPEN[name]
        elif name == "layer_types" and part and {*part[:LAYERS]} <= {"linear_attention", "conv"}:
            other = next((kind for kind in part if kind not in ("linear_attention", "conv")), "full_attention")
            values[name] = [part[0], other]  # generate needs a layer of attention
    values |= {name: value for name, value in ALWAYS.items() if name in defaults}
    if attempt.sections and {"vocab_size", "rope_parameters"} <= defaults.keys():
        rope = {"rope_type": "default", "rope_theta": 1e4} | (vars(default).get("rope_parameters") or {})
        values["rope_parameters"] = rope | {"mrope_section": list(attempt.sections)}
    return cls(**values | settings)


def build(architecture: Architecture, dtype: torch.dtype = torch.float64, attempt: Attempt = ATTEMPTS[0]) -> nn.Module:
    """Build a small model with random weights, in training mode and without dropout."""
    cls = getattr(transformers, architecture.model_class)
    config_class = getattr(cls, "config_class", None) or CONFIG_MAPPING[architecture.model_type]
    settings = SPECIAL_SETTINGS.get(architecture.model_type, {})
    if architecture.kind == "causal" and "is_decoder" in defaults_of(config_class):
        settings = {"is_decoder": True} | settings
    config = small_config(config_class, attempt, **copy.deepcopy(settings))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    config._experts_implementation = "eager"  # others have no float64
    torch.manual_seed(0)
    model: nn.Module = cls(config)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.to(dtype).train()


def batches(architecture: Architecture, model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, list[dict[str, Tensor]]]]:
    """Yield inputs for the model, the richest first: their kind, and three micro-batches of rows of several lengths."""
    encoder_decoder = getattr(model.config, "is_encoder_decoder", False)
    accepted = inspect.signature(model.forward).parameters
    media = list(_media(model, dtype)) or []
    if not (encoder_decoder and model.main_input_name != "input_ids"):
        media.append(("text", {}, 0))
    for (name, inputs, tokens), with_types in itertools.product(media, (True, False)):
        made = []
        for i, length in enumerate(LENGTHS):
            generator = torch.Generator().manual_seed(i)
            batch = _text(architecture, length, tokens, _image_token(model), generator)
            if encoder_decoder:
                source = _text(architecture, 11, tokens, _image_token(model), generator)
                batch = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"], "labels": batch["labels"]}
                if name != "text" and model.main_input_name != "input_ids":
                    batch = {"labels": batch["labels"]}
            if with_types:
                types = (batch["input_ids"] == _image_token(model)).long() if "input_ids" in batch else None
                batch |= {n: types for n in ("token_type_ids", "mm_token_type_ids") if n in accepted and types is not None}
            batch |= {n: value + 0 if value.is_floating_point() else value for n, value in inputs.items()}
            made.append({n: value for n, value in batch.items() if n in accepted})
        yield name, made


def _text(
    architecture: Architecture, length: int, images: int, image_token: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return rows of words and numbers, some of their labels ignored; the first tokens are the image's."""
    shape = (ROWS, length)
    words = torch.randint(WORDS, SPECIAL, shape, generator=generator)
    digits = torch.randint(DIGITS, DIGITS + 10, shape, generator=generator)
    ids = torch.where(torch.rand(shape, generator=generator) < 0.5, digits, words)
    labels = ids.clone()
    labels[torch.rand(shape, generator=generator) < (0.6 if architecture.kind == "masked" else 0.2)] = -100
    mask = torch.ones(shape, dtype=torch.long)
    for row in range(1, ROWS):
        mask[row, length - 2 - row :] = 0
    ids, labels = ids.masked_fill(mask == 0, PAD), labels.masked_fill(mask == 0, -100)
    if images:
        ids = torch.cat([torch.full((ROWS, images), image_token), ids], 1)
        labels = torch.cat([torch.full((ROWS, images), -100), labels], 1)
        mask = torch.cat([torch.ones(ROWS, images, dtype=torch.long), mask], 1)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _image_token(model: nn.Module) -> int:
    for name in ("image_token_id", "image_token_index", "image_patch_id"):
        if isinstance(getattr(model.config, name, None), int):
            return int(getattr(model.config, name))
    return -1


def _media(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, dict[str, Tensor], int]]:
    """Return images or sound for the model, one per row, and the number of text tokens that stand for one."""
    config = model.config
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    size = getattr(vision, "image_size", IMAGE)
    height, width = (size, size) if isinstance(size, int) else size
    patch = getattr(vision, "patch_size", PATCH)
    patch = patch if isinstance(patch, int) else patch[0]
    frames = getattr(vision, "temporal_patch_size", 1)
    channels = getattr(vision, "in_channels", getattr(vision, "num_channels", 3))
    plain = {"pixel_values": noise(ROWS, channels, height, width)}
    sizes = {"image_sizes": torch.tensor([[height, width]] * ROWS)}
    grid = torch.tensor([[1, 4, 4]] * ROWS)
    flat = {"pixel_values": noise(16 * ROWS, channels * frames * patch * patch), "image_grid_thw": grid}
    several = {"pixel_values": plain["pixel_values"][:, None]}
    forms = [flat, plain | sizes, plain, several | sizes, several]
    features = getattr(model, "get_image_features", None) or getattr(getattr(model, "model", None), "get_image_features", None)
    if features is not None and _image_token(model) >= 0:
        for form in forms:
            try:
                with torch.no_grad():
                    found = sum(_rows(features(**form)))
            except Exception:
                continue
            if found % ROWS == 0:
                yield "image", form, found // ROWS
    elif model.main_input_name == "pixel_values" or "pixel_values" in inspect.signature(model.forward).parameters:
        yield "image", plain, 0
    mel = getattr(config, "num_mel_bins", getattr(config, "input_feat_per_channel", 80))
    if model.main_input_name == "input_features":
        yield "sound", {"input_features": noise(ROWS, mel, 2 * getattr(config, "max_source_positions", 20))}, 0
        yield "sound", {"input_features": noise(ROWS, 40, mel)}, 0
    if model.main_input_name == "input_values":
        yield "sound", {"input_values": noise(ROWS, 4000)}, 0


def _rows(features: Any) -> list[int]:
    """Return the number of vectors per image."""
    if getattr(features, "pooler_output", None) is not None:
        features = features.pooler_output
    if isinstance(features, (list, tuple)):
        return [count for part in features for count in _rows(part)]
    return [features.numel() // features.shape[-1]]


def where(error: Exception) -> str:
    """Return the error and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]} ({Path(frame.filename).name}: {frame.line})"
