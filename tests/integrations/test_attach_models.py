"""attach on models with a loss of their own: a router's, another one, in half precision. test_architectures.py has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tests.integrations.trainers.cases import (
    BART,
    PAD,
    SMALL,
    VOCAB,
    VOCAB_SIZE,
    Collect,
    arguments,
    assert_same,
    collate,
    dataset,
    gradients,
    trainer_for,
)
from torch import nn

from numerate import LOSSES, NumericObjective
from numerate.integrations.alignment import AS_THEY_ARE, agreeing
from numerate.integrations.alignment import SHIFTED as SHIFTED_BY_ONE
from numerate.integrations.transformers import attach, compute_loss_func, shifts_labels

ROWS = 6


BERT = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD}
GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
GPT2 |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5, "output_router_logits": True}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**BERT)),
    "bart": lambda: hf.BartForCausalLM(hf.BartConfig(**BART, is_decoder=True, is_encoder_decoder=False)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**SMALL, **EXPERTS)),
}


def rows() -> list[dict[str, Any]]:
    """Return examples of one length whose first token has a label: it counts only if labels are not shifted."""
    found = dataset("llama", padded=False)[:ROWS]
    for row in found:
        row["labels"] = row["input_ids"].clone()
    return found


def built(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    model = make().to(dtype).train()
    with torch.no_grad():  # with small weights, logits hardly differ
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return model


def objective(**settings: Any) -> NumericObjective:
    return NumericObjective(LOSSES["ntil"](VOCAB, **settings), weight=0.7)


def trained(folder: Any, model: nn.Module, accumulation: int) -> Any:
    """Attach and train one step; return the trainer, its gradients and its micro-batches."""
    seen: list[dict[str, Any]] = []
    collect = Collect()
    args = arguments(str(folder), accumulation, per_device_train_batch_size=ROWS // accumulation)
    trainer = trainer_for(model, rows(), args, callbacks=[collect])
    trainer.data_collator = lambda chosen: seen.append(collate(chosen)) or dict(seen[-1])
    attach(trainer, objective())
    trainer.train()
    return trainer, collect.grads, seen


def expected(model: nn.Module, batches: list[dict[str, Any]], *, shift: bool) -> tuple[dict[str, Any], float]:
    """Compute the step by autograd: sums over the step's counts, and the mean of what the model adds to its cross-entropy."""
    function, total, outs = objective(), torch.zeros(()), []
    for batch in batches:
        out, labels = model(**batch), batch["labels"]
        logits = out.logits[:, -labels.shape[1] :]
        outs.append((out.loss, *((logits[:, :-1], labels[:, 1:]) if shift else (logits, labels))))
    items, numbers = (sum(counts) for counts in zip(*(function.count(labels) for *_, labels in outs), strict=True))
    for own, logits, labels in outs:
        total = total + function(logits, labels, num_items=items, num_units=numbers).loss
        rest = own - F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if abs(rest.item()) > 1e-4:  # below this it is rounding: some models' own loss is in float32
            total = total + rest / len(batches)
    total.backward()
    return gradients(model), total.item()


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_routers_loss_is_a_mean_over_micro_batches(accumulation, tmp_path):
    trainer, found, batches = trained(tmp_path, built(MODELS["mixtral"], torch.float32), accumulation)
    assert len(batches) == accumulation
    reference, loss = expected(built(MODELS["mixtral"], torch.float32), batches, shift=True)
    assert_same(found, reference)
    logs = trainer.state.log_history[0]
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    assert logs["loss"] > logs["loss/cross_entropy"] + 0.7 * logs["loss/numeric"] + 0.1  # the router's


def test_a_routers_loss_in_an_evaluation_is_a_mean_over_batches(tmp_path):
    model, data = built(MODELS["mixtral"], torch.float32), rows()
    trainer = trainer_for(model, [], arguments(str(tmp_path), per_device_eval_batch_size=2), eval_dataset=data)
    attach(trainer, objective())
    batches = [collate(data[start : start + 2]) for start in range(0, ROWS, 2)]
    _, loss = expected(built(MODELS["mixtral"], torch.float32).eval(), batches, shift=True)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_compute_loss_func_refuses_a_router(tmp_path):
    model, batch = built(MODELS["mixtral"], torch.float32), collate(rows())
    with pytest.raises(ValueError, match=r"loss of \w+ is [\d.]+, and the cross-entropy of its logits is [\d.]+ with labels"):
        compute_loss_func(objective(), model)
    labels = batch.pop("labels")
    with pytest.raises(NotImplementedError, match=r"router_logits.* would be left out here.*use attach"):
        compute_loss_func(objective(), shift=True)(model(**batch), labels)


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_compute_loss_func_asks_the_model_for_its_shift(name, tmp_path):
    model, collect, shift = built(MODELS[name]), Collect(), name == "gpt2"
    assert shifts_labels(model, collate(rows())) == shift
    args = arguments(str(tmp_path), 1, per_device_train_batch_size=ROWS)
    trainer = trainer_for(model, rows(), args, callbacks=[collect], compute_loss_func=compute_loss_func(objective(), model))
    trainer.train()
    assert_same(collect.grads, expected(built(MODELS[name]), [collate(rows())], shift=shift)[0])


def test_compute_loss_func_wants_the_model_or_a_word():
    for settings in ({}, {"model": built(MODELS["gpt2"]), "shift": True}):
        with pytest.raises(TypeError, match="both model and shift, or neither: expected the model, or shift="):
            compute_loss_func(objective(), **settings)
    with pytest.raises(ValueError, match="labels=None: expected labels"):
        compute_loss_func(objective(), shift=True)({"logits": torch.zeros(1, 2, VOCAB_SIZE)}, None)


class Halved(nn.Module):
    """A plain module whose loss is ``by`` times the cross-entropy of shifted labels."""

    def __init__(self, by: float = 0.5, keys: tuple[str, ...] = ("loss", "logits")) -> None:
        super().__init__()
        self.embedding, self.head, self.by, self.keys = nn.Embedding(VOCAB_SIZE, 8), nn.Linear(8, VOCAB_SIZE), by, keys

    def forward(self, input_ids, labels=None, attention_mask=None):
        logits = self.head(self.embedding(input_ids))
        found = {"logits": logits}
        if labels is not None:
            found["loss"] = self.by * F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {key: value for key, value in found.items() if key in self.keys}


def plain_module(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return Halved(**settings).double()


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ValueError, r"Halved is [\d.]+, and .* is [\d.]+ with labels shifted by one, [\d.]+ with labels as they are"),
        ({"keys": ("logits",)}, NotImplementedError, "Halved returns no loss for labels"),
        ({"keys": ("loss",)}, NotImplementedError, "gives no logits"),
    ],
    ids=str,
)
def test_a_loss_that_is_no_cross_entropy_is_refused(settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        trained(tmp_path, plain_module(**settings), 2)


def test_a_plain_module(tmp_path):
    with pytest.warns(UserWarning, match="Halved names no output embeddings"):
        trainer, found, _ = trained(tmp_path, plain_module(by=1.0), 3)
    model = plain_module(by=1.0)
    batch = collate(rows())
    function = objective()
    function(model(batch["input_ids"])["logits"][:, :-1], batch["labels"][:, 1:]).loss.backward()
    assert_same(found, gradients(model))
    assert {"loss/cross_entropy", "loss/numeric"} <= trainer.state.log_history[0].keys()


def test_labels_absent_by_another_number(tmp_path):
    """The dataset's ignored label is the loss's ``ignore_index``; a model expects -100. The caller's objective stays as it is."""
    data = rows()
    for row in data:
        row["labels"][:5] = -7
    model = built(MODELS["gpt2"])
    collect = Collect()
    trainer = trainer_for(model, data, arguments(str(tmp_path), 2, per_device_train_batch_size=3), callbacks=[collect])
    mine = objective(ignore_index=-7)
    loss = mine.numeric_loss
    attach(trainer, mine)
    trainer.train()
    assert mine.numeric_loss is loss
    assert (mine.ignore_index, mine.label_smoothing) == (-7, 0.0)
    batch = collate(data)
    batch["labels"][batch["labels"] == -7] = -100
    assert_same(collect.grads, expected(built(MODELS["gpt2"]), [batch], shift=True)[0])


def test_losses_agree_relative_to_their_size_above_one_and_absolutely_below() -> None:
    assert agreeing(8.0, {"shifted": 8.0007, "aligned": 9.0}) == ["shifted"]
    assert agreeing(8.0, {"shifted": 8.0009, "aligned": 9.0}) == []
    assert agreeing(0.001, {"shifted": 0.00109, "aligned": 9.0}) == ["shifted"]
    assert agreeing(0.001, {"shifted": 0.00111, "aligned": 9.0}) == []


# Losses of models in half precision


OTHER_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "z-loss": lambda logits, labels: F.cross_entropy(logits, labels) + 1e-3 * logits.logsumexp(-1).square().mean(),
    "label smoothing": lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.05),
    "focal": lambda logits, labels: (
        (1 - (-(ce := F.cross_entropy(logits, labels, reduction="none"))).exp()).pow(0.1) * ce
    ).mean(),
}


class Other(hf.GPT2LMHeadModel):
    """Computes its loss from shifted labels, in ``loss_function`` or within its forward."""

    other: Any = staticmethod(F.cross_entropy)
    within = False

    @property
    def loss_function(self):
        def own(logits, labels, **_):
            return self.other(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

        return super().loss_function if "_loss_function" in vars(self) else own

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        if not self.within or labels is None:
            return super().forward(input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
        output = super().forward(input_ids, attention_mask=attention_mask)
        output.loss = self.other(output.logits[:, :-1].flatten(0, 1).clone(), labels[:, 1:].flatten())
        return output


def other(loss: Any, dtype: torch.dtype, *, within: bool, std: float = 0.2) -> nn.Module:
    model = built(lambda: Other(MODELS["gpt2"]().config), dtype)
    model.other, model.within = loss, within
    nn.init.normal_(model.lm_head.weight, 0, std)
    return model


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]
)
@pytest.mark.parametrize("loss", OTHER_LOSSES)
def test_another_loss_is_refused_in_every_precision(loss, dtype, within, tmp_path):
    with pytest.raises(ValueError, match=r"Other is [\d.]+, and the cross-entropy of its logits is"):
        trained(tmp_path, other(OTHER_LOSSES[loss], dtype, within=within), 2)


class Aligned(hf.GPT2LMHeadModel):
    """Takes its labels as they are, although its class says that it shifts them."""

    @property
    def loss_function(self):
        own = lambda logits, labels, **_: F.cross_entropy(logits.flatten(0, 1), labels.flatten())  # noqa: E731
        return super().loss_function if "_loss_function" in vars(self) else own


@pytest.mark.parametrize(("dtype", "std"), [(torch.float32, 0.0), (torch.bfloat16, 1e-6)])
@pytest.mark.parametrize("make", [Aligned, hf.GPT2LMHeadModel])
def test_the_first_batch_decides_with_a_new_head(make, dtype, std, tmp_path):
    """Its logits are all the same, or nearly: their cross-entropy is that of any alignment."""
    model = built(lambda: make(MODELS["gpt2"]().config), dtype)
    nn.init.normal_(model.lm_head.weight, 0, std)
    trainer = trainer_for(model, rows(), arguments(str(tmp_path), 1, per_device_train_batch_size=ROWS))
    attachment = attach(trainer, objective())
    trainer.train()
    shift = make is not Aligned
    assert attachment._bind().alignment[False] == (SHIFTED_BY_ONE if shift else AS_THEY_ARE)
    assert attachment._bind().shift == shift
