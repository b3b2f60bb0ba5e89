"""attach on models of every kind, built from their configurations: the gradient equals the one computed by hand."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.integrations.trainers.architectures import DIGITS, IMAGE, PAD, VOCAB_SIZE, Architecture, architectures, small_config
from tests.integrations.trainers.sweep import WEIGHTS, Alignment, check, difference
from transformers import LlavaConfig, MixtralConfig

ROOT = Path(__file__).parents[2]
REPRESENTATIVE = {
    "LlamaForCausalLM": ("text", "shifted", "fused", False),
    "MixtralForCausalLM": ("text", "shifted", "fused", True),
    "BartForCausalLM": ("text", "aligned", "fused", False),
    "BertForMaskedLM": ("text", "aligned", "fused", False),
    "T5ForConditionalGeneration": ("text", "aligned", "fused", False),
    "Qwen2VLForConditionalGeneration": ("image", "shifted", "fused", False),
}


def by_class(name: str) -> Architecture:
    return next(architecture for architecture in architectures() if architecture.model_class == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_representative_models(name):
    verdict = check(by_class(name))
    assert verdict.status == "exact", verdict.detail
    assert len(verdict.errors) == len(WEIGHTS)
    assert (verdict.inputs, verdict.labels, verdict.path, verdict.extra) == REPRESENTATIVE[name]


def test_configurations_are_small_and_keep_their_parts():
    config = small_config(LlavaConfig)
    assert config.text_config.vocab_size == VOCAB_SIZE
    assert config.vision_config.image_size == IMAGE
    assert DIGITS <= config.image_token_id < VOCAB_SIZE
    assert small_config(MixtralConfig, pad_token_id=PAD).output_router_logits


def test_difference_names_the_worst_parameter():
    expected = {"a": torch.ones(2), "b": torch.full((2,), 1e-5)}
    assert difference(expected, expected)[0] == 0
    error, name = difference({"a": torch.ones(2)}, expected)
    assert (name, round(error, 5)) == ("b", 0.01)
    error, name = difference(expected | {"c": torch.ones(2)}, expected)
    assert (name, round(error, 5)) == ("c", 1.0)
    assert difference({"a": torch.full((2,), float("nan"))}, {"a": torch.ones(2)})[0] == float("inf")


@pytest.mark.parametrize(("shift", "expected"), [(True, [[2, 3]]), (False, [[1, 2, 3]])])
def test_alignment(shift, expected):
    logits, labels = Alignment(shift, last=True)(torch.arange(5.0)[None, :, None], torch.tensor([[1, 2, 3]]))
    assert labels.tolist() == expected
    assert logits[0, :, 0].tolist() == ([2, 3] if shift else [2, 3, 4])


@pytest.mark.slow
@pytest.mark.launch
def test_no_architecture_is_trained_wrongly(tmp_path):
    file = tmp_path / "architectures.csv"
    subprocess.run([sys.executable, ROOT / "scripts/sweep_architectures.py", "--csv", file], check=True, cwd=ROOT)
    counts = Counter(row["status"] for row in csv.DictReader(file.open(encoding="utf-8", newline="")))
    assert counts["differs"] == counts["fails"] == 0, counts
    assert counts["exact"] >= 250, counts
