"""numeric/overrun in the logs of every integration: the brute-force figure, at logged steps alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.integrations import test_loop as loop
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import EXAMPLES, TEXTS, VOCAB, Case, arguments, build, collate, dataset, trainer_for
from tests.integrations.trainers.ends import ends_of, overrun_of
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM, TrainerCallback
from transformers.modeling_outputs import CausalLMOutput

from numerate import NumericObjective, SMMDLoss
from numerate.integrations import model_loss
from numerate.integrations.loop import Steps
from numerate.integrations.transformers import attach
from numerate.objective.overrun import NumberEnds

NAME = "numeric/overrun"


def expected_overrun(case: Case, model: Any = None) -> float:
    """Return the figure of all examples in one batch."""
    model, batch = build(case.model) if model is None else model, collate(case.rows)
    labels = batch.pop("labels")
    batch = {name: batch[name] for name in batch if "soft" not in name and "weights" not in name}
    if case.model in cases.SEQUENCE_TO_SEQUENCE:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        return overrun_of(model(**batch).logits, labels, TEXTS)
    return overrun_of(model(**batch).logits[:, :-1], labels[:, 1:], TEXTS)


@pytest.fixture
def reads(monkeypatch):
    """Return a list that grows with each batch whose ends are looked for."""
    read, of = [], NumberEnds.of.__func__
    monkeypatch.setattr(NumberEnds, "of", classmethod(lambda cls, *args, **kwargs: read.append(1) or of(cls, *args, **kwargs)))
    return read


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize(
    ("model", "loss", "accumulation", "fused", "fields"),
    [
        ("llama", "smmd", 1, True, ""),
        ("llama", "none", 1, False, "soft"),
        ("mixtral", "ntil", 1, True, ""),
        *((name, "ntil", 4, False, "both") for name in cases.MODELS if name not in cases.ROUTED),
        *((name, "none", 4, True, "both") for name in cases.SEQUENCE_TO_SEQUENCE if name not in cases.ROUTED),
    ],
)
def test_attach(model, loss, accumulation, fused, fields, monkeypatch):
    if not fused:
        monkeypatch.setattr(model_loss, "find_head", lambda _: (None, "this is a test"))
    case = Case(model, loss, fields=fields)
    outcome = cases.run(case, accumulation, evaluate=False)
    assert outcome.logs[NAME] == pytest.approx(expected_overrun(case), rel=1e-6)
    assert outcome.fused_calls + outcome.plain_calls == accumulation


# Which steps


def logged(tmp_path, rows=None, accumulation=2, callbacks=None, **settings):
    """Train with a small step size; return the figures by step."""
    settings = {"max_steps": 7, "learning_rate": 0.05, "lr_scheduler_type": "constant", **settings}
    trainer = trainer_for(
        build("llama"),
        rows or dataset("llama", padded=True),
        arguments(str(tmp_path), accumulation, **settings),
        callbacks=callbacks,
    )
    attach(trainer, Case().objective)
    trainer.train()
    return {logs["step"]: logs.get(NAME) for logs in trainer.state.log_history if "loss" in logs}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"logging_steps": 3}, [3, 6]),
        ({"logging_steps": 3, "logging_first_step": True}, [1, 3, 6]),
        ({"logging_steps": 0.5}, [4]),
        ({"logging_steps": 100}, []),
        ({"logging_strategy": "no"}, []),
        # An epoch is two steps.
        ({"logging_strategy": "epoch", "per_device_train_batch_size": 2}, [2, 4, 6, 7]),
        ({"logging_strategy": "epoch", "per_device_train_batch_size": 3}, [2, 4, 6, 7]),
    ],
    ids=str,
)
def test_only_logged_steps_cost_anything(settings, steps, tmp_path, reads):
    found = logged(tmp_path, **settings)
    assert list(found) == steps
    assert all(0 < value < 1 for value in found.values())
    last_is_short = settings.get("per_device_train_batch_size") == 3  # 3 + 3 rows, and 2
    assert len(reads) == sum(1 if last_is_short and step % 2 == 0 else 2 for step in steps)


def test_the_figure_is_that_of_the_logged_step(tmp_path):
    every, few = logged(tmp_path), logged(tmp_path, logging_steps=3)
    assert few == pytest.approx({step: every[step] for step in (3, 6)}, rel=1e-9)
    assert len(set(every.values())) == 7


class LogsAtTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= state.global_step == 2


def test_a_step_that_a_callback_logs(tmp_path):
    found = logged(tmp_path, logging_steps=4, max_steps=4, callbacks=[LogsAtTwo()])
    assert list(found) == [2, 4]
    assert found[2] is None
    assert found[4] == pytest.approx(logged(tmp_path, max_steps=4)[4], rel=1e-9)


# Where it is not known


def test_batches_without_an_end(tmp_path):
    rows = [{"input_ids": torch.tensor([14, 14, 1, 2]), "labels": torch.tensor([14, 14, 1, 2])}] * EXAMPLES
    assert logged(tmp_path, rows, max_steps=1) == {1: None}


class Unpadded(LlamaForCausalLM):
    """Drops padding before its loss, so that rows follow each other."""

    def forward(self, input_ids, attention_mask, labels=None, **kwargs):
        logits = super().forward(input_ids=input_ids, attention_mask=attention_mask).logits
        kept = attention_mask[:, 1:].bool()
        flat, targets = logits[:, :-1][kept], labels[:, 1:][kept]
        loss = self.loss_function(logits=flat, labels=None, shift_labels=targets, vocab_size=flat.shape[-1])
        return CausalLMOutput(loss=loss, logits=logits)


def test_rows_that_a_model_joins(tmp_path):
    rows = dataset("llama", padded=True)
    for count, targets in ((2, 27), (3, 39), (1, 11)):  # 39 positions may be three rows of 13, but are not
        assert sum(len(row["labels"]) - 1 for row in rows[:count]) == targets
        trainer = trainer_for(Unpadded(build("llama").config).double(), [], arguments(str(tmp_path)))
        attach(trainer, NumericObjective(SMMDLoss(VOCAB)))
        metrics = trainer.evaluate(rows[:count])
        assert "eval_numeric/mass" in metrics
        assert (f"eval_{NAME}" in metrics) == (count == 1)


# Loops of one's own, and Lightning


@pytest.mark.parametrize("loss", ["smmd", "none"])
def test_steps(loss):
    """The mean over a step's micro-batches, weighted by ``num_ends``, is the figure of the step."""
    rows, model = dataset("llama", padded=True), build("llama")
    objective, totals = Case(loss=loss).objective, torch.zeros(2, dtype=torch.float64)
    for step in Steps(DataLoader(rows, batch_size=2, collate_fn=collate), model, objective, accumulate=4):
        for batch in step:
            labels = batch.pop("labels")
            hidden = model.model(**batch).last_hidden_state
            plain = step.objective(model.lm_head(hidden), with_overrun=True)
            fused = step.fused(hidden, model.lm_head.weight, with_overrun=True)
            assert (ends_of(labels[:, 1:], TEXTS).sum(), fused.num_ends) == (plain.num_ends, plain.num_ends)
            assert fused.overrun.item() == pytest.approx(plain.overrun.item(), rel=1e-9)
            totals += torch.stack([plain.overrun.detach() * plain.num_ends, plain.num_ends])
            assert step.objective(model.lm_head(hidden)).overrun is None
    assert float(totals[0] / totals[1]) == pytest.approx(expected_overrun(Case()), rel=1e-6)


@pytest.mark.parametrize("fields", ["both", ""])
def test_lightning(fields):
    found = pytest.importorskip("tests.integrations.test_lightning")
    seen = []

    class Module(found.Module):
        def training_step(self, batch, batch_idx):
            counts = found.step_counts(self, batch, batch_idx)
            logits = self.model(batch["input_ids"])
            out = self.objective(logits, batch["labels"], shift=True, with_overrun=True, **counts)
            seen.append((out.overrun.item(), overrun_of(logits[:, :-1], batch["labels"][:, 1:], loop.TEXTS)))
            return out.loss

    objective = loop.objective_of("smmd", "numeric")
    found.fit(objective, 2, 4, loop.examples(8, fields), module=Module(objective))
    assert len(seen) == 2
    for overrun, expected in seen:
        assert overrun == pytest.approx(expected, rel=1e-9)
