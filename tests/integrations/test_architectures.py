"""attach on models of every kind, built from their configurations: the gradient equals the one computed by hand."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version
from tests.integrations.trainers.architectures import END, TEXTS, VOCAB, VOCAB_SIZE, Architecture, architectures, tokenizer
from tests.integrations.trainers.cases import Collect, arguments, assert_same, gradients
from tests.integrations.trainers.soft import collate_fields, parts_of, with_fields
from tests.integrations.trainers.sweep import WEIGHTS, Verdict, check, compare, difference, find_alignment, in_float64, ways
from transformers import DataCollatorForSeq2Seq, Trainer

from numerate import LOSSES, NumericObjective
from numerate.integrations.transformers import attach
from numerate.targets import Bell, DrawnDataset, SoftCollator, SoftNumbers

ROOT = Path(__file__).parents[2]
# Inputs, labels, whether the head is fused, and whether the model adds a loss of its own, such as a router's.
REPRESENTATIVE = {
    "LlamaForCausalLM": ("text", "shifted", "fused", False),
    "GPT2LMHeadModel": ("text", "shifted", "fused", False),
    "CTRLLMHeadModel": ("text", "shifted", "fused", False),
    "BertLMHeadModel": ("text", "shifted", "fused", False),
    "MixtralForCausalLM": ("text", "shifted", "fused", True),
    "Qwen2MoeForCausalLM": ("text", "shifted", "fused", True),
    "DbrxForCausalLM": ("text", "shifted", "fused", True),
    "JambaForCausalLM": ("text", "shifted", "fused", True),
    "JetMoeForCausalLM": ("text", "shifted", "fused", True),
    "NllbMoeForConditionalGeneration": ("text", "aligned", "fused", True),
    "XLNetLMHeadModel": ("text", "aligned", "fused", False),
    "XLMWithLMHeadModel": ("text", "aligned", "fused", False),
    "CpmAntForCausalLM": ("text", "aligned", "fused", False),
    "BartForCausalLM": ("text", "aligned", "fused", False),
    "WhisperForCausalLM": ("text", "aligned", "fused", False),
    "BertForMaskedLM": ("text", "aligned", "fused", False),
    "ModernBertForMaskedLM": ("text", "aligned", "fused", False),
    "T5ForConditionalGeneration": ("text", "aligned", "fused", False),
    "T5GemmaForConditionalGeneration": ("text", "aligned", "fused", False),  # names the loss of masked models
    "EncoderDecoderModel": ("text", "aligned", "fused", False),  # ignored labels are padding for its decoder
    "Qwen2VLForConditionalGeneration": ("image", "shifted", "fused", False),
    "GitForCausalLM": ("image", "shifted", "fused", False),  # passes shift_labels to its loss, as does the next
    "Florence2ForConditionalGeneration": ("image", "aligned", "fused", False),
}
BROKEN = ("DbrxForCausalLM", "JetMoeForCausalLM")  # their router's loss, without attach, in transformers 5.17


def by_class(name: str) -> Architecture:
    return next(architecture for architecture in architectures() if architecture.model_class == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_representative_models(name):
    if name in BROKEN and Version(transformers.__version__) < Version("5.22"):
        pytest.skip(f"the model's own router loss fails, or is left out, in transformers {transformers.__version__}")
    verdict = check(by_class(name))
    assert verdict.status == "exact", verdict.detail
    assert len(verdict.errors) == len(WEIGHTS) + (verdict.soft == "yes")
    assert bool(verdict.soft) != name.endswith("MaskedLM")
    assert (verdict.inputs, verdict.labels, verdict.path, verdict.extra) == REPRESENTATIVE[name]


@pytest.mark.filterwarnings("ignore")
def test_a_routers_loss_beside_a_head_that_is_not_fused():
    """For a model that computes the cross-entropy of real logits itself and adds the router's loss."""
    way, verdict = next(ways(by_class("NllbMoeForConditionalGeneration"), {})), Verdict("nllb_moe", "")

    def make():
        model = way.make()
        model.lm_head.register_forward_hook(lambda *_: None)
        return model

    with in_float64():
        compare(verdict, make, way.data, 1e-6)
    assert (verdict.status, verdict.path, verdict.extra) == ("exact", "logits", True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, (*_, extra) in REPRESENTATIVE.items() if not extra])
def test_fields_stand_where_the_model_predicts_their_labels(name, tmp_path):
    """Soft targets and weights: also of models that do not shift, and that add positions before the text."""
    way = next(ways(by_class(name), {}))
    plain, collect = way.data[0], Collect()
    fields = collate_fields(with_fields([{"labels": labels} for labels in plain["labels"]], "both", VOCAB_SIZE))
    objective = NumericObjective(LOSSES["ntil"](VOCAB), weight=0.7)
    args = arguments(str(tmp_path), per_device_train_batch_size=1)
    with in_float64():
        trainer = Trainer(
            way.make(), args, train_dataset=[plain | fields], data_collator=lambda rows: rows[0], callbacks=[collect]
        )
        attach(trainer, objective)
        trainer.train()
        model, labels = way.make(), plain["labels"]
        alignment, _ = find_alignment(model, plain)
        logits = model(**plain).logits
        logits = logits[:, -labels.shape[1] :] if alignment.last else logits[:, : labels.shape[1]]
        ce, numeric = parts_of(objective, logits, labels, fields, shift=alignment.shift)
        (ce + 0.7 * numeric).backward()
    assert_same(collect.grads, gradients(model))


def answers(own_labels: bool) -> list[dict[str, list[int]]]:
    rows = []
    for i in range(4):
        question, answer = ([*(TEXTS[c] for c in text)] for text in (f"{i} ", f" {7 * i + 40}"))
        labels = [*answer, END]
        rows.append(
            {"input_ids": question + labels, "labels": [-100] * len(question) + labels}
            if not own_labels
            else {"input_ids": question * 4, "labels": labels}
        )
    return rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name, (inputs, *_) in REPRESENTATIVE.items() if inputs == "text" and name not in BROKEN]
)
def test_soft_labels_in_one_line_are_those_of_the_long_form(name, tmp_path):
    make = next(ways(by_class(name), {})).make
    kept = []
    for short in (True, False):
        model = make().float()
        own = bool(model.config.is_encoder_decoder)
        sequence = "labels" if own else "input_ids"
        collator, collect = DataCollatorForSeq2Seq(tokenizer()), Collect()
        args = arguments(str(tmp_path), per_device_train_batch_size=4)
        trainer = Trainer(model, args, train_dataset=answers(own), data_collator=collator, callbacks=[collect])
        if name.endswith("MaskedLM"):
            with pytest.raises(TypeError, match="sees the tokens after its labels"):
                attach(trainer, soft=0.1)
            return
        if short:
            attach(trainer, soft=0.1, seed=1)
        else:
            trainer.train_dataset = DrawnDataset(
                answers(own), SoftNumbers(tokenizer(), Bell(relative=0.1), sequence=sequence), seed=1
            )
            trainer.data_collator = SoftCollator(collator, sequence=sequence)
            attach(trainer, NumericObjective(None, vocab=VOCAB), check=False)
        trainer.train()
        kept.append(collect.grads)
    assert kept[0].keys() == kept[1].keys()
    assert all(torch.equal(kept[0][key], grad) for key, grad in kept[1].items())


def test_difference_names_the_worst_parameter():
    expected = {"a": torch.ones(2), "b": torch.full((2,), 1e-5)}
    assert difference(expected, expected)[0] == 0
    error, name = difference({"a": torch.ones(2)}, expected)
    assert (name, round(error, 5)) == ("b", 0.01)
    error, name = difference(expected | {"c": torch.ones(2)}, expected)
    assert (name, round(error, 5)) == ("c", 1.0)
    assert difference({"a": torch.full((2,), float("nan"))}, {"a": torch.ones(2)})[0] == float("inf")


@pytest.mark.slow
@pytest.mark.launch
def test_no_architecture_is_trained_wrongly(tmp_path):
    file = tmp_path / "architectures.csv"
    subprocess.run([sys.executable, ROOT / "scripts/sweep_architectures.py", "--csv", file], check=True, cwd=ROOT)
    counts = Counter(row["status"] for row in csv.DictReader(file.open(encoding="utf-8", newline="")))
    assert counts["differs"] == counts["fails"] == 0, counts
    assert counts["exact"] >= 250, counts
