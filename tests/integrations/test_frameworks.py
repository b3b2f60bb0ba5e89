"""Axolotl, LLaMA-Factory, ms-swift and Unsloth: a section of a configuration trains like the plain formula.

Stand-in modules have the names that an adapter imports, with the signatures of axolotl 0.19.0, llamafactory 0.9.5, ms-swift 4.6.0
and unsloth 2026.10.9; the trainers here are real. Where a framework is installed, its own code runs too.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening, Trainer, TrainerCallback, TrainingArguments

import numerate as nm
from numerate.integrations import axolotl, llamafactory, swift, unsloth
from numerate.integrations.section import Section

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"loss": "smmd", "wieght": 1}, "wieght=1 is not a setting of the section `numerate`.* Did you mean 'weight'"),
        ({"loss": "smd"}, "loss='smd' is not known.* Did you mean 'smmd'"),
        ({"loss": "smmd", "settings": {"sgma": 1}}, "sgma=1 is not a setting of SMMDLoss.* Did you mean 'sigma'"),
        ({"loss": "smmd", "normalize": "number"}, "normalize='number' is not known"),
        ({"loss": "smmd", "weight": "a lot"}, "weight='a lot' is not a number"),
        ({"soft": 0.05, "settings": {"sigma": 1}}, "without a loss"),
        ({"loss": "smmd", "format": "spces"}, "spces"),
        ({}, "neither a loss nor soft labels"),
        (None, "the section `numerate` is None: expected keys"),
        ("smmd", "the section `numerate` is 'smmd': expected keys"),
    ],
)
def test_a_wrong_section_is_an_error(section, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Section.of(section)


def test_a_section_asks_for_soft_labels_alone(tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path)
    attached = Section.of({"soft": 0.05}).attach(trainer)
    assert attached.soft is not None
    assert "soft labels" in attached.summary


def test_a_section_takes_a_format_and_the_numbers_that_are_meant(tiny, tmp_path):
    given = {"loss": "smmd", "settings": {"places": "linear"}, "format": "reversed", "numbers": "answer"}
    attached = Section.of(given).attach(trainer_for(tiny, tmp_path))
    assert attached.objective.numeric_loss.vocab.format is not None
    assert "the last number of each answer" in attached.summary


# Axolotl


@pytest.fixture
def axolotl_plugin(monkeypatch) -> Any:
    pytest.importorskip("pydantic")
    if find_spec("axolotl") is None:
        stand_in(monkeypatch, "axolotl.integrations.base", BasePlugin=object)
    axolotl._classes.cache_clear()
    yield axolotl.NumericPlugin()
    axolotl._classes.cache_clear()


def axolotl_config(**section: Any) -> dict[str, Any]:
    """Return what a plugin gets: the parts of the YAML that are not None."""
    return dict(axolotl.NumericArgs(numerate=section).model_dump(exclude_none=True))


def test_axolotl_attaches_what_the_yaml_says(axolotl_plugin, tiny, tmp_path):
    assert axolotl_plugin.get_input_args() == "numerate.integrations.axolotl.NumericArgs"
    trainer = trainer_for(tiny, tmp_path, accumulation=4)
    cfg = axolotl_config(loss="ntil", weight=0.5, settings={"alpha": 0.7}, soft=None)
    axolotl_plugin.post_trainer_create(cfg | {"context_parallel_size": 1}, trainer)
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.5, "numeric"))
    assert "loss/numeric" in trainer.state.log_history[0]


def test_axolotl_refuses_what_it_cannot_do(axolotl_plugin):
    from pydantic import ValidationError

    cfg = axolotl_config(loss="smmd")
    with pytest.raises(TypeError, match="wieght"):
        axolotl.NumericArgs(numerate={"wieght": 1})
    with pytest.raises(ValidationError, match="numerate"):
        axolotl.NumericArgs()
    for name in ("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy"):
        with pytest.raises(ValueError, match=f"{name} computes the loss inside the model"):
            axolotl_plugin.post_trainer_create(cfg | {name: True}, None)
    with pytest.raises(NotImplementedError, match="context_parallel_size=2"):
        axolotl_plugin.post_trainer_create(cfg | {"context_parallel_size": 2}, None)
    with pytest.raises(AttributeError, match="expected NumericPlugin"):
        axolotl.Plugin  # noqa: B018


# LLaMA-Factory


@pytest.fixture
def factory(monkeypatch, tiny, tmp_path) -> SimpleNamespace:
    """Stand in for LLaMA-Factory, whose workflow looks up the trainer's class in its module."""
    workflow = stand_in(monkeypatch, "llamafactory.train.sft.workflow", CustomSeq2SeqTrainer=Trainer)
    stand_in(monkeypatch, "llamafactory.train.pt.workflow", CustomTrainer=Trainer)
    made: list[Trainer] = []

    def run_exp(args: dict[str, Any], callbacks: list[TrainerCallback]) -> None:
        if "numerate" in args:
            raise ValueError("Some keys are not used by the HfArgumentParser: ['numerate']")
        kind = Trainer if args.get("use_mca") else workflow.CustomSeq2SeqTrainer
        made.append(trainer_for(tiny, tmp_path, args["gradient_accumulation_steps"], kind))
        made[-1].add_callback(callbacks[0])
        made[-1].train()

    def read_args() -> Any:
        is_file = sys.argv[1].endswith(".yaml")
        return {"gradient_accumulation_steps": 4, "numerate": {"loss": "smmd"}} if is_file else sys.argv[1:]

    stand_in(monkeypatch, "llamafactory.train.tuner", run_exp=run_exp)
    stand_in(monkeypatch, "llamafactory.hparams", read_args=read_args)
    return SimpleNamespace(made=made, workflow=workflow)


def test_llamafactory_trains_with_what_the_yaml_says(factory, tiny):
    given = {"loss": "ntil", "weight": 0.5, "normalize": "tokens", "settings": {"alpha": 0.7}}
    args = {"stage": "sft", "gradient_accumulation_steps": 4, "numerate": given}
    llamafactory.train(args)
    (trainer,) = factory.made
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.5, "tokens"))
    assert args["numerate"] == given
    assert factory.workflow.CustomSeq2SeqTrainer is Trainer


def test_llamafactory_reads_its_command_line(factory, tiny, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["llamafactory.py", "train", "config.yaml"])
    llamafactory.main()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(factory.made[0]), whole(tiny, nm.SMMDLoss(vocab), 0.3, "numeric"))
    for wrong in (["config.yaml"], ["train", "--stage", "sft"]):
        monkeypatch.setattr(sys, "argv", ["llamafactory.py", *wrong])
        with pytest.raises(SystemExit, match="train config.yaml"):
            llamafactory.main()


def test_llamafactory_refuses_what_it_cannot_do(factory):
    good = {"stage": "sft", "gradient_accumulation_steps": 1, "numerate": {"loss": "smmd"}}
    with pytest.raises(ValueError, match="stage='dpo' is not known: expected one of 'sft', 'pt'"):
        llamafactory.train(good | {"stage": "dpo"})
    for name in ("enable_liger_kernel", "use_unsloth"):
        with pytest.raises(ValueError, match=f"{name} computes the loss inside the model"):
            llamafactory.train(good | {name: True})
    with pytest.raises(NotImplementedError, match="trains with another trainer"):
        llamafactory.train(good | {"use_mca": True})
    assert factory.made[-1].state.global_step == 0
    assert factory.workflow.CustomSeq2SeqTrainer is Trainer


# ms-swift


class Seq2SeqTrainer(Trainer):
    """Calls a loss function as ms-swift's does: with the logits of the rows that it keeps, and nothing of the batch."""

    __module__ = "swift.trainers.seq2seq_trainer"

    def __init__(self, *args: Any, sequence_parallel_size: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args.enable_dft_loss, self.args.use_logits_to_keep = False, None
        self.template = SimpleNamespace(sequence_parallel_size=sequence_parallel_size)
        self.loss_scale: torch.Tensor | None = None

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = super()._prepare_inputs(inputs)
        if self.args.use_logits_to_keep is None:
            keep = inputs["labels"].shape[-1] - int((inputs["labels"] != -100).int().argmax(-1).min()) + 1
            inputs |= {"labels": inputs["labels"][:, -keep:], "logits_to_keep": keep}
        inputs["compute_loss_func"] = self.compute_loss_func
        return inputs

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        function, labels = inputs.pop("compute_loss_func"), inputs.pop("labels")
        inputs.pop("text_position_ids", None)
        outputs = model(**inputs)
        options = {"num_items_in_batch": num_items_in_batch, "loss_scale": self.loss_scale, "trainer": self}
        loss = function(outputs, labels, **options)
        if self.args.average_tokens_across_devices and self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss


# Every two settings meet.
@pytest.mark.parametrize(
    ("loss", "normalize", "accumulation"),
    [("smmd", "numeric", 4), ("smmd", "tokens", 1), ("ntil", "numeric", 1), ("ntil", "tokens", 4)],
)
def test_ms_swift_counts_the_whole_step(tiny, tmp_path, loss, normalize, accumulation):
    trainer = trainer_for(tiny, tmp_path, accumulation, Seq2SeqTrainer)
    attached = Section.of({"loss": loss, "normalize": normalize}).attach(trainer, by=swift.attach)
    trainer.train()
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(trainer), whole(tiny, nm.LOSSES[loss](vocab), 0.3, normalize))
    logs = trainer.state.log_history[0]
    assert logs["loss"] == pytest.approx(logs["loss/cross_entropy"] + 0.3 * logs["loss/numeric"], rel=1e-5)
    assert trainer.args.use_logits_to_keep is (False if loss == "ntil" else None)
    attached.detach()
    assert trainer.args.use_logits_to_keep is None
    assert trainer.compute_loss_func is None


def test_ms_swift_evaluates(tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path, cls=Seq2SeqTrainer)
    swift.attach(trainer, "smmd")
    found = trainer.evaluate(trainer.train_dataset)
    assert found["eval_loss"] == pytest.approx(found["eval_loss/cross_entropy"] + 0.3 * found["eval_loss/numeric"], rel=1e-5)


def test_ms_swift_refuses_what_it_cannot_do(tiny, tmp_path):
    with pytest.raises(TypeError, match="expected ms-swift's Seq2SeqTrainer"):
        swift.attach(trainer_for(tiny, tmp_path), "smmd")
    trainer = trainer_for(tiny, tmp_path, cls=Seq2SeqTrainer)
    trainer.template.sequence_parallel_size = 2
    with pytest.raises(NotImplementedError, match="sequence_parallel_size=2"):
        swift.attach(trainer, "smmd")
    trainer = trainer_for(tiny, tmp_path, cls=Seq2SeqTrainer)
    trainer.args.enable_dft_loss = True
    with pytest.raises(ValueError, match="enable_dft_loss"):
        swift.attach(trainer, "smmd")
    trainer = trainer_for(tiny, tmp_path, cls=Seq2SeqTrainer)
    with pytest.raises(ValueError, match="soft and numbers change rows"):
        swift.attach(trainer, "smmd", soft=0.05)
    assert trainer.compute_loss_func is None
    swift.attach(trainer, "smmd")
    with pytest.raises(ValueError, match="has a compute_loss_func"):
        swift.attach(trainer, "smmd")
    trainer.loss_scale = torch.ones(1, 2)
    with pytest.raises(NotImplementedError, match="loss_scale"):
        trainer.train()


def test_logits_of_some_positions_are_refused_for_losses_that_read_numbers(tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path, cls=Seq2SeqTrainer)
    swift.attach(trainer, "ntil")
    trainer.args.use_logits_to_keep = None
    with pytest.raises(NotImplementedError, match="expected logits of all, without logits_to_keep"):
        trainer.train()


@pytest.fixture
def swift_package(monkeypatch, tiny, tmp_path) -> SimpleNamespace:
    """Stand in for ms-swift: its pipeline builds a trainer of its arguments, and its command reads a YAML as arguments."""
    found = SimpleNamespace(trainer=None, argv=None, use_ray=False, torchrun=None)

    class Pipeline:
        def __init__(self, argv: list[str]) -> None:
            found.argv, self.args = argv, SimpleNamespace(use_ray=found.use_ray)

        def main(self) -> Any:
            found.trainer = trainer_for(tiny, tmp_path, 4, Seq2SeqTrainer)
            return self.train(found.trainer)

        def train(self, trainer: Trainer) -> Any:
            return trainer.train()

    def parse_yaml_args(argv: list[str]) -> None:
        if argv and argv[0] == "config.yaml":
            argv[:1] = ["--model", "tiny", "--numerate", '{"loss": "ntil", "settings": {"alpha": 0.7}}', "--lr", "1"]

    stand_in(monkeypatch, "swift.pipelines.train.sft", SwiftSft=Pipeline)
    stand_in(monkeypatch, "swift.cli.main", parse_yaml_args=parse_yaml_args, get_torchrun_args=lambda: found.torchrun)
    return found


def test_ms_swift_reads_its_command_line(swift_package, tiny, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["swift.py", "sft", "config.yaml"])
    swift.main()
    assert swift_package.argv == ["--model", "tiny", "--lr", "1"]
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    assert_same(grads_of(swift_package.trainer), whole(tiny, nm.NTILLoss(vocab, alpha=0.7), 0.3, "numeric"))
    swift_package.torchrun = ["--nproc_per_node", "2"]
    started: list[list[str]] = []
    monkeypatch.setattr(swift.subprocess, "run", lambda command, **_: started.append(command) or SimpleNamespace(returncode=0))
    with pytest.raises(SystemExit):
        swift.main()
    assert started[0][1:7] == ["-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "numerate.integrations.swift"]
    assert started[0][7:10] == ["sft", "--model", "tiny"]


def test_a_wrong_command_line_of_ms_swift_is_an_error(swift_package, monkeypatch):
    for wrong in ([], ["rlhf", "config.yaml"]):
        monkeypatch.setattr(sys, "argv", ["swift.py", *wrong])
        with pytest.raises(SystemExit, match="sft config.yaml"):
            swift.main()
    with pytest.raises(ValueError, match="no section `numerate`"):
        swift.train("sft", ["--model", "tiny"])
    with pytest.raises(TypeError, match="'smmd': expected keys"):
        swift.train("sft", ["--numerate", "smmd"])
    with pytest.raises(ValueError, match=r"soft=0.05 is not supported with ms-swift"):
        swift.train("sft", ["--numerate", '{"soft": 0.05}'])
    swift_package.use_ray = True
    with pytest.raises(NotImplementedError, match="use_ray"):
        swift.train("sft", ["--numerate", '{"loss": "smmd"}'])


# Unsloth


@pytest.mark.parametrize("normalize", ["numeric", "tokens"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_unsloth_counts_the_whole_step(tiny, tmp_path, accumulation, normalize):
    trainer = trainer_for(tiny, tmp_path, accumulation)
    vocab = nm.NumericVocab.from_tokenizer(tiny.tokenizer())
    loss = nm.NTILLoss(vocab, alpha=0.7)
    unsloth.attach(trainer, nm.NumericObjective(loss, weight=0.5, normalize=normalize))
    trainer.train()
    assert_same(grads_of(trainer), whole(tiny, loss, 0.5, normalize))
    assert "numeric/overrun" in trainer.state.log_history[0]


def test_unsloth_trains_on_soft_labels_as_attach_does(tiny, tmp_path):
    ways = {}
    for name, attach in {"logits": unsloth.attach, "attach": nm.attach}.items():
        trainer = trainer_for(tiny, tmp_path / name, 4)
        attach(trainer, "smmd", soft=0.1, seed=1)
        trainer.train()
        ways[name] = grads_of(trainer)
    assert_same(ways["logits"], ways["attach"])


@pytest.mark.parametrize("name", ["smmd", "ntil"])
def test_packed_rows_are_as_separate_ones(tiny, tmp_path, name):
    """As Unsloth and ms-swift pack them: one row, with ``position_ids`` that start at each document."""
    tokenizer = tiny.tokenizer()
    rows = tiny.examples(tokenizer, 8)
    gradients = []
    for packed in (False, True):
        trainer = trainer_for(tiny, tmp_path / str(packed), 2)
        trainer.data_collator = DataCollatorWithFlattening() if packed else DataCollatorForSeq2Seq(tokenizer)
        trainer.model.set_attn_implementation("eager")
        trainer.train_dataset = [{"input_ids": [*row["input_ids"]], "labels": [-100, *row["input_ids"][1:]]} for row in rows]
        unsloth.attach(trainer, name)
        trainer.train()
        gradients.append(grads_of(trainer))
    assert_same(*gradients)


def test_unsloth_refuses_what_it_cannot_do(tiny, tmp_path):
    trainer = trainer_for(tiny, tmp_path)
    trainer.compute_loss_func = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match="has a compute_loss_func"):
        unsloth.attach(trainer, "smmd")
    trainer = trainer_for(tiny, tmp_path)
    unsloth.attach(trainer, "smmd")
    with pytest.raises(NotImplementedError, match="router_logits"):
        trainer.compute_loss_func({"logits": None, "router_logits": None}, torch.zeros(1, 1))
    with pytest.raises(ValueError, match="labels=None"):
        trainer.compute_loss_func({"logits": None}, None)
    with pytest.raises(TypeError, match="wieght"):
        unsloth.attach(trainer_for(tiny, tmp_path), "smmd", wieght=1)


# The frameworks themselves, where they are installed


def test_axolotls_schema_takes_the_section(monkeypatch):
    base: Any = pytest.importorskip("axolotl.integrations.base", reason="axolotl is not installed")
    from axolotl.integrations.config import merge_input_args

    axolotl._classes.cache_clear()
    monkeypatch.setattr(base.PluginManager, "_instance", None)
    manager = base.PluginManager.get_instance()
    manager.register("numerate.integrations.axolotl.NumericPlugin")
    assert isinstance(manager.plugins["numerate.integrations.axolotl.NumericPlugin"], base.BasePlugin)
    _, schema = merge_input_args()
    assert schema.model_fields["numerate"].is_required()


def saved_model(folder: Path) -> Path:
    """Write a tiny model of chats, and sums to train it on."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "\n", *map(chr, range(32, 127))]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    special = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
    config = Qwen2Config(vocab_size=len(tokens), num_key_value_heads=2, tie_word_embeddings=False, **sizes, **ids)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    rows = [{"instruction": f"{a}+{a * a}=", "input": "", "output": f"{a + a * a}" * (1 + a % 3)} for a in range(8, 16)]
    (folder / "sums.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"sums": {"file_name": "sums.json"}}), encoding="utf-8")
    return folder


@pytest.fixture
def attached_trainers(monkeypatch) -> list[Trainer]:
    """The trainers that a framework builds, with a callback that keeps their gradients."""
    found, plain = [], Section.attach

    def attach(section: Section, trainer: Trainer, **options: Any) -> Any:
        trainer.add_callback(Collect())
        found.append(trainer)
        return plain(section, trainer, **options)

    monkeypatch.setattr(Section, "attach", attach)
    return found


def assert_plain(trainer: Trainer, folder: Path, weight: float) -> None:
    """Compare the gradients of the first step with the plain formula, on the batches of the framework."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    batches = [*trainer.get_train_dataloader()]
    assert len(batches) == 4
    loss = nm.NTILLoss(nm.NumericVocab.from_tokenizer(AutoTokenizer.from_pretrained(folder)), alpha=0.7)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    labels = [batch["labels"][:, 1:] for batch in batches]
    num_items, num_units = sum(int((part != -100).sum()) for part in labels), sum(loss.count(part) for part in labels)
    assert num_units > 0
    for batch, part in zip(batches, labels, strict=True):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        ce = F.cross_entropy(logits.flatten(0, 1), part.flatten(), reduction="sum")
        (ce / num_items + weight * loss(logits, part, reduction="sum") / num_units).backward()
    truth, found = {name: p.grad for name, p in model.named_parameters()}, grads_of(trainer)
    largest = max(grad.abs().max() for grad in truth.values())
    for name, grad in truth.items():
        assert (found[name] - grad).abs().max() <= 1e-4 * largest, name


@pytest.mark.filterwarnings("default")
def test_ms_swift_itself_trains_with_the_section(tmp_path, attached_trainers):
    pytest.importorskip("swift.pipelines.train.sft", reason="ms-swift is not installed")
    folder = saved_model(tmp_path)
    section = json.dumps({"loss": "ntil", "weight": 0.5, "settings": {"alpha": 0.7}})
    given = {"model": folder, "model_type": "qwen2", "template": "qwen2_5", "tuner_type": "full", "dataset": folder / "sums.json"}
    given |= {"output_dir": tmp_path / "run", "torch_dtype": "float32", "max_steps": 1, "per_device_train_batch_size": 2}
    given |= {"gradient_accumulation_steps": 4, "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
    given |= {"split_dataset_ratio": 0, "dataset_shuffle": False, "train_dataloader_shuffle": False, "max_grad_norm": 0}
    given |= {"dataset_num_proc": 1, "dataloader_num_workers": 0, "check_model": False, "numerate": section}
    swift.train("sft", [text for name, value in given.items() for text in (f"--{name}", str(value))])
    assert_plain(attached_trainers[0], folder, 0.5)


@pytest.mark.filterwarnings("default")
def test_llamafactory_itself_trains_with_the_section(tmp_path, attached_trainers):
    pytest.importorskip("llamafactory.train.tuner", reason="llamafactory is not installed")
    folder = saved_model(tmp_path)
    given = {"stage": "sft", "do_train": True, "model_name_or_path": str(folder), "finetuning_type": "full", "template": "qwen"}
    given |= {"dataset_dir": str(folder), "dataset": "sums", "cutoff_len": 256, "output_dir": str(tmp_path / "run")}
    given |= {"max_steps": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "logging_steps": 1}
    given |= {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_shuffling": True, "max_grad_norm": 0.0}
    llamafactory.train(given | {"numerate": {"loss": "ntil", "weight": 0.5, "settings": {"alpha": 0.7}}})
    assert_plain(attached_trainers[0], folder, 0.5)
