"""attach with soft targets and weights: the step's gradient is that of the dense formula, however models align their labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.integrations import test_attach_models as models
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import (
    EXAMPLES,
    Case,
    Collect,
    arguments,
    assert_same,
    build,
    collate,
    dataset,
    gradients,
    lora,
    prompt_tuning,
    trainer_for,
)
from tests.integrations.trainers.soft import parts_of, with_fields
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from numerate import NumericObjective
from numerate.integrations import model_loss
from numerate.integrations.fields import LABEL_FIELDS
from numerate.integrations.transformers import attach
from numerate.labels import shift_left
from numerate.targets.soft_targets import SOFT_FIELDS, SoftTargets


def split(batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the model sees, and the fields."""
    return {k: v for k, v in batch.items() if k not in LABEL_FIELDS}, {k: v for k, v in batch.items() if k in LABEL_FIELDS}


@pytest.mark.parametrize(
    ("model", "loss", "normalize", "fields", "accumulation"),
    [
        ("llama", "ntil", "tokens", "soft", 1),
        ("llama", "none", "numeric", "weights", 4),
        ("llama", "none", "tokens", "both", 1),
        *((model, "ntil", "numeric", "both", 8) for model in cases.MODELS),
    ],
)
def test_the_gradient_of_a_step(model, loss, normalize, fields, accumulation):
    case = Case(model, loss, normalize, fields=fields)
    outcome = cases.run(case, accumulation)
    assert_same(outcome.grads, cases.reference(case))
    assert (outcome.fused_calls, outcome.plain_calls) == (accumulation, 0)


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize("model", ["llama", "t5", "qwen2_vl"])
def test_a_head_that_is_not_fused(model, monkeypatch):
    monkeypatch.setattr(model_loss, "find_head", lambda _: (None, "this is a test"))
    case = Case(model, fields="both")
    outcome = cases.run(case, 4, evaluate=False)
    assert_same(outcome.grads, cases.reference(case))
    assert (outcome.fused_calls, outcome.plain_calls) == (0, 4)


@pytest.mark.parametrize("loss", ["smmd", "none"])
def test_soft_targets_that_are_the_labels_change_nothing(loss):
    soft, plain = (cases.step(Case(loss=loss, fields=fields), 2) for fields in ("hard", ""))
    assert all(torch.equal(soft[name], grad) for name, grad in plain.items())


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize(("make", "accumulation"), [(lora, 1), (prompt_tuning, 4)])
def test_peft(make, accumulation, tmp_path):
    """The last virtual token predicts the first label, which may be soft; the head of the other is not fused."""
    settings = {"target_modules": ["q_proj", "lm_head"]} if make is lora else {}
    rows = [row | {"labels": row["input_ids"].clone()} for row in dataset("llama", padded=True)]
    rows = with_fields(rows, "both")
    collect, objective = Collect(), Case().objective
    trainer = trainer_for(make(**settings), rows, arguments(str(tmp_path), accumulation), callbacks=[collect])
    attach(trainer, objective)
    trainer.train()
    net, (batch, fields) = make(**settings), split(collate(rows))
    labels = batch.pop("labels")
    ce, numeric = parts_of(objective, net(**batch).logits, labels, fields, shift=True)
    (ce + 0.7 * numeric).backward()
    assert_same(collect.grads, gradients(net))
    logs = trainer.state.log_history[0]
    assert (logs["loss/cross_entropy"], logs["loss/numeric"]) == pytest.approx((ce.item(), numeric.item()), rel=1e-6)


def test_shift_labels_of_the_batch(tmp_path):
    """Packed documents whose labels the collator has shifted; fields and position_ids are those of the tokens."""
    rows = with_fields(dataset("llama", padded=False), "both")

    def collated(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        batch = collate(chosen)
        del batch["attention_mask"]
        batch["position_ids"] = (torch.arange(batch["labels"].shape[1]) % 7).expand_as(batch["labels"])
        batch["shift_labels"] = shift_left(batch["labels"], -100)
        return batch

    collect, objective = Collect(), Case(loss="number").objective
    model = build("llama")
    model.config.use_cache = False  # with a cache, transformers 4 ignores the ends of documents in position_ids
    trainer = trainer_for(model, rows, arguments(str(tmp_path), 2), callbacks=[collect])
    trainer.data_collator = collated
    attach(trainer, objective)
    trainer.train()
    net, batch = build("llama"), collated(rows)
    logits = net(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    moved = {"position_ids": shift_left(batch["position_ids"], 0)}
    moved |= {name: shift_left(batch[name], 0) for name in ("token_weights", "position_weights")}
    soft = SoftTargets.from_batch(batch)
    assert soft is not None
    objective(logits, batch["shift_labels"], soft=soft.shifted(), **moved).loss.backward()
    assert_same(collect.grads, gradients(net))


def test_label_smoothing_mixes_the_soft_target_with_all_tokens(tmp_path):
    collect, rows = Collect(), Case(fields="both").rows
    trainer = trainer_for(build("llama"), rows, arguments(str(tmp_path), 2, label_smoothing_factor=0.2), callbacks=[collect])
    attach(trainer, Case().objective)
    trainer.train()
    net, (batch, fields) = build("llama"), split(collate(rows))
    ce, numeric = parts_of(Case().objective, net(**batch).logits, batch["labels"], fields, shift=True, smoothing=0.2)
    (ce + 0.7 * numeric).backward()
    assert_same(collect.grads, gradients(net))


def expected_parts(case: Case, rows: list[dict[str, Any]]) -> tuple[float, float]:
    batch, fields = split(collate(rows))
    with torch.no_grad():
        logits = build(case.model)(**batch).logits
    ce, numeric = parts_of(case.objective, logits, batch["labels"], fields, shift=case.model not in cases.SEQUENCE_TO_SEQUENCE)
    return ce.item(), numeric.item()


@pytest.mark.parametrize("loss_only", [True, False])
@pytest.mark.parametrize("normalize", ["numeric", "tokens"])
def test_an_evaluation_of_the_whole_set(loss_only, normalize, tmp_path):
    case = Case(normalize=normalize, fields="both")
    settings = {"per_device_eval_batch_size": 3, "prediction_loss_only": loss_only, "include_for_metrics": ["inputs", "loss"]}
    trainer = trainer_for(build("llama"), [], arguments(str(tmp_path), **settings))
    attach(trainer, case.objective)
    ce, numeric = expected_parts(case, case.rows)
    metrics = trainer.evaluate(case.rows) | trainer.predict(case.rows).metrics
    for prefix in ("eval", "test"):
        assert metrics[f"{prefix}_loss/cross_entropy"] == pytest.approx(ce, rel=1e-6)
        assert metrics[f"{prefix}_loss/numeric"] == pytest.approx(numeric, rel=1e-6)
        assert metrics[f"{prefix}_loss"] == pytest.approx(ce + 0.7 * numeric, rel=1e-6)
    labels = collate(case.rows)["labels"][:, 1:]
    share = (cases.VOCAB.index_of(labels) >= 0).sum() / (labels != -100).sum()  # weights do not change what a token is
    assert metrics["eval_numeric/share"] == pytest.approx(share.item())


def test_weights_that_sum_to_less_than_one(tmp_path):
    case = Case(fields="weights")
    rows = [row | {"token_weights": 1e-3 * row["token_weights"]} for row in case.rows]
    trainer = trainer_for(build("llama"), [], arguments(str(tmp_path)))
    attach(trainer, case.objective)
    assert trainer.evaluate(rows)["eval_loss/cross_entropy"] == pytest.approx(expected_parts(case, rows)[0], rel=1e-6)


def test_cross_entropy_alone(tmp_path):
    outcome = cases.run(Case(loss="none", fields="soft"))
    for logs, prefix in ((outcome.logs, ""), (outcome.evaluation, "eval_")):
        assert logs[f"{prefix}loss"] == cases.logged(logs[f"{prefix}loss/cross_entropy"])
        assert logs[f"{prefix}loss/numeric"] == 0.0
        assert 0 < logs[f"{prefix}numeric/share"] < 1
        assert f"{prefix}numeric/mass" not in logs
    trainer = trainer_for(build("llama"), Case(fields="soft").rows, arguments(str(tmp_path)))
    attach(trainer, NumericObjective(None))  # no vocabulary either
    trainer.train()
    logs = trainer.state.log_history[0] | trainer.evaluate(trainer.train_dataset)
    assert (logs["loss/numeric"], logs["numeric/share"]) == (0.0, 0.0)
    assert not {"numeric/overrun", "eval_numeric/overrun"} & logs.keys()


def test_an_evaluation_that_generates(tmp_path):
    """``predict_with_generate`` computes the model's own loss; the objective's replaces it."""
    case = Case("t5", fields="both")
    given = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False}
    given |= {"predict_with_generate": True, "generation_max_length": 4, "per_device_eval_batch_size": 3}
    args = Seq2SeqTrainingArguments(str(tmp_path), **given)
    trainer = Seq2SeqTrainer(build("t5"), args, data_collator=collate, compute_metrics=lambda _: {"ok": 1.0})
    attach(trainer, case.objective)
    metrics = trainer.evaluate(case.rows)
    ce, numeric = expected_parts(case, case.rows)
    assert metrics["eval_loss"] == pytest.approx(ce + 0.7 * numeric, rel=1e-6)
    assert (metrics["eval_loss/numeric"], metrics["eval_ok"]) == (pytest.approx(numeric, rel=1e-6), 1.0)


def test_a_prediction_without_labels(tmp_path):
    seen: list[set[str]] = []
    model = build("llama")
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(set(kwargs)), with_kwargs=True)
    trainer = trainer_for(model, [], arguments(str(tmp_path)))
    trainer.data_collator = lambda rows: {name: value for name, value in collate(rows).items() if name != "labels"}
    attach(trainer, Case().objective)
    assert trainer.predict(Case(fields="both").rows).predictions.shape[0] == EXAMPLES
    assert all(names == {"input_ids", "attention_mask"} for names in seen)


@pytest.mark.parametrize("kind", ["list", "datasets", "columns_known"])
def test_unused_columns_are_removed_but_not_these(kind, tmp_path):
    rows = [row | {"note": torch.tensor(1)} for row in Case(fields="both").rows]
    data: Any = rows
    if kind == "datasets":
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_list([{k: v.tolist() for k, v in row.items()} for row in rows])
    seen, collect = [], Collect()

    def collated(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(chosen[0].keys())
        doubles = (SOFT_FIELDS[2], "token_weights", "position_weights")
        return collate(
            [{k: torch.as_tensor(v, dtype=torch.float64 if k in doubles else None) for k, v in row.items()} for row in chosen]
        )

    trainer = trainer_for(build("llama"), data, arguments(str(tmp_path), 2, remove_unused_columns=True), callbacks=[collect])
    trainer.data_collator = collated
    if kind == "columns_known":
        trainer._set_signature_columns_if_needed()
    before, known = vars(trainer).keys() | {"_signature_columns"}, trainer._signature_columns
    attached = attach(trainer, Case().objective)
    next(iter(trainer.get_train_dataloader()))
    assert set(seen[0]) == {"input_ids", "labels", *LABEL_FIELDS}
    attached.detach()
    assert (trainer._signature_columns, vars(trainer).keys()) == (known, before)
    seen.clear()
    next(iter(trainer.get_train_dataloader()))
    assert set(seen[0]) == {"input_ids", "labels"}
    attach(trainer, Case().objective)
    trainer.train()
    assert_same(collect.grads, cases.reference(Case(fields="both")))


def train_with(tmp_path: Any, change: Any, **patched: Any) -> None:
    def collated(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        return change(collate(chosen))

    trainer = trainer_for(build("llama"), Case(fields="both").rows, arguments(str(tmp_path)))
    trainer.data_collator = collated
    attach(trainer, NumericObjective(None))
    for name, value in patched.items():
        setattr(trainer, name, value)
    trainer.train()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda batch: {"token_weights": batch["token_weights"][:, 1:]},
            r"token_weights has shape \(8, 19\) and labels \(8, 20\)",
        ),
        (lambda batch: {"soft_token_ids": None}, "the batch has soft_positions, soft_probabilities: expected all of"),
        (lambda batch: {"soft_positions": batch["soft_positions"] + 9}, r"soft.positions holds \d+: expected an index below 20"),
    ],
    ids=["weights", "incomplete", "positions"],
)
def test_fields_that_do_not_fit(change, message, tmp_path):
    def changed(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in (batch | change(batch)).items() if value is not None}

    with pytest.raises(ValueError, match=message):
        train_with(tmp_path, changed)


def test_deepspeed_does_not_round_them(tmp_path, monkeypatch):
    trainer = trainer_for(build("llama"), [], arguments(str(tmp_path)))
    attach(trainer, NumericObjective(None))
    config = SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: torch.bfloat16))
    monkeypatch.setattr(type(trainer.accelerator.state), "deepspeed_plugin", config)
    monkeypatch.setattr(trainer, "is_deepspeed_enabled", True)
    batch = collate(Case("qwen2_vl", fields="both").rows)
    prepared = trainer._prepare_inputs(batch)
    assert prepared["pixel_values"].dtype == torch.bfloat16
    assert all(torch.equal(prepared[name], batch[name]) and prepared[name].dtype == batch[name].dtype for name in LABEL_FIELDS)


def test_sequences_that_are_split_over_processes(tmp_path):
    with pytest.raises(NotImplementedError, match="soft labels .* with sequence parallelism over 2 processes: DeepSpeed"):
        train_with(tmp_path, lambda batch: batch, get_sp_size=lambda: 2)


class ChangesLabels(models.hf.GPT2LMHeadModel):
    """Trains on one of the labels twice and on another not at all: as many tokens, at other positions."""

    def forward(self, input_ids, labels=None, **kwargs):
        if labels is not None:
            labels = torch.cat([labels[:, :1], labels[:, 1:].flip(1)], 1)
        return super().forward(input_ids, labels=labels, **kwargs)


def test_a_model_that_changes_labels(tmp_path):
    model = models.built(lambda: ChangesLabels(models.MODELS["gpt2"]().config))
    rows = [row | {"labels": row["input_ids"].clone()} for row in dataset("llama", padded=False)]
    args = arguments(str(tmp_path))
    plain = trainer_for(model, rows, args)
    attach(plain, NumericObjective(None))
    plain.train()
    softened = trainer_for(model, with_fields(rows, "soft"), args)
    attach(softened, NumericObjective(None))
    with pytest.raises(
        NotImplementedError, match="ChangesLabels trains on other labels than the batch's, and the batch has soft"
    ):
        softened.train()
