"""attach with everything a trainer does: replaced models, several evaluation sets, steps by hand, copies, wrong arguments."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.trainers.cases import (
    TEXTS,
    VOCAB,
    VOCAB_SIZE,
    Case,
    Collect,
    arguments,
    assert_same,
    build,
    collate,
    dataset,
    gradients,
    prompt_tuning,
    reference,
    trainer_for,
)
from tests.integrations.trainers.ends import overrun_of
from transformers import Trainer

from numerate import LOSSES, NumericObjective, SMMDLoss
from numerate.integrations.lazy_logits import LazyHead, LazyLogits
from numerate.integrations.step import repeated_rows
from numerate.integrations.transformers import attach, compute_loss_func

PARTS = ("loss", "loss/cross_entropy", "loss/numeric", "numeric/share", "numeric/mass", "numeric/overrun")


def one_batch(model, rows, objective=None):
    """Return gradients and parts of all rows in one batch, by autograd."""
    batch = collate(rows)
    labels = batch.pop("labels")[:, 1:]
    logits = model(**batch).logits[:, :-1]
    out = (Case().objective if objective is None else objective)(logits, labels, with_mass=True)
    share = (VOCAB.index_of(labels) >= 0).sum() / (labels != -100).sum()
    overrun = torch.tensor(overrun_of(logits, labels, TEXTS))
    parts = zip(PARTS, (out.loss, out.cross_entropy, out.numeric, share, out.mass, overrun), strict=True)
    if out.loss.requires_grad:
        out.loss.backward()
    return gradients(model), {name: part.item() for name, part in parts}


# The model is replaced after attach


def test_a_model_made_anew_for_each_training(tmp_path):
    """``model_init`` makes a model with the trainer, and a new one for each training."""
    rows, made, collect = dataset("llama", padded=True)[:6], [], Collect()
    expected, parts = one_batch(build("llama"), rows)

    def init():
        made.append(build("llama"))
        return made[-1]

    args = arguments(str(tmp_path), 3, per_device_train_batch_size=2)
    trainer = Trainer(None, args, train_dataset=rows, data_collator=collate, model_init=init, callbacks=[collect])
    objective = Case().objective
    attachment = attach(trainer, objective)
    for trainings in (1, 2):
        trainer.train()
        assert trainer.model is made[-1]
        assert len(made) == trainings + 1
        assert_same(collect.grads, expected)
        logs = [logs for logs in trainer.state.log_history if "loss" in logs][-1]
        assert {name: logs[name] for name in PARTS} == pytest.approx(parts, rel=1e-5)
        assert objective.fused_calls == 3 * trainings
    attachment.detach()
    assert all("_loss_function" not in vars(model) for model in made)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:logits of the whole batch will be built. the model is compiled")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model(tmp_path):
    case, collect = Case("t5", padded=False, fields="both"), Collect()
    args = arguments(str(tmp_path), 2, torch_compile=True, torch_compile_backend="eager")
    trainer = trainer_for(build(case.model), case.rows, args, callbacks=[collect])
    attach(trainer, case.objective)
    trainer.train()
    assert_same(collect.grads, reference(case))


# Evaluation


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A trainer that evaluates one example at a time."""
    args = arguments(str(tmp_path_factory.mktemp("eval")), per_device_eval_batch_size=1)
    trainer = trainer_for(build("llama"), dataset("llama", padded=True), args)
    attach(trainer, Case().objective)
    return trainer


def whole(rows):
    with torch.no_grad():
        return one_batch(build("llama"), rows)[1]


def taken(metrics, prefix):
    return {name: metrics[f"{prefix}_{name}"] for name in PARTS}


def test_parts_of_an_evaluation_are_those_of_the_whole_set(evaluated):
    """Of each set, and of a prediction; none leaves anything to the next."""
    rows = dataset("llama", padded=True)
    few, many = rows[:3], rows[3:]
    metrics = evaluated.evaluate({"few": few, "many": many}) | evaluated.evaluate(rows) | evaluated.predict(many).metrics
    metrics |= evaluated.predict(few, metric_key_prefix="mine").metrics
    for prefix, some in {"eval_few": few, "eval_many": many, "eval": rows, "test": many, "mine": few}.items():
        assert taken(metrics, prefix) == pytest.approx(whole(some), rel=1e-5)
    assert taken(evaluated.evaluate(few), "eval") == pytest.approx(whole(few), rel=1e-5)
    assert taken(evaluated.state.log_history[-1], "eval") == pytest.approx(whole(few), rel=1e-5)


def test_a_broken_evaluation_leaves_nothing_to_the_next(evaluated, monkeypatch):
    rows = dataset("llama", padded=True)
    monkeypatch.setattr(evaluated, "preprocess_logits_for_metrics", None)
    evaluated.compute_metrics = lambda prediction: 1 / 0
    with pytest.raises(ZeroDivisionError):
        evaluated.evaluate(rows)
    evaluated.compute_metrics = None
    assert taken(evaluated.evaluate(rows[:2]), "eval") == pytest.approx(whole(rows[:2]), rel=1e-5)


def test_parts_by_tokens_and_matched(tmp_path):
    rows = dataset("llama", padded=True)
    for settings in ({"normalize": "tokens"}, {"scale": "match_ce"}):
        objective = NumericObjective(LOSSES["ntil"](VOCAB), weight=0.7, **settings)
        trainer = trainer_for(build("llama"), rows, arguments(str(tmp_path), per_device_eval_batch_size=3))
        attach(trainer, objective)
        with torch.no_grad():
            expected = one_batch(build("llama"), rows, objective)[1]
        assert taken(trainer.evaluate(rows), "eval") == pytest.approx(expected, rel=1e-5)


# Steps by hand, label smoothing, copies, a second trainer


def test_a_step_by_hand_after_training(tmp_path):
    """Its loss is the mean over its batch, divided by the accumulation steps, as without attach."""
    accumulation = 2
    rows = dataset("llama", padded=True)
    trainer = trainer_for(build("llama"), rows, arguments(str(tmp_path), accumulation, learning_rate=0.0))
    attach(trainer, Case().objective)
    trainer.train()
    trainer.model.zero_grad()
    loss = trainer.training_step(trainer.model, collate(rows[:3]))
    expected, parts = one_batch(build("llama"), rows[:3])
    assert float(loss) == pytest.approx(parts["loss"] / accumulation, rel=1e-5)
    assert_same(gradients(trainer.model), {name: grad / accumulation for name, grad in expected.items()})


def test_a_model_is_copied_without_its_trainer(tmp_path):
    model = build("llama")
    rows = dataset("llama", padded=True)
    trainer = trainer_for(model, rows, arguments(str(tmp_path), learning_rate=0.0))
    attach(trainer, Case().objective)
    trainer.train()
    file = io.BytesIO()
    torch.save(model, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), saved):
        assert "_loss_function" not in vars(other)
        assert "forward" not in vars(other.lm_head)
        batch = collate(rows)
        logits = other(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        own = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        assert other(**batch).loss.item() == pytest.approx(own.item(), rel=1e-5)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: expected a detached one; call .detach\(\)"):
            copied(trainer.compute_loss)


def test_a_second_trainer_on_the_same_model(tmp_path):
    """Each trainer has its own loss: cross-entropy without an objective, or another objective."""
    model, rows = build("llama"), dataset("llama", padded=True)
    trainer = trainer_for(model, rows, arguments(str(tmp_path / "a"), learning_rate=0.0))
    attach(trainer, Case().objective)
    trainer.train()
    plain, other = Collect(), Collect()
    trainer_for(model, rows, arguments(str(tmp_path / "b"), 2, learning_rate=0.0), callbacks=[plain]).train()
    nothing = NumericObjective(LOSSES["ntil"](VOCAB), weight=0.0)
    found = {name: grad.float() for name, grad in plain.grads.items()}  # the model's own loss is in float32
    assert_same(found, {name: grad.float() for name, grad in one_batch(build("llama"), rows, nothing)[0].items()})
    second = trainer_for(model, rows, arguments(str(tmp_path / "c"), 2, learning_rate=0.0), callbacks=[other])
    attach(second, Case(loss="smmd").objective)
    second.train()
    assert_same(other.grads, one_batch(build("llama"), rows, Case(loss="smmd").objective)[0])


# Prompt tuning, EncoderDecoderModel


@pytest.mark.parametrize(("loss", "accumulation"), [("ntil", 4), ("smmd", 1)])
@pytest.mark.filterwarnings("ignore:Position ids are not supported")
def test_prompt_tuning(loss, accumulation, tmp_path):
    """The last virtual token predicts the first label, and position_ids cover the text only."""
    rows = dataset("llama", padded=False)
    for row in rows:
        row["labels"] = row["input_ids"].clone()

    def collated(chosen):
        batch = collate(chosen)
        positions = torch.arange(batch["labels"].shape[1]) % 7  # packed documents
        return batch | {"position_ids": positions.expand_as(batch["labels"])}

    collect = Collect()
    trainer = trainer_for(prompt_tuning(), rows, arguments(str(tmp_path), accumulation), callbacks=[collect])
    trainer.data_collator = collated
    attach(trainer, Case(loss=loss).objective)
    trainer.train()
    net, batch = prompt_tuning(), collated(rows)
    logits = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 2:-1]
    Case(loss=loss).objective(logits, batch["labels"], position_ids=batch["position_ids"]).loss.backward()
    assert_same(collect.grads, gradients(net))


# Wrong arguments


def test_what_is_no_trainer_or_objective(tmp_path):
    model, objective = build("llama"), Case().objective
    trainer = trainer_for(model, [], arguments(str(tmp_path)))
    with pytest.raises(TypeError, match=r"trainer is a LlamaForCausalLM: expected a transformers Trainer; call attach\(Trainer"):
        attach(model, objective)
    for wrong, name in ((SMMDLoss(VOCAB), "SMMDLoss"), (LOSSES["ntil"](VOCAB), "NTILLoss"), (model, "SMMD")):
        message = rf"objective is a {type(wrong).__name__}: expected a NumericObjective; pass NumericObjective\({name}"
        with pytest.raises(TypeError, match=message):
            compute_loss_func(wrong, model)
    with pytest.raises(TypeError, match="loss is a LlamaForCausalLM: expected a name of numerate.LOSSES, a numeric loss"):
        attach(trainer, model)
    assert "compute_loss" not in vars(trainer)


# Lazy logits


@pytest.mark.parametrize(
    "see",
    [
        lambda x: x.view(-1, VOCAB_SIZE),
        lambda x: x.reshape((6, -1)),
        lambda x: x[..., :-1, :],
        lambda x: x[:, 1:],
        lambda x: x[:, 1:].contiguous().view(-1, x.size(-1)),
        lambda x: (x + torch.arange(float(VOCAB_SIZE))[None])[..., 1:, :] * 2,
    ],
)
def test_views_of_lazy_logits(see):
    linear = torch.nn.Linear(6, VOCAB_SIZE)
    head = LazyHead(linear)
    hidden = torch.randn(2, 3, 6)
    with head.deferred():
        lazy = see(linear(hidden))
    real = see(linear(hidden))
    assert isinstance(lazy, LazyLogits)
    assert lazy.shape == real.shape
    labels = torch.arange(real.shape[:-1].numel()).reshape(real.shape[:-1])
    objective = NumericObjective(SMMDLoss(VOCAB))
    assert lazy.objective(objective, labels).loss.item() == pytest.approx(objective(real, labels).loss.item(), rel=1e-5)
    assert not lazy.is_computed
    assert torch.allclose(lazy.detach(), real)


@pytest.mark.parametrize(
    "see", [lambda x: x[..., :-1], lambda x: x.view(-1), lambda x: x[0], lambda x: x[x[..., 0] > 0], lambda x: x.mT]
)
def test_views_that_cut_the_vocabulary_are_real(see):
    linear = torch.nn.Linear(6, VOCAB_SIZE)
    head = LazyHead(linear)
    hidden = torch.randn(2, 3, 6)
    with head.deferred():
        found = see(linear(hidden))
    assert not isinstance(found, LazyLogits)
    assert torch.equal(found, see(linear(hidden)))


def test_a_change_in_place_is_seen_by_views():
    linear = torch.nn.Linear(6, VOCAB_SIZE)
    head = LazyHead(linear)
    with torch.no_grad(), head.deferred():
        logits = linear(torch.randn(2, 3, 6))
        flat = logits.view(-1, VOCAB_SIZE)
        logits[..., 5] = -1e9
        assert flat.is_computed
        assert bool((flat[:, 5] == -1e9).all())


# What an evaluation cannot know on several processes


@pytest.mark.parametrize("drop_last", [True, False])
def test_repeated_rows_of_an_iterable_dataset_are_not_known(drop_last):
    from types import SimpleNamespace

    from accelerate.data_loader import IterableDatasetShard

    loader = SimpleNamespace(dataset=IterableDatasetShard([1, 2, 3], batch_size=1, num_processes=2, drop_last=drop_last))
    state = SimpleNamespace(active_dataloader=loader, end_of_dataloader=True, remainder=-1)
    accelerator = SimpleNamespace(gradient_state=state, num_processes=2, process_index=0)
    if drop_last:
        assert repeated_rows(torch.zeros(1, 3), accelerator, 1) is None
        return
    with pytest.raises(ValueError, match="dispatch_batches=False and an IterableDataset.* Expected dispatch_batches=True"):
        repeated_rows(torch.zeros(1, 3), accelerator, 1)
