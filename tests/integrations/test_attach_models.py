"""attach on models that compute their loss in different ways: without a shift, with a router, with shift_labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from packaging.version import Version
from tests.integrations.trainers.cases import (
    PAD,
    SMALL,
    VOCAB,
    VOCAB_SIZE,
    Collect,
    arguments,
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
DECODER = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "decoder_start_token_id": PAD,
}


def decoder(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a maker of an encoder-decoder's decoder alone, which trains on aligned labels."""
    config = getattr(hf, f"{name}Config")
    return lambda: getattr(hf, f"{name}ForCausalLM")(config(**DECODER | settings, is_decoder=True, is_encoder_decoder=False))


NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
XLM = {"vocab_size": VOCAB_SIZE, "emb_dim": 32, "n_layers": 1, "n_heads": 2, "pad_index": PAD, **NO_DROPOUT}
BERT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": PAD,
}

NOT_SHIFTED: dict[str, Callable[[], nn.Module]] = {
    "xlnet": lambda: hf.XLNetLMHeadModel(
        hf.XLNetConfig(vocab_size=VOCAB_SIZE, d_model=32, n_layer=1, n_head=2, d_inner=48, dropout=0.0, pad_token_id=PAD)
    ),
    "xlm": lambda: hf.XLMWithLMHeadModel(hf.XLMConfig(**XLM)),
    "cpmant": lambda: hf.CpmAntForCausalLM(
        hf.CpmAntConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_attention_heads=2, dim_head=16, dim_ff=48, num_hidden_layers=1,
            dropout_p=0.0, prompt_length=4, segment_types=4, prompt_types=4,
        )
    ),
    "bart": decoder("Bart"),
    "whisper": decoder("Whisper", max_target_positions=64),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**BERT)),
    "modernbert": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
            pad_token_id=PAD,
        )
    ),
}  # fmt: skip
SHIFTED: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCAB_SIZE, n_embd=32, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    ),
    "ctrl": lambda: hf.CTRLLMHeadModel(
        hf.CTRLConfig(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=1, n_head=2, dff=48, n_positions=64, resid_pdrop=0, embd_pdrop=0)
    ),
    "bert_decoder": lambda: hf.BertLMHeadModel(hf.BertConfig(**BERT, is_decoder=True)),
}  # fmt: skip


def routed(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a maker of a model with a large router loss."""
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    sizes = {"head_dim": 16, "moe_intermediate_size": 24, "output_router_logits": True}
    return lambda: getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**SMALL | experts | sizes | settings))


SEQ2SEQ = {"vocab_size": VOCAB_SIZE, "d_model": 32, "pad_token_id": PAD, "decoder_start_token_id": PAD, "num_experts": 4}
ROUTED: dict[str, Callable[[], nn.Module]] = {
    "mixtral": routed("Mixtral"),
    "qwen2_moe": routed("Qwen2Moe", shared_expert_intermediate_size=24, decoder_sparse_step=1),
    "dbrx": lambda: hf.DbrxForCausalLM(
        hf.DbrxConfig(
            vocab_size=VOCAB_SIZE, d_model=32, n_heads=2, n_layers=1, max_seq_len=64, output_router_logits=True,
            ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "moe_loss_weight": 0.5},
            attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}, pad_token_id=PAD,
        )
    ),
    "jamba": routed(
        "Jamba", num_hidden_layers=2, attn_layer_period=1, attn_layer_offset=0, expert_layer_period=1, expert_layer_offset=0,
        use_mamba_kernels=False,
    ),
    "jetmoe": routed("JetMoe", aux_loss_coef=0.5, kv_channels=16),
    "switch": lambda: hf.SwitchTransformersForConditionalGeneration(
        hf.SwitchTransformersConfig(
            **SEQ2SEQ, d_kv=8, d_ff=48, num_layers=2, num_heads=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
            num_decoder_layers=2, expert_capacity=512, dropout_rate=0.0, router_jitter_noise=0.0, output_router_logits=True,
            router_aux_loss_coef=0.5, router_z_loss_coef=0.1,
        )
    ),
    "nllb_moe": lambda: hf.NllbMoeForConditionalGeneration(
        hf.NllbMoeConfig(
            **SEQ2SEQ, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_sparse_step=1, decoder_sparse_step=1, expert_capacity=512,
            dropout=0.0,
            attention_dropout=0.0, activation_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0, moe_token_dropout=0.0,
            router_aux_loss_coef=0.5,
            output_router_logits=True, max_position_embeddings=64, normalize_router_prob_before_dropping=False, bos_token_id=None,
            eos_token_id=None, second_expert_policy="all",
        )
    ),
}  # fmt: skip
SEQUENCES = ("switch", "nllb_moe")
BROKEN = ("dbrx", "jetmoe", "switch")  # without attach, in transformers 5.17


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


def trained(folder: Any, model: nn.Module, accumulation: int, data: list[dict[str, Any]] | None = None, **settings: Any) -> Any:
    """Attach and train one step; return the trainer, its gradients and its micro-batches."""
    seen: list[dict[str, Any]] = []
    collect = Collect()
    args = arguments(str(folder), accumulation, per_device_train_batch_size=ROWS // accumulation, **settings)
    trainer = trainer_for(model, rows() if data is None else data, args, callbacks=[collect])
    asked = {"output_router_logits": True} if isinstance(model, hf.SwitchTransformersForConditionalGeneration) else {}
    trainer.data_collator = lambda chosen: seen.append(collate(chosen) | asked) or dict(seen[-1])
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


def assert_same(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Compare gradients; those below ``floor`` times the largest are rounding (a key's bias has a zero gradient)."""
    assert found.keys() == reference.keys()
    floor, tolerance = (1e-2, 1e-5) if next(iter(found.values())).dtype == torch.float32 else (1e-6, 1e-6)
    largest = max(grad.norm() for grad in reference.values())
    for name, grad in reference.items():
        error = float((found[name] - grad).norm() / torch.maximum(grad.norm(), floor * largest))
        assert error < tolerance, (name, error)


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize("name", [*NOT_SHIFTED, *SHIFTED])
def test_labels_stand_where_the_model_predicts_them(name, tmp_path):
    shift = name in SHIFTED
    make = (NOT_SHIFTED | SHIFTED)[name]
    trainer, found, batches = trained(tmp_path, built(make), 2)
    reference, loss = expected(built(make), batches, shift=shift)
    assert_same(found, reference)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert shifts_labels(built(make), collate(rows())) == shift


@pytest.mark.parametrize(("name", "accumulation"), [*((name, 3) for name in ROUTED), ("mixtral", 1), ("nllb_moe", 1)])
def test_a_routers_loss_is_a_mean_over_micro_batches(name, accumulation, tmp_path):
    if name in BROKEN and Version(hf.__version__) < Version("5.22"):
        pytest.skip(f"the model's own router loss fails, or is left out, in transformers {hf.__version__}")
    trainer, found, batches = trained(tmp_path, built(ROUTED[name], torch.float32), accumulation)
    assert len(batches) == accumulation
    reference, loss = expected(built(ROUTED[name], torch.float32), batches, shift=name not in SEQUENCES)
    assert_same(found, reference)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert any("router" in part or "gate" in part for part in found)
    logs = trainer.state.log_history[0]
    assert logs["loss"] > logs["loss/cross_entropy"] + 0.7 * logs["loss/numeric"] + 0.1  # the router's


def test_a_routers_loss_in_an_evaluation_is_a_mean_over_batches(tmp_path):
    model = built(ROUTED["mixtral"], torch.float32)
    args = arguments(str(tmp_path), per_device_eval_batch_size=ROWS // 3)
    trainer = trainer_for(model, [], args, eval_dataset=rows())
    attach(trainer, objective())
    data = rows()
    batches = [collate(data[start : start + ROWS // 3]) for start in range(0, ROWS, ROWS // 3)]
    assert len(batches) == 3
    _, loss = expected(built(ROUTED["mixtral"], torch.float32).eval(), batches, shift=True)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
def test_a_routers_loss_beside_a_head_that_is_not_fused(tmp_path):
    """For a model that computes the cross-entropy of real logits itself and adds the router's loss."""

    def make() -> nn.Module:
        model = built(ROUTED["nllb_moe"], torch.float32)
        model.lm_head.register_forward_hook(lambda *_: None)
        return model

    _, found, batches = trained(tmp_path, make(), 3)
    assert_same(found, expected(make(), batches, shift=False)[0])


@pytest.mark.parametrize("name", ["mixtral", "nllb_moe"])
def test_compute_loss_func_refuses_a_router(name, tmp_path):
    model = built(ROUTED[name], torch.float32)
    with pytest.raises(ValueError, match=r"loss of \w+ is [\d.]+, and the cross-entropy of its logits is [\d.]+ with labels"):
        compute_loss_func(objective(), model)
    func = compute_loss_func(objective(), shift=name == "mixtral")
    with pytest.raises(NotImplementedError, match=r"router_logits.* would be left out here.*use attach"):
        func(
            model(**{**collate(rows()), "labels": None, "decoder_input_ids": collate(rows())["input_ids"]}),
            collate(rows())["labels"],
        )


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_compute_loss_func_asks_the_model_for_its_shift(name, tmp_path):
    make = (NOT_SHIFTED | SHIFTED)[name]
    collect = Collect()
    model = built(make)
    args = arguments(str(tmp_path), 1, per_device_train_batch_size=ROWS)
    trainer = trainer_for(model, rows(), args, callbacks=[collect], compute_loss_func=compute_loss_func(objective(), model))
    trainer.train()
    assert_same(collect.grads, expected(built(make), [collate(rows())], shift=name in SHIFTED)[0])


def test_compute_loss_func_wants_the_model_or_a_word():
    for settings in ({}, {"model": built(SHIFTED["gpt2"]), "shift": True}):
        with pytest.raises(TypeError, match="both model and shift, or neither: expected the model, or shift="):
            compute_loss_func(objective(), **settings)
    with pytest.raises(ValueError, match="labels=None: expected labels"):
        compute_loss_func(objective(), shift=True)({"logits": torch.zeros(1, 2, VOCAB_SIZE)}, None)


class Doubled(hf.GPT2LMHeadModel):
    """Its loss function is not a plain cross-entropy."""

    @property
    def loss_function(self):
        before = super().loss_function
        return before if "_loss_function" in vars(self) else lambda *args, **kwargs: 2 * before(*args, **kwargs)


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
    ("make", "error", "message"),
    [
        (
            lambda: built(lambda: Doubled(SHIFTED["gpt2"]().config)),
            ValueError,
            r"Doubled is [\d.]+, and .* is [\d.]+ with labels",
        ),
        (
            plain_module,
            ValueError,
            r"Halved is [\d.]+, and .* is [\d.]+ with labels shifted by one, [\d.]+ with labels as they are",
        ),
        (lambda: plain_module(keys=("logits",)), NotImplementedError, "Halved returns no loss for labels"),
        (lambda: plain_module(keys=("loss",)), NotImplementedError, "gives no logits"),
    ],
    ids=["doubled", "halved", "no_loss", "no_logits"],
)
def test_a_loss_that_is_no_cross_entropy_is_refused(make, error, message, tmp_path):
    with pytest.raises(error, match=message):
        trained(tmp_path, make(), 2)


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
    model = built(SHIFTED["gpt2"])
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
    assert_same(collect.grads, expected(built(SHIFTED["gpt2"]), [batch], shift=True)[0])


# Models that pass shift_labels to their loss function


def git() -> nn.Module:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}
    return hf.GitForCausalLM(hf.GitConfig(**BERT, vision_config=vision | {"patch_size": 4}, bos_token_id=1, eos_token_id=2))


def moonshine() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    heads = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    tokens = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD, "decoder_start_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    return hf.MoonshineForConditionalGeneration(hf.MoonshineConfig(**sizes, **heads, **tokens))


def florence() -> nn.Module:
    sizes = {"embed_dim": (8,), "depths": (1,), "num_heads": (2,), "num_groups": (2,), "patch_size": (7,), "patch_stride": (4,)}
    vision = sizes | {"patch_padding": (3,), "patch_prenorm": (False,), "projection_dim": 32, "window_size": 2}
    config = hf.Florence2Config(vision_config=vision, text_config={"model_type": "bart", **DECODER}, pad_token_id=PAD)
    return hf.Florence2ForConditionalGeneration(config)


@pytest.mark.parametrize("make", [git, moonshine, florence])
def test_shift_labels(make, tmp_path):
    data = rows()
    generator = torch.Generator().manual_seed(3)
    for row in data:
        if make is moonshine:
            row["input_values"] = torch.randn(2000, generator=generator, dtype=torch.float64)
        if make is git:
            row["pixel_values"] = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64)

    def collated(chosen):
        batch = collate([{name: row[name] for name in ("input_ids", "labels")} for row in chosen])
        if make is moonshine:
            return {"input_values": torch.stack([row["input_values"] for row in chosen]), "labels": batch["labels"]}
        if make is git:
            batch["pixel_values"] = torch.stack([row["pixel_values"] for row in chosen])
        return batch

    collect = Collect()
    args = arguments(str(tmp_path), 3, per_device_train_batch_size=ROWS // 3)
    trainer = trainer_for(built(make), data, args, callbacks=[collect])
    trainer.data_collator = collated
    attach(trainer, objective())
    trainer.train()
    assert_same(collect.grads, expected(built(make), [collated(data)], shift=make is git)[0])


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
    model = built(lambda: Other(SHIFTED["gpt2"]().config), dtype)
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
    model = built(lambda: make(SHIFTED["gpt2"]().config), dtype)
    nn.init.normal_(model.lm_head.weight, 0, std)
    trainer = trainer_for(model, rows(), arguments(str(tmp_path), 1, per_device_train_batch_size=ROWS))
    attachment = attach(trainer, objective())
    trainer.train()
    shift = make is not Aligned
    assert attachment._bind().alignment == (SHIFTED_BY_ONE if shift else AS_THEY_ARE)
    assert attachment._bind().shift == shift
