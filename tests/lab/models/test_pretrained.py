"""GGUF files, which are dequantised once, and memory that does not suffice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from numerate.lab.models import memory, pretrained
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.models.memory import check_memory
from numerate.lab.models.pretrained import count_parameters, unpacked
from numerate.lab.models.settings import ModelSettings
from numerate.tokenizers import packaged_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file outside of its package, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.symlink_to(packaged_file("smollm2"))
    return file


def cached(file: Path) -> list[Path]:
    return [*(file.parent / "cache" / "numerate" / "gguf").iterdir()]


def test_a_gguf_file_is_dequantised_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, dequantised = list[PreTrainedModel](), pretrained._dequantised
    monkeypatch.setattr(pretrained, "_dequantised", lambda file: made.append(dequantised(file)) or made[-1])
    encoder = load_encoder(str(file))
    loaded, packaged = load_model(file, encoder=encoder), load_encoder("smollm2")
    assert encoder.chat
    assert encoder.tokens(["4.5 of 12"]) == packaged.tokens(["4.5 of 12"])
    assert count_parameters(str(file)) == count_parameters("smollm2") == loaded.model.num_parameters()
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    assert all(weight.requires_grad for weight in loaded.model.parameters())
    (theirs,) = (model.state_dict() for model in made)
    assert loaded.model.state_dict().keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in loaded.model.state_dict().items())
    assert len(cached(file)) == 1


def test_a_conversion_that_fails_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: PreTrainedModel, folder: Path, **_: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("No space left on device")

    class Half:
        save_pretrained = full

    monkeypatch.setattr(pretrained, "_dequantised", lambda file: Half())
    with pytest.raises(ValueError, match=r"model.gguf' cannot be loaded \(No space left on device\)"):
        unpacked(str(file))
    assert cached(file) == []


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>"])
def test_a_file_that_is_no_gguf_is_named(content: bytes, file: Path) -> None:
    broken = file.with_name("broken.gguf")
    broken.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.gguf' cannot be"):
        load_encoder(str(broken))


@pytest.mark.parametrize(
    ("settings", "bytes_each"),
    [
        ({}, 16),  # weights, gradients, and two moments, in float32
        ({"bf16": True}, 16),
        ({"adapter": "lora"}, 4),
        ({"adapter": "lora", "bf16": True}, 2),
        ({"adapter": "qlora"}, 0.5),
    ],
)
def test_memory_that_does_not_suffice_is_an_error_before_anything_is_loaded(
    settings: dict[str, Any], bytes_each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, parameters = ModelSettings(model="smollm2", **settings), count_parameters("smollm2") or 0
    need = int(bytes_each * parameters)
    monkeypatch.setattr(memory, "_memory", lambda: ("this machine", need))
    check_memory(config)
    monkeypatch.setattr(memory, "_memory", lambda: ("this machine", None))  # not known
    check_memory(config)
    monkeypatch.setattr(memory, "_memory", lambda: ("this machine", need - 1))
    with pytest.raises(ValueError, match=r"has 135 M parameters, which take at least .* GiB .* a smaller model\.") as error:
        check_memory(config)
    assert ("adapter='lora', which takes" in str(error.value)) == ("adapter" not in settings)
    assert ("bf16=true" in str(error.value)) == (settings == {"adapter": "lora"})


def test_whole_models_of_all_members_have_to_fit_and_adapters_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_memory", lambda: ("this machine", 4 * 6 * (count_parameters("smollm2") or 0)))
    check_memory(ModelSettings(model="smollm2"), 6)
    with pytest.raises(ValueError, match=r"adapter='none', members=7\), and this machine has .* expected adapter='lora'"):
        check_memory(ModelSettings(model="smollm2"), 7)
    check_memory(ModelSettings(model="smollm2", adapter="lora"), 100)


def test_a_small_model_that_is_built_needs_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_memory", lambda: ("this machine", 1))
    check_memory(ModelSettings(model="tiny"))
