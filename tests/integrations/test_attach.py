"""nm.attach: by names, widths and columns the same training as the long form, bit for bit, in every trainer."""

from __future__ import annotations

import functools
import logging
import re
import tempfile
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import PROCESSES, TEXTS, build, tokenizer
from tests.samples import some_of_each
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

import numerate as nm
from numerate.integrations import lightning as for_lightning
from numerate.integrations import loop as for_loop
from numerate.integrations.lightning import StepDataLoader, step_counts
from numerate.integrations.loop import Steps
from numerate.targets import Bell, DrawnDataset, Ratings, SoftCollator, SoftNumbers

trl = pytest.importorskip("trl")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies, at import
    pl = pytest.importorskip("lightning.pytorch")

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("UserWarning", "FutureWarning", "DeprecationWarning")]

END, COUNT, SEED = 32, 16, 5
Parameters = dict[str, Tensor]


def ids_of(text: str) -> list[int]:
    return [TEXTS.index(character) for character in text]


def rows(model: str = "llama") -> list[dict[str, Any]]:
    """Return questions and answers with a number; only answers are trained, and ratings go with them."""
    found = []
    for i in range(COUNT):
        question, answer = ids_of(f"{i}x "), [*ids_of(f"x {7 * i + 1}.{i % 10}"), END]
        row: dict[str, Any] = {"input_ids": question + answer, "labels": [-100] * len(question) + answer}
        row["ratings"] = [i, i + 1, 99]
        found.append(row | ({"input_ids": question, "labels": answer} if model == "t5" else {}))
    return found


def soft_of(sequence: Any = "input_ids") -> SoftNumbers:
    return SoftNumbers(tokenizer(), Bell(relative=0.1), sequence=sequence)


def objective_of(loss: str | None = "smmd") -> nm.NumericObjective:
    vocab = nm.NumericVocab.from_tokenizer(tokenizer())
    return nm.NumericObjective(None, vocab=vocab) if loss is None else nm.NumericObjective(nm.LOSSES[loss](vocab), weight=0.7)


def options(folder: str, **settings: Any) -> dict[str, Any]:
    """Return arguments for two epochs of four steps, in shuffled order."""
    given = {"use_cpu": True, "num_train_epochs": 2, "per_device_train_batch_size": 2 // PROCESSES, "optim": "sgd", "seed": 3}
    given |= {"gradient_accumulation_steps": 2, "learning_rate": 0.1, "report_to": "none", "disable_tqdm": True}
    return {"output_dir": folder, **given, "save_strategy": "no", "logging_steps": 4, **settings}


# Trainers of the Hugging Face family, without data: model, rows and collator are arguments.


def plain(folder: str, **settings: Any) -> Trainer:
    args = TrainingArguments(**options(folder, **settings))
    collator = DataCollatorForSeq2Seq(tokenizer())
    return Trainer(build("llama"), args, train_dataset=rows(), data_collator=collator, processing_class=tokenizer())


def workers(folder: str, **settings: Any) -> Trainer:
    return plain(folder, dataloader_num_workers=1, dataloader_persistent_workers=True, **settings)


def peft(folder: str, **settings: Any) -> Trainer:
    args = TrainingArguments(**options(folder, **settings))
    model = cases.lora(target_modules=["q_proj"])
    return Trainer(model, args, train_dataset=Dataset.from_list(rows()), data_collator=DataCollatorForSeq2Seq(tokenizer()))


def sequence_to_sequence(folder: str, **settings: Any) -> Trainer:
    args, model = Seq2SeqTrainingArguments(**options(folder, **settings)), build("t5")
    collator = DataCollatorForSeq2Seq(tokenizer(), model=model)
    return Seq2SeqTrainer(model, args, train_dataset=rows("t5"), data_collator=collator)


def sft(folder: str, data: Any = None, **settings: Any) -> Trainer:
    args = trl.SFTConfig(**options(folder, bf16=False, gradient_checkpointing=False, **settings))
    given = Dataset.from_list(rows()) if data is None else data
    return trl.SFTTrainer(build("llama"), args, train_dataset=given, processing_class=tokenizer())


def packed(folder: str, **settings: Any) -> Trainer:
    return sft(folder, packing=True, max_length=40, **{**settings, "gradient_accumulation_steps": 1})


def joined(folder: str, **settings: Any) -> Trainer:
    return sft(folder, padding_free=True, max_length=None, **settings)


TRAINERS: dict[str, Callable[..., Trainer]] = {
    made.__name__: made for made in (plain, workers, peft, sequence_to_sequence, sft, packed, joined)
}


def long_form(trainer: Trainer, loss: str | None = None) -> None:
    """Attach as it was done before there was `soft`."""
    sequence = "labels" if isinstance(trainer, Seq2SeqTrainer) else "input_ids"
    data = DrawnDataset(trainer.train_dataset, soft_of(sequence), seed=SEED)
    trainer.train_dataset = data
    trainer.data_collator = SoftCollator(trainer.data_collator, sequence=sequence)
    trainer.add_callback(data.callback())
    nm.attach(trainer, objective_of(loss), check=False)


def short_form(trainer: Trainer, loss: str | None = None) -> None:
    nm.attach(trainer, loss, soft=0.1, seed=SEED, **({} if loss is None else {"weight": 0.7}))


def parameters(model: nn.Module) -> Parameters:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trained(make: Callable[..., Trainer], attach: Callable[..., None], loss: str | None = None, **settings: Any) -> Parameters:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(folder, **settings)
        attach(trainer, loss)
        trainer.train()
        return parameters(trainer.model)


def same(found: Parameters, expected: Parameters) -> bool:
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], value) for name, value in expected.items())


@functools.cache
def by_the_long_form(name: str) -> Parameters:
    return trained(TRAINERS[name], long_form)


@pytest.mark.parametrize("name", TRAINERS)
def test_it_trains_as_the_long_form_does_bit_for_bit(name):
    assert same(trained(TRAINERS[name], short_form), by_the_long_form(name))
    assert not same(
        trained(TRAINERS[name], lambda trainer, _: nm.attach(trainer, soft=0.1, seed=SEED + 1)), by_the_long_form(name)
    )


@pytest.mark.parametrize("name", [name for name in TRAINERS if name != "workers"])
def test_a_run_that_is_resumed_in_its_second_epoch(name, tmp_path):
    pytest.importorskip("accelerate", minversion="1.15", reason="accelerate before 1.15 forgets the epoch")
    make = TRAINERS[name]
    steps = {"save_strategy": "steps", "save_steps": 5, "save_only_model": False}
    if name == "packed":
        steps["save_steps"] = 6
    first = make(str(tmp_path), **steps)
    short_form(first)
    first.train()
    assert first.state.epoch == 2
    second = make(str(tmp_path), **steps)
    short_form(second)
    second.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{steps['save_steps']}"))
    assert same(parameters(second.model), parameters(first.model))
    assert same(parameters(first.model), by_the_long_form(name))


# Loops and Lightning


def loop(loss: str, *, short: bool) -> Parameters:
    """Train without soft labels; test_attach_loops.py has those."""
    model = build("llama")
    loader = DataLoader(rows(), 2, collate_fn=DataCollatorForSeq2Seq(tokenizer()))
    if short:
        steps: Steps = for_loop.attach(loader, model, loss, accumulate=2, weight=0.7)
    else:
        steps = Steps(loader, model, objective_of(loss), accumulate=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for step in steps:
            for batch in step:
                step.objective(model(batch["input_ids"], batch["attention_mask"]).logits).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


class Module(pl.LightningModule):
    def __init__(self, loader: StepDataLoader):
        super().__init__()
        self.model, self.loader = build("llama"), [loader]

    def training_step(self, batch, batch_idx):
        counts = step_counts(self, batch, batch_idx)
        logits = self.model(batch["input_ids"], batch["attention_mask"]).logits
        return self.loader[0].objective(logits, batch["labels"], shift=True, **counts).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(trainer: Any, loader: StepDataLoader, checkpoint: Any = None) -> Parameters:
    module = Module(loader)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return parameters(module.model)


def lightning_trainer(**settings: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(
        accelerator="cpu", accumulate_grad_batches=2, **{"max_epochs": 2, "enable_checkpointing": False} | quiet | settings
    )


def lightning_loader(trainer: Any, loss: str | None, soft: Any = 0.1) -> StepDataLoader:
    weight = {} if loss is None else {"weight": 0.7}
    given = {"soft": soft, "seed": SEED, "batch_size": 2, "collate_fn": DataCollatorForSeq2Seq(tokenizer())}
    return for_lightning.attach(trainer, rows(), loss, **given, **weight)


def lightning(loss: str | None, *, short: bool, soft: bool = True, **settings: Any) -> Parameters:
    trainer, collator = lightning_trainer(**settings), DataCollatorForSeq2Seq(tokenizer())
    if short:
        return fit(trainer, lightning_loader(trainer, loss, 0.1 if soft else None))
    data: Any = DrawnDataset(rows(), soft_of(), seed=SEED) if soft else rows()
    given = {"objective": objective_of(loss), "accumulate": 2, "batch_size": 2}
    loader = StepDataLoader(data, collate_fn=SoftCollator(collator) if soft else collator, **given)
    if soft:
        trainer.callbacks.append(
            pl.callbacks.LambdaCallback(on_train_epoch_start=lambda trainer, _: data.set_epoch(trainer.current_epoch))
        )
    return fit(trainer, loader)


def test_lightning_trains_as_the_long_form_does_bit_for_bit():
    assert same(lightning(None, short=True), lightning(None, short=False))


def test_lightning_resumes_in_its_second_epoch(tmp_path):
    whole, part = lightning_trainer(), lightning_trainer(max_epochs=1)
    expected = fit(whole, lightning_loader(whole, None))
    fit(part, lightning_loader(part, None))
    part.save_checkpoint(tmp_path / "part.ckpt")
    second = lightning_trainer()
    assert same(fit(second, lightning_loader(second, None), tmp_path / "part.ckpt"), expected)


def test_a_loop_resumes_and_is_restored():
    loader = DataLoader(rows(), 2, collate_fn=DataCollatorForSeq2Seq(tokenizer()))
    data, collator = loader.dataset, loader.collate_fn
    steps = for_loop.attach(loader, build("llama"), soft=0.1)
    steps.epoch = 7
    next(iter(steps))
    assert (loader.dataset.epoch, steps.epoch) == (7, 8)
    steps.detach()
    assert (loader.dataset, loader.collate_fn) == (data, collator)


# Every loss by name, in every trainer

BY_NAME: dict[str, Callable[..., Parameters]] = {
    made.__name__: functools.partial(
        lambda make, loss, *, short: trained(
            make,
            (lambda t, loss: nm.attach(t, loss, weight=0.7))
            if short
            else lambda t, loss: nm.attach(t, objective_of(loss), check=False),
            loss,
            max_steps=1,
        ),
        made,
    )
    for made in (plain, sft)
}
BY_NAME |= {"loop": loop, "lightning": functools.partial(lightning, soft=False)}


@pytest.mark.parametrize(
    ("trainer", "loss"), dict.fromkeys([*product(BY_NAME, ("smmd", "ntil")), *some_of_each(BY_NAME, nm.LOSSES, 4)])
)
def test_every_loss_by_name(trainer, loss):
    found, expected = (BY_NAME[trainer](loss, short=short) for short in (True, False))
    assert same(found, expected)


# What is asked for


def attached(tmp_path, *args: Any, make: Callable[..., Trainer] = plain, data: Any = None, **asked: Any) -> Any:
    trainer = make(str(tmp_path))
    if data is not None:
        trainer.train_dataset = data
    return nm.attach(trainer, *args, **asked)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"soft": 0.05}, "soft labels (bell, 5 %) on the last number of each answer: 16 of 16 rows"),
        (
            {"soft": 0.02, "loss": "ntil", "weight": 0.3},
            "soft labels (bell, 2 %) on the last number of each answer: 16 of 16 rows; ntil with weight 0.3",
        ),
        ({"soft": Bell(width=3), "numbers": "all"}, "soft labels (bell, width 3) on every number: 16 of 16 rows"),
        ({"loss": "smmd"}, "smmd with weight 0.3: 16 of 16 rows"),
        ({"loss": "smmd", "numbers": re.compile("1[.]")}, "smmd with weight 0.3 on matches of '1[.]': 2 of 16 rows"),
        (
            {"soft": Ratings("ratings")},
            "soft labels (ratings of column 'ratings') on the last number of each answer: 16 of 16 rows",
        ),
    ],
)
def test_one_line_says_what_was_done(asked, line, tmp_path, capsys):
    found = attached(tmp_path, **asked)
    assert capsys.readouterr().err == f"numerate: {line}\n"
    assert found.summary == line


@pytest.mark.parametrize("asked", [{"soft": 0.05, "format": "spaced"}, {"format": "spaced", "numbers": "answer"}, {"soft": None}])
def test_a_format_reaches_soft_labels_and_losses(asked, tmp_path):
    """Spaced digits are one number for both; SoftNumbers brings its own."""
    data = [{"input_ids": [*ids_of("x 1 2 . 5"), END], "labels": [*ids_of("x 1 2 . 5"), END]}] * 8
    if "format" not in asked:
        asked = {"soft": SoftNumbers(tokenizer(), Bell(relative=0.1), format="spaced")}
    found = attached(tmp_path, "ntil", data=data, **asked)
    assert found.soft is not None
    assert found.soft.numbers(data[0]) == ["12.5"]
    loss = found.objective.numeric_loss
    assert int(loss.count(torch.tensor(data[0]["labels"]))) == 1


def test_the_line_can_be_turned_off(tmp_path, capsys):
    logger = logging.getLogger("numerate")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        attached(tmp_path, soft=0.05)
    finally:
        logger.setLevel(level)
    assert capsys.readouterr().err == ""


def test_ratings_of_a_column_are_drawn(tmp_path):
    found = attached(tmp_path, soft=Ratings("ratings"))
    data = found.trainer.train_dataset
    drawn: set[str] = set()
    for epoch in range(20):
        data.set_epoch(epoch)
        drawn.add(tokenizer().decode([t for t in data[4]["labels"] if t >= 0][:-1]))
    assert drawn == {"x 4", "x 5", "x 99"}


def test_the_width_is_chosen_by_the_labels(tmp_path):
    data = [{name: value for name, value in row.items() if name != "ratings"} for row in rows()]
    assert attached(tmp_path, data=data, soft=True).soft.target == Bell(relative=0.05)
    near = [{"input_ids": [*ids_of(f"x {1990 + i}"), END]} for i in range(20)]
    assert attached(tmp_path, data=near, soft=True).soft.target == Bell(width=1.2, lowest=0.0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "neither a loss nor soft labels.*soft=0.05.*soft=nm.Ratings"),
        ({"soft": 7}, r"soft=7 is out of range.*Pass soft=nm.Bell\(width=7\)"),
        ({"soft": "wide"}, "soft='wide' is a str: expected a share such as 0.05"),
        ({"soft": True}, r"column 'ratings' holds lists of numbers such as \[0, 1, 99\]: expected soft=nm.Ratings\('ratings'\)"),
        ({"soft": Ratings("votes")}, "no column 'votes', only 'input_ids', 'labels', 'ratings'"),
        ({"loss": "smmdd"}, "loss='smmdd' is not known.*Did you mean 'smmd'"),
        ({"soft": 0.1, "weight": 0.3}, "weight=0.3 with no loss"),
        ({"soft": 0.1, "format": "space"}, "kind='space' is not known.*Did you mean 'spaced'"),
        ({"soft": 0.1, "format": "padded"}, "digits=None and decimals=None, and kind='padded' pads numbers"),
        ({"loss": "ntil", "format": "exponent"}, "NTILLoss reads complete numbers, and the vocabulary has format='exponent'"),
        (
            {"soft": soft_of(), "format": "spaced"},
            r"format='spaced', and soft has numbers in NumberFormat\(kind='plain'.*pass format=... to SoftNumbers too",
        ),
        (
            {"loss": objective_of(), "format": "spaced"},
            r"format='spaced', and loss has numbers in NumberFormat\(kind='plain'.*to NumericVocab.from_tokenizer too",
        ),
        ({"soft": 0.1, "numbers": "answers"}, "where='answers' is not known.*Did you mean 'answer'"),
        (
            {"soft": 0.1, "numbers": re.compile("y")},
            "no number in 16 rows: matches of 'y' was asked for, and the first text is 'x 1.0",
        ),
    ],
)
def test_what_cannot_be_asked_for(asked, message, tmp_path):
    trainer = plain(str(tmp_path))
    before = dict(vars(trainer))
    with pytest.raises((ValueError, TypeError), match=message):
        nm.attach(trainer, **asked)
    assert vars(trainer) == before


@pytest.mark.parametrize(
    ("data", "asked", "message"),
    [
        (
            IterableDataset.from_generator(lambda: iter(rows())),
            {"soft": 0.1},
            "training data are a IterableDataset: expected rows by index",
        ),
        (DrawnDataset(rows(), soft_of()), {"soft": 0.1}, "training data are a DrawnDataset, and soft labels are asked for too"),
        (
            [{"input_ids": ids_of("x 70")}] * 3,
            {"soft": 0.1},
            "none of the 3 numbers in the first rows can be replaced.*end_token",
        ),
        ([{"input_ids": ids_of("x x")}] * 3, {"loss": "smmd"}, "no number in 3 rows: labels hold no numeric token.*check=False"),
    ],
)
def test_data_that_cannot_be_trained_on(data, asked, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        attached(tmp_path, data=data, **asked)


def test_a_trainer_without_training_data_or_tokenizer(tmp_path):
    trainer = Trainer(build("llama"), TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    with pytest.raises(ValueError, match="training data are a NoneType: expected rows by index"):
        nm.attach(trainer, soft=0.1)
    with pytest.raises(ValueError, match="no processing_class, and its collator no tokenizer"):
        nm.attach(trainer, "smmd")
    trainer.data_collator = DataCollatorForSeq2Seq(tokenizer())
    with_loss = nm.attach(trainer, "smmd")
    assert with_loss.summary == "smmd with weight 0.3: no rows to look at"
    assert trainer.evaluate(rows())["eval_loss/numeric"] > 0
    with_loss.detach()
    assert nm.attach(trainer, "smmd", tokenizer=tokenizer()).summary


def test_evaluations_keep_their_labels_and_detach_restores(tmp_path):
    for make in (plain, sft):
        trainer = make(str(tmp_path))
        trainer.evaluate(trainer.train_dataset)  # the first one times how long the model takes to prepare, and keeps that
        before = vars(trainer) | {"callbacks": [*trainer.callback_handler.callbacks], "forward": trainer.model.forward}
        hard = nm.attach(trainer, nm.NumericObjective(None))
        loss = trainer.evaluate(trainer.train_dataset)["eval_loss/cross_entropy"]
        hard.detach()
        found = nm.attach(trainer, soft=0.5)
        drawn = next(iter(trainer.get_train_dataloader()))
        assert "soft_positions" in drawn
        assert trainer.evaluate(found.trainer.train_dataset.dataset)["eval_loss/cross_entropy"] == pytest.approx(loss, rel=1e-6)
        found.detach()
        after = vars(trainer) | {"callbacks": [*trainer.callback_handler.callbacks], "forward": trainer.model.forward}
        assert after.keys() == before.keys(), after.keys() ^ before.keys()
        for name in ("train_dataset", "data_collator", "callbacks", "forward", "_signature_columns"):
            assert after[name] == before[name] or name == "_signature_columns", name


def test_model_init_and_unused_columns(tmp_path):
    """Each training has a new model; rows keep the column of the ratings until they are drawn."""
    args = TrainingArguments(**options(str(tmp_path), max_steps=1))
    collator = DataCollatorForSeq2Seq(tokenizer())
    trainer = Trainer(
        model_init=lambda: build("llama"), args=args, train_dataset=Dataset.from_list(rows()), data_collator=collator
    )
    nm.attach(trainer, "smmd", soft=Ratings("ratings"), seed=SEED)
    trainer.train()
    first = parameters(trainer.model)
    trainer.train()
    assert same(parameters(trainer.model), first)


def test_a_masked_model_is_refused(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = Trainer(BertForMaskedLM(config), args, train_dataset=rows(), processing_class=tokenizer())
    with pytest.raises(TypeError, match="BertForMaskedLM, which sees the tokens after its labels"):
        nm.attach(trainer, soft=0.1)


@pytest.mark.parametrize(
    ("wrong", "remedy"), [(DataLoader([1]), "loop.attach"), (object(), "call attach"), (pl.Trainer, "Lightning")]
)
def test_what_is_no_trainer(wrong, remedy):
    with pytest.raises(TypeError, match=f"expected a transformers Trainer; .*{remedy}"):
        nm.attach(lightning_trainer() if wrong is pl.Trainer else wrong, "smmd")


def on_two_processes() -> dict[str, tuple[Parameters, Parameters]]:
    """Train each Hugging Face trainer in both forms; processes that share the epoch with workers are left out."""
    names = [name for name in TRAINERS if name != "workers"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: (trained(TRAINERS[name], short_form), trained(TRAINERS[name], long_form)) for name in names}


def check_two_processes(found: dict[str, tuple[Parameters, Parameters]]) -> None:
    assert len(found) == len(TRAINERS) - 1
    for name, (short, long) in found.items():
        assert same(short, long), name


def test_draws_of_an_encoder_decoder_are_exact():
    """Over all members, drawn labels cost what the cross-entropy between the distributions over complete answers is."""
    model, target = build("t5").eval(), Bell(width=2, shape="uniform")
    soft = SoftNumbers(tokenizer(), target, sequence="labels")
    row = {"input_ids": ids_of("9 x"), "labels": [*ids_of("x 99"), END]}
    members = target("99")
    chances = {(*ids_of(f"x {text}"), END): p for text, p in zip(members.texts, members.probabilities, strict=True)}
    assert {len(ids) for ids in chances} == {5, 6}

    @torch.no_grad()
    def cost(labels: list[int], found: dict[str, Any] | None = None) -> float:
        batch = SoftCollator(DataCollatorForSeq2Seq(tokenizer()), sequence="labels")([{**row, "labels": labels} | (found or {})])
        fields = nm.targets.SoftTargets.from_batch(batch)
        logits = model(input_ids=batch["input_ids"], labels=batch["labels"]).logits
        return float(nm.NumericObjective(None)(logits, batch["labels"], soft=fields, num_items=1).loss)

    drawn: dict[tuple[int, ...], dict[str, Any]] = {}
    for seed in range(60):
        found = soft(row, rng=np.random.default_rng(seed))
        drawn[tuple(found["labels"])] = found
    assert drawn.keys() == chances.keys()
    exact = sum(p * cost([*ids]) for ids, p in chances.items())
    assert sum(p * cost([*ids], drawn[ids]) for ids, p in chances.items()) == pytest.approx(exact, rel=1e-6)
