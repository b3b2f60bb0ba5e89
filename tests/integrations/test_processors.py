"""attach with real processors: a batch with drawn numbers is the batch that the processor makes of texts with these numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from packaging.version import Version
from PIL import Image
from tests.integrations.trainers.cases import SMALL, Collect, arguments, assert_same, build, gradients
from tests.integrations.trainers.processors import FAMILIES, QUESTION, Collator, rows
from tests.integrations.trainers.soft import parts_of
from tests.samples import every_pair
from torch import Tensor
from transformers import Trainer

import numerate as nm
from numerate.formats.patterns import NUMBER, find_spans
from numerate.targets.soft_targets import SOFT_FIELDS

pytestmark = [
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("UserWarning", "DeprecationWarning", "FutureWarning")),
    pytest.mark.skipif(Version(transformers.__version__) < Version("5"), reason="needs processors without torchvision"),
]
Batch = dict[str, Tensor]
TARGET = nm.Bell(relative=0.3)


def collator_of(name: str, **settings: Any) -> Collator:
    try:
        return Collator(name, **settings)
    except ImportError as error:
        pytest.skip(f"{name} needs a package that is not installed: {str(error).split()[:8]}")


def drawn_batches(collator: Collator, folder: Any, **asked: Any) -> list[Batch]:
    """Return the batch of all rows in several epochs."""
    trainer = Trainer(
        build("llama"), arguments(str(folder)), collator, rows(), processing_class=collator.processor if collator.whole else None
    )
    nm.attach(trainer, **asked, seed=3)
    found = []
    for epoch in range(4):
        trainer.train_dataset.set_epoch(epoch)
        found.append(trainer.data_collator([*map(trainer.train_dataset.__getitem__, range(len(trainer.train_dataset)))]))
    return found


def answers_of(collator: Collator, batch: Batch) -> list[str]:
    """Return the answers that a batch trains."""
    decode = collator.processor.tokenizer.decode
    return [decode(line[line != -100], skip_special_tokens=True).split(QUESTION)[-1].strip() for line in batch["labels"]]


def probability(batch: Batch, line: int) -> float:
    """Return how likely the labels of a line are by its soft targets."""
    places, total = batch["soft_positions"][line], 1.0
    for place in places[places >= 0].unique().tolist():
        own = (places == place) & (batch["soft_token_ids"][line] == batch["labels"][line, place])
        total *= float(batch["soft_probabilities"][line][own].sum())
    return total


def last_number(text: str) -> str:
    start, end = find_spans(text, NUMBER)[-1]
    return text[start:end]


ASKED = [{"soft": TARGET}, {"soft": TARGET, "numbers": "all"}, {"loss": "smmd", "numbers": "all"}]


@every_pair("asked, name, place", ASKED, FAMILIES, [("right", False), ("left", False), ("right", True)])
def test_a_batch_is_that_of_the_drawn_texts(asked, name, place, tmp_path):
    side, whole = place
    collator, texts = collator_of(name, side=side, whole=whole), set()
    for batch in drawn_batches(collator, tmp_path, **asked):
        answers = answers_of(collator, batch)
        expected = collator(rows(answers))
        assert batch.keys() - expected.keys() == {*SOFT_FIELDS, *(["position_weights"] if "loss" in asked else [])}
        for field, value in expected.items():
            torch.testing.assert_close(batch[field], value, rtol=0, atol=0, msg=f"{field} of {answers}")
        texts |= {*answers}
        for line, (row, answer) in enumerate(zip(rows(), answers, strict=True) if "numbers" not in asked else ()):
            target = TARGET(last_number(row["answer"]))
            chance = target.probabilities[target.texts.index(last_number(answer))]
            assert probability(batch, line) == pytest.approx(chance, rel=1e-5)
    assert len(texts) > len(rows()) or "loss" in asked


def test_a_length_that_was_given_stays(tmp_path):
    """Lines that are all padded have a length of the collator's own choice."""
    plain = collator_of("idefics3")
    length = plain(rows())["input_ids"].shape[1] + 9
    for batch in drawn_batches(collator_of("idefics3", padding="max_length", max_length=length), tmp_path, soft=TARGET):
        assert batch["input_ids"].shape[1] == batch["labels"].shape[1] == length


def qwen2_vl(collator: Collator) -> torch.nn.Module:
    """Return a model that sees the pictures of the processor, in float64."""
    tokens, patches = collator.processor.tokenizer, collator.processor.image_processor
    text = {**SMALL, "vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    sizes = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": patches.patch_size}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>"}
    ids = {name: tokens.convert_tokens_to_ids(token) for name, token in names.items()}
    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=sizes, **ids)
    return transformers.Qwen2VLForConditionalGeneration(config).double().train()


def expected_gradients(collator: Collator, batch: Batch) -> dict[str, Tensor]:
    """Return the gradient of the cross-entropy against dense targets."""
    model = qwen2_vl(collator)
    fields = {name: batch.pop(name) for name in SOFT_FIELDS}
    labels = batch.pop("labels")
    cross_entropy, _ = parts_of(nm.NumericObjective(None), model(**batch).logits, labels, fields, shift=True)
    cross_entropy.backward()
    return gradients(model)


def test_a_step_with_pictures(tmp_path):
    collator, collect, seen = collator_of("qwen2_vl"), Collect(), []
    settings = {"per_device_train_batch_size": len(rows()), "gradient_accumulation_steps": 1}
    args = arguments(str(tmp_path), **settings)
    trainer = Trainer(qwen2_vl(collator), args, collator, rows(), processing_class=collator.processor, callbacks=[collect])
    nm.attach(trainer, soft=TARGET)
    plain = trainer.data_collator
    trainer.data_collator = lambda chosen: seen.append(plain(chosen)) or dict(seen[-1])
    trainer.train()
    assert_same(collect.grads, expected_gradients(collator, seen[-1]))


@pytest.mark.parametrize("form", ["text", "prompt"])
def test_trls_collator_of_pictures(form, tmp_path):
    """TRL tokenises texts with pictures in its collator, which changes its rows."""
    trl = pytest.importorskip("trl", minversion="1.15")
    collator, collect, seen = collator_of("qwen2_vl"), Collect(), []
    end, picture = collator.processor.tokenizer.eos_token, collator.family.picture

    def texts(chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pairs = [(picture + row["question"], row["answer"] + end) for row in chosen]
        if form == "text":
            named = [{"text": question + answer} for question, answer in pairs]
        else:
            named = [{"prompt": question, "completion": answer} for question, answer in pairs]
        return [{"images": [Image.fromarray(row["picture"])], **text} for row, text in zip(chosen, named, strict=True)]

    settings = {"per_device_train_batch_size": len(rows()), "max_steps": 1, "use_cpu": True, "optim": "sgd", "report_to": "none"}
    off = {"bf16": False, "max_length": None, "max_grad_norm": 0.0, "gradient_checkpointing": False, "save_strategy": "no"}
    args = trl.SFTConfig(str(tmp_path), **settings, **off)
    given = {"train_dataset": Dataset.from_list(texts(rows())), "processing_class": collator.processor, "callbacks": [collect]}
    trainer = trl.SFTTrainer(qwen2_vl(collator), args, **given)
    plain = trainer.data_collator
    nm.attach(trainer, soft=TARGET)
    drawing = trainer.data_collator
    batch = drawing([*map(trainer.train_dataset.__getitem__, range(len(rows())))])
    answers = answers_of(collator, batch)
    assert answers != [row["answer"] for row in rows()]
    for field, value in plain(texts(rows(answers))).items():
        torch.testing.assert_close(batch[field], value, rtol=0, atol=0, msg=field)
    trainer.data_collator = lambda chosen: seen.append(drawing(chosen)) or dict(seen[-1])
    trainer.train()
    assert_same(collect.grads, expected_gradients(collator, dict(seen[-1])))
