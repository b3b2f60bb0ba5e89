"""attach: one forward pass, the gradient of the whole step, and a trainer that is restored."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.trainers.cases import (
    BART,
    EXAMPLES,
    MODELS,
    SMALL,
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
    llama,
    lora,
    reference,
    step,
    trainer_for,
)
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Trainer,
)

from numerate import LOSSES, NumericObjective
from numerate.integrations.lazy_logits import LazyHead, LazyLogits
from numerate.integrations.transformers import attach, compute_loss_func


@pytest.mark.parametrize(
    ("model", "normalize", "padded", "accumulation"),
    [
        ("llama", "numeric", True, 1),
        ("llama", "numeric", False, 4),
        ("llama", "tokens", False, 1),
        *((model, "tokens", True, 4) for model in MODELS),
    ],
)
def test_the_gradient_of_a_step(model, normalize, padded, accumulation):
    case = Case(model, "ntil", normalize, padded)
    assert_same(step(case, accumulation), reference(case))


@pytest.mark.parametrize("loss", ["smmd", "number", "gaussian_ce"])  # the last reads the whole vocabulary
def test_other_losses(loss):
    case = Case("llama", loss)
    assert_same(step(case, 4), reference(case))


def run(tmp_path, model, objective=None, accumulation=1, rows=None, **settings):
    """Attach and train a step; return trainer, attachment and gradients."""
    collect = Collect()
    rows = dataset("llama", padded=True) if rows is None else rows
    trainer = trainer_for(model, rows, arguments(str(tmp_path), accumulation, **settings), callbacks=[collect])
    attachment = attach(trainer, Case().objective if objective is None else objective)
    trainer.train()
    return trainer, attachment, collect.grads


def plain(model, objective, rows=None):
    """Return gradients, cross-entropy and numeric term by autograd, from the logits of one batch."""
    batch = collate(dataset("llama", padded=True) if rows is None else rows)
    labels = batch.pop("labels")
    logits = model(**batch).logits[:, :-1]
    labels = labels[:, 1:]
    ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=objective.label_smoothing)
    numeric = objective.numeric_loss(logits, labels)
    (ce + objective.weight * numeric).backward()
    return gradients(model), ce.item(), numeric.item()


# The head


@pytest.mark.parametrize(
    ("settings", "fused"),
    [
        ({"target_modules": ["q_proj", "v_proj"]}, True),
        ({"target_modules": ["q_proj", "lm_head"]}, False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, True),
    ],
    ids=["attention", "lm_head", "modules_to_save"],
)
def test_peft(settings, fused, tmp_path, monkeypatch):
    expected, _, _ = plain(lora(**settings), Case().objective)
    calls = count_fused(monkeypatch)
    warning = pytest.warns(UserWarning, match=r"logits of the whole batch will be built: the head is a peft\S*Linear")
    with nullcontext() if fused else warning:
        _, _, found = run(tmp_path, lora(**settings), accumulation=4)
    assert_same(found, expected)
    assert len(calls) == (4 if fused else 0)
    assert any("lm_head" in name for name in found) == ("lm_head" in str(settings))


def count_fused(monkeypatch):
    calls, fused = [], NumericObjective.fused

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return fused(*args, **kwargs)

    monkeypatch.setattr(NumericObjective, "fused", counted)
    return calls


@pytest.mark.parametrize(
    ("make", "noted"),
    [
        (lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=0.3)), {"softcap": 0.3}),
        (lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=3.0)), {"logit_scale": 3.0}),
        (lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=0.25)), {"logit_scale": 4.0}),
    ],
    ids=["gemma2", "cohere", "granite"],
)
def test_what_a_model_does_to_its_logits_is_done(make, noted, tmp_path, monkeypatch):
    def built():
        torch.manual_seed(0)
        return make().double().train()

    expected, _, _ = plain(built(), Case().objective)
    calls = count_fused(monkeypatch)
    _, _, found = run(tmp_path, built(), accumulation=2)
    assert_same(found, expected)
    assert len(calls) == 2
    for name, value in noted.items():
        assert calls[0][name] == pytest.approx(value)


def test_a_bias_after_the_head_is_fused(tmp_path, monkeypatch):
    def built():
        torch.manual_seed(0)
        model = BartForConditionalGeneration(BartConfig(**BART)).double().train()
        model.final_logits_bias.copy_(torch.linspace(-1, 1, VOCAB_SIZE))
        return model

    model = built()
    batch = collate(dataset("llama", padded=True))
    Case().objective(model(**batch).logits, batch["labels"]).loss.backward()
    calls = count_fused(monkeypatch)
    _, _, found = run(tmp_path, built(), accumulation=2)
    assert_same(found, gradients(model))
    assert len(calls) == 2


def test_no_logits_are_built(tmp_path):
    """Neither in training nor in evaluation."""
    args = arguments(str(tmp_path), prediction_loss_only=True)
    trainer = trainer_for(build("llama"), dataset("llama", padded=True), args)
    attach(trainer, Case().objective)
    with mock.patch.object(LazyHead, "compute", autospec=True, side_effect=LazyHead.compute) as compute:
        trainer.train()
        trainer.evaluate(trainer.train_dataset)
        assert compute.call_count == 0
        trainer.args.prediction_loss_only = False
        trainer.predict(trainer.train_dataset)
        assert compute.call_count == 2  # one for each batch


def test_one_forward_per_micro_batch(tmp_path):
    model = build("llama")
    calls = []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    run(tmp_path, model, accumulation=4)
    assert len(calls) == 4


# Logs, evaluation, label smoothing


def test_parts_are_means_over_logged_steps(tmp_path):
    trainer, _, _ = run(tmp_path, build("llama"), max_steps=3, learning_rate=0.0)
    first = trainer.state.log_history[0]
    again, _, _ = run(tmp_path, build("llama"), max_steps=3, learning_rate=0.0, logging_steps=3)
    for name in ("loss", "loss/cross_entropy", "loss/numeric", "numeric/share", "numeric/mass"):
        assert again.state.log_history[0][name] == pytest.approx(first[name], rel=1e-4), name


def test_metrics_get_real_logits(tmp_path):
    rows, seen = dataset("llama", padded=True), []
    args = arguments(str(tmp_path), per_device_eval_batch_size=EXAMPLES)
    trainer = trainer_for(build("llama"), rows, args, eval_dataset=rows, compute_metrics=lambda p: seen.append(p) or {"ok": 1.0})
    attach(trainer, Case().objective)
    trainer.evaluate()
    batch = collate(rows)
    expected = build("llama").eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert torch.allclose(torch.tensor(seen[0].predictions), expected.detach(), atol=1e-10)


def test_label_smoothing_of_the_trainer(tmp_path):
    objective = NumericObjective(LOSSES["ntil"](VOCAB), weight=0.7, label_smoothing=0.2)
    expected, _, _ = plain(build("llama"), objective)
    mine = Case().objective
    _, _, found = run(tmp_path, build("llama"), mine, accumulation=2, label_smoothing_factor=0.2)
    assert_same(found, expected)
    assert mine.label_smoothing == 0.0
    trainer = trainer_for(build("llama"), [], arguments(str(tmp_path), label_smoothing_factor=0.1))
    with pytest.raises(ValueError, match=r"label_smoothing=0\.2 of the objective contradicts label_smoothing_factor=0\.1"):
        attach(trainer, objective)


# Restoring the trainer


def test_detach_leaves_everything_as_it_was(tmp_path):
    model = build("llama")
    trainer = trainer_for(model, dataset("llama", padded=True), arguments(str(tmp_path), label_smoothing_factor=0.1))
    before = [dict(vars(owner)) for owner in (trainer, model, model.lm_head)]
    attachment = attach(trainer, Case().objective)
    assert "compute_loss" in vars(trainer)
    attachment.detach()
    attachment.detach()  # a second call does nothing
    for owner, was in zip((trainer, model, model.lm_head), before, strict=True):
        assert vars(owner).keys() == was.keys()
        assert all(vars(owner)[name] is value for name, value in was.items())
    attach(trainer, Case().objective).detach()


def test_a_model_called_by_hand_works_while_attached(tmp_path):
    model = build("llama")
    trainer = trainer_for(model, dataset("llama", padded=True), arguments(str(tmp_path)))
    batch = collate(dataset("llama", padded=True))
    expected = model(input_ids=batch["input_ids"]).logits
    attach(trainer, Case().objective)
    assert torch.equal(model(input_ids=batch["input_ids"]).logits, expected)
    assert model.generate(batch["input_ids"][:1, :4], max_new_tokens=2, do_sample=False).shape == (1, 6)
    own = F.cross_entropy(expected[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert torch.allclose(model(**batch).loss.double(), own)  # the model's own loss


# compute_loss_func


@pytest.mark.parametrize(("model", "accumulation"), [("llama", 1), ("llama", 4), ("t5", 4)])
def test_compute_loss_func(model, accumulation, tmp_path):
    case, net, collect = Case(model, normalize="tokens"), build(model), Collect()

    def with_decoder_inputs(chosen):
        batch = collate(chosen)
        return batch | {"decoder_input_ids": net.prepare_decoder_input_ids_from_labels(batch["labels"])}

    func = compute_loss_func(case.objective, net)
    trainer = trainer_for(net, case.rows, arguments(str(tmp_path), accumulation), callbacks=[collect], compute_loss_func=func)
    if model == "t5":
        trainer.data_collator = with_decoder_inputs
    trainer.train()
    assert_same(collect.grads, reference(case))


def test_compute_loss_func_refuses_what_it_cannot_count(tmp_path):
    rows = dataset("llama", padded=True)
    func = compute_loss_func(Case(normalize="numeric").objective, shift=True)
    trainer = trainer_for(build("llama"), rows, arguments(str(tmp_path), 4), compute_loss_func=func)
    with pytest.raises(ValueError, match=r"normalize='tokens'\), or use attach"):
        trainer.train()
    trainer = trainer_for(build("llama"), rows, arguments(str(tmp_path), 1), compute_loss_func=func)
    trainer.train()


# What is refused


def test_refusals(tmp_path):
    from transformers import LlamaForSequenceClassification

    args, objective = arguments(str(tmp_path)), Case().objective
    with pytest.raises(ValueError, match="has a compute_loss_func"):
        attach(trainer_for(build("llama"), [], args, compute_loss_func=lambda *_: None), objective)
    trainer = trainer_for(build("llama"), [], args)
    attach(trainer, objective)
    with pytest.raises(RuntimeError, match="replaced already"):
        attach(trainer, objective)
    classifier = LlamaForSequenceClassification(llama().config)
    with pytest.raises(TypeError, match="predicts no tokens"):
        attach(Trainer(classifier, args), objective)

    trainer = trainer_for(build("llama"), [{"input_ids": torch.tensor([1, 2])}] * EXAMPLES, args)
    trainer.data_collator = lambda rows: {"input_ids": torch.stack([row["input_ids"] for row in rows])}
    attach(trainer, objective)
    with pytest.raises(
        ValueError, match="no labels: expected labels from the dataset or the data collator, such as DataCollator"
    ):
        trainer.train()


# Lazy logits by themselves


def lazy(weight_dtype=torch.float32, hidden_dtype=torch.float32):
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, VOCAB_SIZE).to(weight_dtype)
    head = LazyHead(linear)
    hidden = torch.randn(2, 3, 6, dtype=hidden_dtype, requires_grad=True)
    with head.deferred():
        return linear, head, hidden, linear(hidden)


@pytest.mark.parametrize("shape", ["plain", "scaled", "capped", "capped_twice", "negative", "by_tensor"])
def test_lazy_objective_is_the_real_one(shape):
    shapes = {
        "plain": lambda x: x,
        "scaled": lambda x: 3 * x / 2,
        "capped": lambda x: torch.tanh(2 * x / 5) * 5,
        "capped_twice": lambda x: torch.tanh(torch.tanh(x)),  # cannot be recorded: real logits
        "negative": lambda x: -2 * torch.tanh(x),
        "by_tensor": lambda x: x * torch.full((), 2.0),
    }
    linear, _, hidden, logits = lazy()
    labels = torch.tensor([[1, 12, 3], [-100, 7, 10]])
    objective = NumericObjective(LOSSES["smmd"](VOCAB))
    out = shapes[shape](logits)
    made = out.objective(objective, labels) if isinstance(out, LazyLogits) else objective(out, labels)
    grads = torch.autograd.grad(made.loss, (hidden, linear.weight, linear.bias))
    real = objective(shapes[shape](torch.nn.functional.linear(hidden, linear.weight, linear.bias)), labels)
    for a, b in zip(grads, torch.autograd.grad(real.loss, (hidden, linear.weight, linear.bias)), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_head_in_float32_above_a_narrow_model():
    """QLoRA leaves the head in float32."""
    linear, _, hidden, logits = lazy(torch.float32, torch.bfloat16)
    out = logits.objective(NumericObjective(LOSSES["smmd"](VOCAB)), torch.tensor([[1, 12, 3], [-100, 7, 10]]))
    out.loss.backward()
    assert hidden.grad.dtype == torch.bfloat16
    assert linear.weight.grad.dtype == torch.float32
    assert (logits.type(), logits.double().type()) == ("torch.BFloat16Tensor", "torch.DoubleTensor")


def test_in_place_changes_are_seen():
    linear, _, hidden, logits = lazy()
    logits[..., 5] = -1e9
    out = logits.objective(NumericObjective(LOSSES["smmd"](VOCAB)), torch.tensor([[1, 12, 3], [-100, 7, 10]]))
    real = torch.nn.functional.linear(hidden, linear.weight, linear.bias).clone()
    real[..., 5] = -1e9
    expected = NumericObjective(LOSSES["smmd"](VOCAB))(real, torch.tensor([[1, 12, 3], [-100, 7, 10]]))
    assert torch.allclose(out.loss, expected.loss)


# Trainers that override compute_loss


class Counted(Trainer):
    calls = 0

    def compute_loss(self, model, inputs, *args, **kwargs):
        type(self).calls += 1
        return super().compute_loss(model, inputs, *args, **kwargs)


class Twice(Counted):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class Changes(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss / 2, outputs) if return_outputs else loss / 2


class ChangesInPlace(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss.mul_(2), outputs) if return_outputs else loss.mul_(2)


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Explicit(Trainer):
    """Calls ``Trainer`` by name, which skips the objective."""

    def compute_loss(self, *args, **kwargs):
        return Trainer.compute_loss(self, *args, **kwargs)


def trainer_of(kind, folder, accumulation=1):
    collect, rows = Collect(), dataset("llama", padded=True)
    data = {"train_dataset": rows, "eval_dataset": rows, "data_collator": collate}
    return kind(build("llama"), arguments(str(folder), accumulation), callbacks=[collect], **data), collect


@pytest.mark.parametrize(("kind", "accumulation"), [(Counted, 1), (Twice, 4)])
def test_an_override_that_ends_in_super(kind, accumulation, tmp_path):
    Counted.calls = kind.calls = 0
    trainer, collect = trainer_of(kind, tmp_path, accumulation)
    attachment = attach(trainer, Case().objective)
    assert isinstance(trainer, kind)
    trainer.train()
    assert type(trainer).calls == accumulation
    assert_same(collect.grads, reference(Case()))
    assert "eval_loss/numeric" in trainer.evaluate()
    with pytest.raises(RuntimeError, match="replaced already"):
        attach(trainer, Case().objective)
    attachment.detach()
    assert type(trainer) is kind
    assert "compute_loss" not in vars(trainer)


@pytest.mark.parametrize("kind", [Changes, ChangesInPlace, Own, Explicit])
def test_an_override_that_trains_with_something_else(kind, tmp_path):
    trainer, _ = trainer_of(kind, tmp_path)
    attach(trainer, Case().objective)
    for run in (trainer.train, trainer.evaluate):
        with pytest.raises(TypeError, match=rf"{kind.__name__}.compute_loss does not return the loss of super\(\).compute_loss"):
            run()
