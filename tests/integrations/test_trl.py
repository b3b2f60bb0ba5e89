"""attach on SFTTrainer: the step's gradient is that of one batch, however TRL builds the batches."""

from __future__ import annotations

import importlib.util
import tempfile
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version

pytest.importorskip("trl")
from datasets import Dataset
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import (
    EXAMPLES,
    SMALL,
    TEXTS,
    VOCAB,
    Collect,
    assert_same,
    dataset,
    gradients,
    llama,
    logged,
    tokenizer,
)
from tests.integrations.trainers.ends import overrun_of
from tests.integrations.trainers.soft import collate_fields, parts_of, with_fields
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)
from trl import SFTConfig, SFTTrainer

from numerate import attach
from numerate.integrations.fields import LABEL_FIELDS
from numerate.objective.overrun import NumberEnds

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BUILDS_LOGITS = Version(version("trl")) < Version("1.15")
since_1_15 = pytest.mark.skipif(BUILDS_LOGITS, reason="before 1.15, SFTTrainer is attached to as a transformers Trainer")


def rows(fields="") -> Dataset:
    return Dataset.from_list([{k: v.tolist() for k, v in row.items()} for row in examples(fields)])


def examples(fields=""):
    return with_fields(dataset("llama", padded=True), fields)


def objective_of(loss="ntil", normalize="numeric"):
    return cases.Case(loss=loss, normalize=normalize).objective


def trainer(folder, model, loss="ntil", accumulation=1, normalize="numeric", fields="", data=None, **settings):
    """Return a trainer and its gradients; ``settings`` are those of SFTConfig, but for data_collator and processing_class."""
    collect, given = Collect(), {"processing_class": tokenizer()}
    given |= {name: settings.pop(name) for name in ("data_collator", "processing_class") if name in settings}
    defaults = {
        "use_cpu": True,
        "bf16": False,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": EXAMPLES // accumulation,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    args = SFTConfig(str(folder), **defaults | settings)
    data, objective = rows(fields) if data is None else data, objective_of(loss, normalize)
    made = SFTTrainer(model, args, train_dataset=data, callbacks=[collect], **given)
    made.attached = attach(made, objective)
    return made, collect


def build(make=llama):
    torch.manual_seed(0)
    return make().double().train()


def reference(model, loss="ntil", normalize="numeric", chosen=None):
    """Return gradients, cross-entropy and numeric term of all examples in one batch, by autograd."""
    batch = cases.collate(examples() if chosen is None else chosen)
    fields = {name: batch.pop(name) for name in list(batch) if name in LABEL_FIELDS}
    labels = batch.pop("labels")
    ce, numeric = parts_of(objective_of(loss, normalize), model(**batch).logits, labels, fields, shift=True)
    (ce + 0.7 * numeric).backward()
    return gradients(model), ce.item(), numeric.item()


class Through(torch.autograd.Function):
    """Returns its argument, as functions of DeepSpeed do."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_a_hook_of_the_head(tmp_path):
    expected, *_ = reference(build())
    made, collect = trainer(tmp_path, build(), accumulation=2)
    made.model.lm_head.register_forward_hook(lambda _, __, logits: Through.apply(logits))
    made.train()
    assert_same(collect.grads, expected)


# Every two settings meet; gaussian_ce reads logits outside the numeric tokens.
@pytest.mark.parametrize(
    ("loss", "accumulation", "normalize", "fields", "joined"),
    [
        ("smmd", 4, "tokens", "", False),
        ("number", 1, "tokens", "", False),
        ("number", 4, "numeric", "", True),
        ("gaussian_ce", 1, "numeric", "", False),
        ("gaussian_ce", 1, "tokens", "weights", False),
        ("ntil", 8, "numeric", "both", False),
        ("ntil", 1, "tokens", "soft", True),
        ("none", 4, "numeric", "soft", False),
        ("none", 4, "tokens", "both", True),
    ],
)
def test_the_gradient_of_a_step(loss, accumulation, normalize, fields, joined, tmp_path):
    expected, ce, numeric = reference(build(), loss, normalize, examples(fields))
    settings = {"padding_free": True, "max_length": None} if joined else {}
    made, collect = trainer(tmp_path, build(), loss, accumulation, normalize, fields=fields, **settings)
    made.train()
    assert_same(collect.grads, expected)
    logs = made.state.log_history[0]
    assert logs["loss"] == logged(ce + 0.7 * numeric)
    assert logs["loss/cross_entropy"] == pytest.approx(ce, rel=1e-5)
    assert logs["loss/numeric"] == pytest.approx(numeric, rel=1e-5)
    assert logs["numeric/overrun"] == pytest.approx(logged_parts(rows())["numeric/overrun"], rel=1e-5)
    assert 0 < logs["numeric/share"] < 1
    assert ("numeric/mass" in logs) == (loss != "none")
    assert logs["entropy"] > 0
    assert "mean_token_accuracy" in logs


def test_packed_documents_count_as_they_are(tmp_path):
    """Numbers end where a document does: packed or padded, the gradient is the same."""
    chosen = examples()
    if BUILDS_LOGITS:  # TRL before 1.15 packs without the column of labels: all tokens are trained
        chosen = [row | {"labels": row["input_ids"]} for row in chosen]
    expected, ce, numeric = reference(build(), "number", chosen=chosen)
    made, collect = trainer(
        tmp_path, build(), "number", packing=True, max_length=48, dataset_kwargs={}, per_device_train_batch_size=2, accumulation=2
    )
    assert len(made.train_dataset) < EXAMPLES
    made.train()
    assert_same(collect.grads, expected)
    assert made.state.log_history[0]["loss"] == logged(ce + 0.7 * numeric)
    data = Dataset.from_list([{name: value.tolist() for name, value in row.items()} for row in chosen])
    assert made.state.log_history[0]["numeric/overrun"] == pytest.approx(logged_parts(data)["numeric/overrun"], rel=1e-5)


@pytest.mark.parametrize(("saved", "fields"), [(None, "both"), (["lm_head"], "")], ids=["attention", "modules_to_save"])
def test_peft(saved, fields, tmp_path):
    settings = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": saved}
    expected, _, _ = reference(cases.lora(**settings), chosen=examples(fields))
    made, collect = trainer(tmp_path, cases.lora(**settings), accumulation=4, fields=fields)
    made.train()
    assert_same(collect.grads, expected)
    assert any("modules_to_save" in name for name in collect.grads) == (saved is not None)


@pytest.mark.parametrize("fields", ["both", ""])
def test_prompt_tuning(fields, tmp_path):
    """The last virtual token predicts the first label. Weights count it; without them TRL has it in its sum alone, since 1.15."""
    chosen = with_fields([row | {"labels": row["input_ids"].clone()} for row in dataset("llama", padded=True)], fields)
    data = Dataset.from_list([{name: value.tolist() for name, value in row.items()} for row in chosen])
    made, collect = trainer(tmp_path, cases.prompt_tuning(), accumulation=4, data=data)
    made.train()
    if fields or BUILDS_LOGITS:
        expected, _, _ = reference(cases.prompt_tuning(), chosen=chosen)
    else:
        net, batch = cases.prompt_tuning(), cases.collate(chosen)
        labels = batch.pop("labels")
        logits = net(**batch).logits[:, 2:-1]
        ce, numeric = (
            F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"),
            objective_of().numeric_loss(logits, labels),
        )
        (ce / (labels[:, 1:] != -100).sum() + 0.7 * numeric).backward()
        expected = gradients(net)
        assert made.state.log_history[0]["loss/numeric"] == pytest.approx(numeric.item(), rel=1e-5)
    assert_same(collect.grads, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=0.3)),
        lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=3.0)),
        lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=0.25)),
    ],
    ids=["gemma2", "cohere", "granite"],
)
def test_scaled_and_capped_logits(make, tmp_path):
    expected, _, _ = reference(build(make), chosen=examples("both"))
    made, collect = trainer(tmp_path, build(make), fields="both")
    made.train()
    assert_same(collect.grads, expected)
    batch = cases.collate(examples())
    labels = batch.pop("labels")
    overrun = overrun_of(build(make)(**batch).logits[:, :-1], labels[:, 1:], TEXTS)
    assert made.state.log_history[0]["numeric/overrun"] == pytest.approx(overrun, rel=1e-5)


def test_completion_only_loss(tmp_path):
    """TRL writes the labels; ignored tokens are not counted, neither as text nor as numbers."""
    data = Dataset.from_list([{"prompt": f"{i} x {i}", "completion": f" -1{i}.5"} for i in range(EXAMPLES)])
    made, _ = trainer(tmp_path, build(), data=data, dataset_kwargs={})
    batch = next(iter(made.get_train_dataloader()))
    counts = (made.attached._bind().count if BUILDS_LOGITS else made.attached._count)([batch])
    assert counts.num_items == (batch["labels"] != -100).sum()
    assert counts.num_units == EXAMPLES  # one number in each completion, -1i.5, none in the prompts
    made.train()
    assert made.state.log_history[0]["numeric/share"] == pytest.approx(float(counts.num_positions / counts.num_items))


def logged_parts(data):
    """Return the parts of examples in one batch."""
    batch = cases.collate([{name: torch.tensor(row[name]) for name in ("input_ids", "labels")} for row in data])
    labels = batch.pop("labels")[:, 1:]
    with torch.no_grad():
        logits = build()(**batch).logits[:, :-1]
        out = objective_of()(logits, labels, with_mass=True)
    share = (VOCAB.index_of(labels) >= 0).sum() / (labels != -100).sum()
    names = ("loss/cross_entropy", "loss/numeric", "numeric/share", "numeric/mass")
    parts = zip(names, (out.cross_entropy, out.numeric, share, out.mass), strict=True)
    return {name: part.item() for name, part in parts} | {"numeric/overrun": overrun_of(logits, labels, TEXTS)}


def test_parts_of_an_evaluation_are_those_of_the_whole_set(tmp_path):
    made, _ = trainer(tmp_path, build(), per_device_eval_batch_size=1)
    data = rows()
    few, many = data.select(range(3)), data.select(range(3, EXAMPLES))
    metrics = made.evaluate({"few": few, "many": many}) | made.predict(few).metrics | made.evaluate(many)
    for prefix, some in {"eval_few": few, "eval_many": many, "test": few, "eval": many}.items():
        expected = logged_parts(some)
        assert {name: metrics[f"{prefix}_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_overrun_is_computed_at_logged_steps(tmp_path, monkeypatch):
    read, of = [], NumberEnds.of.__func__
    monkeypatch.setattr(NumberEnds, "of", classmethod(lambda cls, *args, **kwargs: read.append(1) or of(cls, *args, **kwargs)))
    for logging_steps, steps in ((1, range(1, 6)), (2, (2, 4)), (9, ())):
        read.clear()
        made, _ = trainer(tmp_path, build(), "smmd", accumulation=2, logging_steps=logging_steps, max_steps=5)
        made.train()
        assert [logs["step"] for logs in made.state.log_history if "numeric/overrun" in logs] == list(steps)
        assert len(read) == 2 * len(steps)


def test_overrun_needs_a_vocabulary(tmp_path):
    made, _ = trainer(tmp_path, build(), "none")
    made.attached.objective.numeric_loss.vocab = None
    made.train()
    assert "numeric/overrun" not in made.state.log_history[0]


def test_a_step_by_hand_after_training(tmp_path):
    made, _ = trainer(tmp_path, build(), accumulation=2, learning_rate=0.0)
    made.train()
    some = rows().select(range(3))
    batch = cases.collate([{name: torch.tensor(row[name]) for name in ("input_ids", "labels")} for row in some])
    parts = logged_parts(some)
    expected = (parts["loss/cross_entropy"] + 0.7 * parts["loss/numeric"]) / 2  # as the trainer divides it
    assert float(made.training_step(made.model, batch)) == pytest.approx(expected, rel=1e-5)


def test_one_backbone_forward_per_micro_batch(tmp_path):
    made, _ = trainer(tmp_path, build(), accumulation=4)
    calls = []
    made.model.model.register_forward_hook(lambda *_: calls.append(1))
    made.train()
    assert len(calls) == 4


@since_1_15
def test_refuses_a_second_forward(tmp_path):
    with pytest.raises(ValueError, match="second forward pass"):
        trainer(tmp_path, build(), label_smoothing_factor=0.1)


@since_1_15
def test_a_trainer_that_splits_sequences(tmp_path, monkeypatch):
    made, _ = trainer(tmp_path, build())
    made.attached.detach()
    monkeypatch.setattr(made, "get_sp_size", lambda: 2)
    with pytest.raises(NotImplementedError, match="over 2 processes.* use attach with a transformers Trainer"):
        attach(made, objective_of("smmd"))


@since_1_15
def test_a_release_that_computes_its_loss_in_another_way_is_named(tmp_path, monkeypatch):
    made, _ = trainer(tmp_path, build())
    monkeypatch.setattr(SFTTrainer, "compute_loss", lambda self, model, inputs, **_: model(**inputs).loss)
    with pytest.raises(NotImplementedError, match=r"trl [\d.]+ computed its loss without .*, as in trl 1\.15"):
        made.train()


@since_1_15
def test_a_release_without_the_output_that_the_term_is_computed_from_is_named(monkeypatch):
    import numerate.integrations.trl_forward as module

    monkeypatch.delattr("trl.trainer.utils.FusedCausalLMOutput")
    spec = importlib.util.spec_from_file_location("numerate.integrations.trl_forward_of_another_release", module.__file__)
    with pytest.raises(ImportError, match=r"trl [\d.]+ has no FusedCausalLMOutput, .*before 1\.15, use numerate\.attach"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.skipif(not BUILDS_LOGITS, reason="since 1.15, rows are cut in the collator")
@pytest.mark.parametrize("part", ["train_dataset", "some"])
def test_columns_that_trl_may_have_cut_are_refused(part, tmp_path):
    made, _ = trainer(tmp_path, build(), dataset_kwargs={})
    made.attached.detach()
    if part == "train_dataset":
        made.train_dataset = rows("both")
    else:
        made.eval_dataset = {part: rows("both")}
    with pytest.raises(ValueError, match=f"{part} has columns of soft targets or weights, which TRL before 1.15 may cut"):
        attach(made, objective_of())


def test_vision_language_model(tmp_path):
    """For a model that takes no loss arguments, TRL alone would average the micro-batches."""
    rows = dataset("qwen2_vl", padded=True)
    made, collect = trainer(
        tmp_path,
        cases.build("qwen2_vl"),
        accumulation=4,
        data=Dataset.from_list([{key: value.tolist() for key, value in row.items()} for row in rows]),
        data_collator=lambda chosen: cases.collate([{key: torch.tensor(row[key]) for key in rows[0]} for row in chosen]),
        remove_unused_columns=False,
    )
    made.train()
    assert_same(collect.grads, cases.reference(cases.Case("qwen2_vl")))


def test_assistant_only_loss(tmp_path):
    turns = [
        [{"role": "user", "content": f"{i}1"}, {"role": "assistant", "content": f"x{i}2.5"}, {"role": "user", "content": "77"}]
        for i in range(EXAMPLES)
    ]
    chat = tokenizer()
    chat.chat_template = (
        "{% for message in messages %}{% if message.role == 'assistant' %}x{% generation %}{{ message.content }} "
        "{% endgeneration %}{% else %}{{ message.content }} {% endif %}{% endfor %}"
    )
    given = {"data": Dataset.from_dict({"messages": turns}), "processing_class": chat, "dataset_kwargs": {}}
    made, _ = trainer(tmp_path, build(), assistant_only_loss=True, **given)
    made.train()
    assert made.state.log_history[0]["numeric/share"] == pytest.approx(3 / 6)  # of x i 2 . 5 and a space, three are digits


# Soft targets and weights


def join(chosen):
    """Return examples in one row, with the position of their tokens and the fields made for the packed row."""
    lengths = [len(row["input_ids"]) for row in chosen]
    batch = {name: torch.cat([torch.tensor(row[name]) for row in chosen])[None] for name in ("input_ids", "labels")}
    batch["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    row = {name: torch.cat([torch.tensor(row[name]) for row in chosen]) for name in LABEL_FIELDS}
    entries = torch.tensor([len(row["soft_positions"]) for row in chosen])
    row["soft_positions"] = row["soft_positions"].long() + starts[:-1].repeat_interleave(entries)
    row["soft_token_ids"] = row["soft_token_ids"].long()
    return batch | collate_fields([row])


def test_fields_of_a_collator_for_packed_rows(tmp_path):
    chosen = examples("both")
    expected, _, _ = reference(build(), "number", chosen=chosen)
    made, collect = trainer(tmp_path, build(), "number", 2, fields="both", data_collator=join)
    made.train()
    assert_same(collect.grads, expected)


@pytest.mark.parametrize("loss_only", [True, False])
def test_an_evaluation_with_soft_targets(loss_only, tmp_path):
    _, ce, numeric = reference(build(), chosen=examples("both"))
    made, _ = trainer(tmp_path, build(), per_device_eval_batch_size=3, prediction_loss_only=loss_only)
    found = made.evaluate(rows("both"))
    assert found["eval_loss/cross_entropy"] == pytest.approx(ce, rel=1e-5)
    assert found["eval_loss/numeric"] == pytest.approx(numeric, rel=1e-5)
    made, _ = trainer(tmp_path, build(), per_device_eval_batch_size=EXAMPLES, prediction_loss_only=loss_only)
    assert made.evaluate(rows("both"))["eval_loss"] == pytest.approx(ce + 0.7 * numeric, rel=1e-5)


@since_1_15
def test_completions_with_soft_targets_and_a_length(tmp_path):
    """A mask of the completion makes the labels; what is cut off takes its targets and weights along."""
    length, chosen = 14, examples("both")
    for row in chosen:
        row["completion_mask"] = (row.pop("labels") != -100).long()
    data = Dataset.from_list([{k: v.tolist() for k, v in row.items()} for row in chosen])
    made, collect = trainer(tmp_path, build(), accumulation=4, dataset_kwargs={}, max_length=length, completion_only_loss=True)
    arguments = (tokenizer(), made.args, False, None, "train")
    made.train_dataset = made._prepare_dataset(data, *arguments)
    assert {"labels", *LABEL_FIELDS} <= set(made.train_dataset.column_names)
    made.train()
    cut = []
    for row in examples("both"):
        inside = row["soft_positions"] < length
        cut.append({name: value[inside] if name.startswith("soft") else value[:length] for name, value in row.items()})
    assert_same(collect.grads, reference(build(), chosen=cut)[0])


@since_1_15
def test_tokens_that_move_away_from_their_targets(tmp_path):
    with pytest.raises(ValueError, match="truncation_mode='keep_end' with max_length moves tokens, and the dataset has columns"):
        trainer(tmp_path, build(), fields="both", dataset_kwargs={}, max_length=8, truncation_mode="keep_end")


@since_1_15
def test_a_loss_that_weighs_tokens_itself(tmp_path):
    made, _ = trainer(tmp_path, build(), fields="soft", loss_type="dft")
    with pytest.raises(ValueError, match="loss_type='dft' weighs each token by its probability, and the batch has soft"):
        made.train()


def test_too_few_weights(tmp_path):
    made, _ = trainer(tmp_path, build())
    short = rows("weights").map(lambda row: {"token_weights": row["token_weights"][1:]})
    made.train_dataset = short
    with pytest.raises(ValueError, match=r"token_weights has \d+ entries and input_ids \d+: expected one for each token"):
        made.train()


def on_two_processes():
    """Train a step on this process's half of the examples, padded and packed."""
    found = {}
    for loss, packing, fields in (("ntil", False, ""), ("number", True, ""), ("ntil", False, "both")):
        settings = {"packing": True, "max_length": 40, "dataset_kwargs": {}} if packing else {}
        settings |= {"accumulation": 2, "per_device_train_batch_size": 1 if packing else 2}
        with tempfile.TemporaryDirectory() as folder:
            made, collect = trainer(folder, build(), loss, fields=fields, **settings)
            made.train()
        assert not packing or len(made.train_dataset) == 4, len(made.train_dataset)
        found[loss, packing, fields] = collect.grads, made.state.log_history[0]
    return found


def check_two_processes(found):
    """Gradient and logs are those of one process."""
    assert len(found) == 3
    for (loss, packing, fields), (grads, logs) in found.items():
        expected, ce, numeric = reference(build(), loss, chosen=examples(fields))
        assert_same(grads, expected)
        assert logs["loss"] == logged(ce + 0.7 * numeric), packing
        assert logs["numeric/overrun"] == pytest.approx(logged_parts(rows())["numeric/overrun"], rel=1e-5), packing
        assert logs["loss/cross_entropy"] == pytest.approx(ce, rel=1e-5)
        assert logs["loss/numeric"] == pytest.approx(numeric, rel=1e-5)
