"""The recipes: they import where their package is installed, and their own code works without it.

Stand-in modules have the names that a recipe imports and no behaviour; the trainers here are real.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

from transformers import DataCollatorForSeq2Seq, Trainer, TrainerCallback, TrainingArguments

import numerate as nm

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "axolotl_plugin": "axolotl",
    "llamafactory_run": "llamafactory",
    "ms_swift_plugin": "swift",
    "unsloth_train": "unsloth",
}
every_recipe = pytest.mark.parametrize("recipe", PACKAGES)


def test_every_recipe_is_known():
    assert {path.stem for path in (ROOT / "recipes").glob("*.py")} == set(PACKAGES)


@every_recipe
def test_it_says_what_it_was_written_against(recipe: str):
    path = ROOT / "recipes" / f"{recipe}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compile(tree, path, "exec")
    words = ast.get_docstring(tree).split()
    assert " ".join(words[words.index("Written") :]).startswith("Written against ")
    assert "Not run:" in " ".join(words)


@pytest.mark.launch
@every_recipe
def test_it_imports_with_its_package(recipe: str):
    if find_spec(PACKAGES[recipe]) is None:
        pytest.skip(f"needs {PACKAGES[recipe]}")
    path = os.pathsep.join(str(ROOT / folder) for folder in ("src", "recipes"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", f"import {recipe}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The code of the recipes


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> ModuleType:
    """Add a module with these contents for the duration of the test."""
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules or not isinstance(sys.modules[parent], ModuleType):
            stand_in(monkeypatch, parent)
        monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
    return module


def load(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def recipe_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(name, ROOT / "recipes" / f"{name}.py", monkeypatch)


@pytest.fixture
def tiny(monkeypatch) -> ModuleType:
    return load("tiny", ROOT / "examples" / "tiny.py", monkeypatch)


class Collect(TrainerCallback):
    """Keeps the gradients from just before the optimizer step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.grads = {name: p.grad.clone() for name, p in model.named_parameters()}


def settings(folder: Path, accumulation: int = 1) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        use_cpu=True,
        max_steps=1,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def trainer_for(tiny: ModuleType, folder: Path, accumulation: int = 1, cls: type = Trainer) -> Trainer:
    tokenizer = tiny.tokenizer()
    return cls(
        model=tiny.model(tokenizer).double(),
        args=settings(folder, accumulation),
        train_dataset=tiny.examples(tokenizer, 8),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
        callbacks=[Collect()],
    )


def grads_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    (collect,) = (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Collect))
    return collect.grads


def whole(tiny: ModuleType, loss: nm.losses.NumericLoss, weight: float, normalize: str) -> dict[str, torch.Tensor]:
    """Return the gradients of all examples in one batch, by the plain formula."""
    tokenizer = tiny.tokenizer()
    model = tiny.model(tokenizer).double()
    batch = DataCollatorForSeq2Seq(tokenizer)(tiny.examples(tokenizer, 8))
    labels = batch.pop("labels")[:, 1:]
    logits = model(**batch).logits[:, :-1]
    count = loss.count(labels) if normalize == "numeric" else (labels != -100).sum()
    ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    (ce + weight * loss(logits, labels, reduction="sum") / count).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> None:
    largest = max(grad.abs().max() for grad in truth.values())
    for name, grad in truth.items():
        assert (found[name] - grad).abs().max() <= 1e-6 * largest, name


@pytest.fixture
def axolotl(monkeypatch) -> ModuleType:
    pytest.importorskip("pydantic")
    stand_in(monkeypatch, "axolotl.integrations.base", BasePlugin=object)
    return recipe_of("axolotl_plugin", monkeypatch)


def test_axolotl_attaches_what_the_yaml_says(axolotl, tiny, tmp_path):
    plugin = axolotl.NumeratePlugin()
    assert plugin.get_input_args() == "axolotl_plugin.NumerateArgs"
    given = {"loss": "ntil", "weight": 0.5, "settings": {"alpha": 0.7}}
    cfg = axolotl.NumerateArgs(numerate=given).model_dump(exclude_none=True)
    trainer = trainer_for(tiny, tmp_path, accumulation=4)
    plugin.post_trainer_create(cfg | {"context_parallel_size": 1}, trainer)
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.5, "numeric"))
    assert "loss/numeric" in trainer.state.log_history[0]


def test_axolotl_has_defaults(axolotl, tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path)
    axolotl.NumeratePlugin().post_trainer_create(axolotl.NumerateArgs().model_dump(exclude_none=True), trainer)
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.SMMDLoss(vocab), 0.3, "numeric"))


def test_axolotl_refuses_what_it_cannot_do(axolotl, tiny, tmp_path):
    from pydantic import ValidationError

    plugin, cfg = axolotl.NumeratePlugin(), axolotl.NumerateArgs().model_dump(exclude_none=True)
    with pytest.raises(ValidationError, match="wieght"):
        axolotl.NumerateArgs(numerate={"wieght": 1})
    for name in axolotl.REFUSED:
        with pytest.raises(ValueError, match=name):
            plugin.post_trainer_create(cfg | {name: True}, None)
    with pytest.raises(NotImplementedError, match="context_parallel_size=2"):
        plugin.post_trainer_create(cfg | {"context_parallel_size": 2}, None)


@pytest.fixture
def swift(monkeypatch) -> ModuleType:
    class BaseLoss:
        def __init__(self, args, trainer):
            self.args, self.trainer, self.is_megatron = args, trainer, False

    stand_in(monkeypatch, "swift.loss", BaseLoss=BaseLoss, loss_map={})
    return recipe_of("ms_swift_plugin", monkeypatch)


class Mean:
    """A metric that is a mean, as in ms-swift."""

    def __init__(self):
        self.values: list[torch.Tensor] = []

    def update(self, value: torch.Tensor) -> None:
        self.values.append(value)


def with_swift(swift: ModuleType, trainer: Trainer, **template: Any) -> Trainer:
    """Make a trainer like ms-swift's: it calls a loss function with logits and the step's tokens, and logs custom metrics."""
    trainer.template = SimpleNamespace(tokenizer=trainer.processing_class, **({"sequence_parallel_size": 1} | template))
    trainer.custom_metrics = {"train": defaultdict(Mean), "eval": defaultdict(Mean)}
    trainer.compute_loss_func = sys.modules["swift.loss"].loss_map["numeric"](trainer.args, trainer)
    return trainer


# Every two settings meet.
@pytest.mark.parametrize(
    ("loss", "normalize", "accumulation"),
    [("smmd", "numeric", 4), ("smmd", "tokens", 1), ("ntil", "numeric", 1), ("ntil", "tokens", 4)],
)
def test_ms_swift_counts_the_whole_step(swift, tiny, tmp_path, monkeypatch, loss, normalize, accumulation):
    monkeypatch.setattr(swift, "LOSS", loss)
    monkeypatch.setattr(swift, "NORMALIZE", normalize)
    trainer = with_swift(swift, trainer_for(tiny, tmp_path, accumulation))
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.LOSSES[loss](vocab), 0.3, normalize))
    parts = {name: torch.stack(mean.values).mean() for name, mean in trainer.custom_metrics["train"].items()}
    value = parts["loss/cross_entropy"] + 0.3 * parts["loss/numeric"]
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(value), rel=1e-5)
    assert getattr(trainer.args, "use_logits_to_keep", None) is (False if loss == "ntil" else None)


def test_ms_swift_evaluates(swift, tiny, tmp_path):
    trainer = with_swift(swift, trainer_for(tiny, tmp_path))
    found = trainer.evaluate(trainer.train_dataset)["eval_loss"]
    parts = {name: mean.values[0] for name, mean in trainer.custom_metrics["eval"].items()}
    assert found == pytest.approx(float(parts["loss/cross_entropy"] + 0.3 * parts["loss/numeric"]), rel=1e-5)


def test_ms_swift_refuses_what_it_cannot_do(swift, tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path)
    with pytest.raises(NotImplementedError, match="sequence_parallel_size=1"):
        with_swift(swift, trainer, sequence_parallel_size=2)
    made = with_swift(swift, trainer).compute_loss_func
    with pytest.raises(NotImplementedError, match="loss_scale"):
        made(None, torch.zeros(1, 2), loss_scale=torch.ones(1, 2))


@pytest.fixture
def llamafactory(monkeypatch, tiny, tmp_path) -> ModuleType:
    """Stand in for LLaMA-Factory, whose workflow looks up the trainer's class in its module."""
    workflow = stand_in(monkeypatch, "llamafactory.train.sft.workflow", CustomSeq2SeqTrainer=Trainer)
    stand_in(monkeypatch, "llamafactory.train.pt.workflow", CustomTrainer=Trainer)
    stand_in(monkeypatch, "llamafactory.hparams", read_args=dict)
    made: list[Trainer] = []

    def run_exp(args: dict[str, Any]) -> None:
        if "numerate" in args:
            raise ValueError("Some keys are not used by the HfArgumentParser: ['numerate']")
        made.append(trainer_for(tiny, tmp_path, args["gradient_accumulation_steps"], workflow.CustomSeq2SeqTrainer))
        made[-1].train()

    stand_in(monkeypatch, "llamafactory.train.tuner", run_exp=run_exp)
    recipe = recipe_of("llamafactory_run", monkeypatch)
    recipe.made = made
    return recipe


def test_llamafactory_trains_with_what_the_yaml_says(llamafactory, tiny):
    given = {"loss": "ntil", "weight": 0.5, "normalize": "tokens", "settings": {"alpha": 0.7}}
    args = {"stage": "sft", "gradient_accumulation_steps": 4, "numerate": given}
    llamafactory.run(args)
    (trainer,) = llamafactory.made
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.5, "tokens"))
    assert args["numerate"] == given
    assert sys.modules["llamafactory.train.sft.workflow"].CustomSeq2SeqTrainer is Trainer


def test_llamafactory_refuses_what_it_cannot_do(llamafactory):
    with pytest.raises(ValueError, match="stage='dpo' .* expected one of pt, sft"):
        llamafactory.run({"stage": "dpo"})
    with pytest.raises(ValueError, match="enable_liger_kernel"):
        llamafactory.run({"stage": "sft", "enable_liger_kernel": True})
    with pytest.raises(TypeError, match="wieght"):
        llamafactory.run({"stage": "sft", "gradient_accumulation_steps": 1, "numerate": {"wieght": 1}})
    assert sys.modules["llamafactory.train.sft.workflow"].CustomSeq2SeqTrainer is Trainer


@pytest.mark.parametrize("accumulation", [1, 4])
def test_unsloths_loss_is_right_for_the_whole_step(tiny, tmp_path, monkeypatch, accumulation):
    stand_in(monkeypatch, "unsloth", FastLanguageModel=object)
    stand_in(monkeypatch, "trl", SFTConfig=object, SFTTrainer=object)
    if find_spec("datasets") is None:
        stand_in(monkeypatch, "datasets", load_dataset=None)
    unsloth = recipe_of("unsloth_train", monkeypatch)
    trainer = trainer_for(tiny, tmp_path, accumulation)
    trainer.compute_loss_func = unsloth.numeric_loss(trainer.processing_class, "ntil", weight=0.5, alpha=0.7)
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.5, "tokens"))
