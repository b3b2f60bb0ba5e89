"""Exported rows: the targets and the loss of the objective, as each framework reads them.

``own`` reads rows by the functions of the framework: Axolotl 0.19.0 with liger-kernel 0.8.5, DistillKit of March 2026, Tinker
0.38.0 (whose loss is computed by the service, and here as its documentation says). They are skipped where the package is not
installed. ``stand-in`` does what the source of that version does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the extra lab is not installed")

from numerate import NumericObjective
from numerate.checks import choices
from numerate.lab.export.frameworks import Framework
from numerate.lab.export.row_formats import ROW_FORMATS, FileSizes, SoftRow
from numerate.lab.export.soft_rows import Exported, export_soft
from numerate.lab.models.encoding import AnswerTries, collate, fitting_rows
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.prediction.train import run_settings
from numerate.lab.training.checking import checked_task, soft_target
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.prepare import run_encoder, run_examples, soft_answers
from numerate.labels import IGNORE_INDEX
from numerate.targets.soft_targets import SoftTargets

Rows = list[dict[str, Any]]
EPOCHS, SEED = 2, 3


class Trained:
    """The same rows as training makes them."""

    def __init__(self, table: str, **settings: Any) -> None:
        values = run_settings(None, "price", settings={"data": table, "model": "tiny", "loss": "soft", "seed": SEED, **settings})
        self.config = checked(RunConfig, values)
        task = checked_task(self.config)
        self.encoder, self.examples = run_encoder(self.config, task), run_examples(self.config, task)
        self.fitting = fitting_rows(self.encoder, self.examples, self.config.max_length)
        self.tries = AnswerTries(self.encoder, soft_target(self.config, task))
        self.soft = soft_answers(self.config, task, self.encoder, {})

    def batch(self, lines: Sequence[int]) -> dict[str, Tensor]:
        rows = [self.soft.row(*self.fitting[line % len(self.fitting)], line) for line in lines]
        return collate(rows, pad=self.encoder.pad)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "table.csv"
    path.write_text("area,price\n" + "".join(f"{area},{17 * area}\n" for area in range(1, 60)))  # answers of one to four digits
    return str(path)


@pytest.fixture(scope="module")
def trained(table) -> Trained:
    return Trained(table)


def write(table: str, framework: str, folder: Path, **settings: Any) -> Exported:
    named: dict[str, Any] = {"model": "tiny", "target": "price", "seed": SEED, "epochs": EPOCHS, **settings}
    return export_soft(table, framework, out=folder / "train.jsonl", **named)


def read(path: Path, framework: str) -> Rows:
    """The rows as the framework loads them: a file with Axolotl, a folder with DistillKit."""
    if framework not in ("axolotl", "distillkit"):
        return [json.loads(line) for line in path.read_text().splitlines()]
    datasets = pytest.importorskip("datasets")
    where = {"path": str(path.parent)} if framework == "distillkit" else {"path": "json", "data_files": str(path)}
    return [*datasets.load_dataset(**where, split="train", cache_dir=str(path.parent.parent / "cache"))]


@pytest.fixture(scope="module", params=choices(Framework))
def written(request, table, tmp_path_factory) -> tuple[str, Exported, Rows]:
    folder = tmp_path_factory.mktemp(request.param) / "rows"
    result = write(table, request.param, folder)
    return request.param, result, read(result.path, request.param)


# Targets


def pairs(ids: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]]) -> list[dict[int, float]]:
    return [{i: p for i, p in zip(*both, strict=True) if p > 0} for both in zip(ids, probabilities, strict=True)]


def targets_of(framework: str, row: Mapping[str, Any]) -> list[dict[int, float]]:
    """The target of the token after each one."""
    if framework == "generic":
        return pairs(row["target_ids"], row["target_probabilities"])[1:]
    if framework == "tinker":
        return pairs(row["loss_fn_inputs"]["target_tokens"], row["loss_fn_inputs"]["weights"])
    ids, logs = (
        row[name] for name in (("target_token_ids", "target_logprobs") if framework == "axolotl" else ("token_ids", "top_values"))
    )
    found = pairs(ids, [[math.exp(value) for value in target] for target in logs])
    assert not found[-1]  # nothing follows
    return found[: sum(row["attention_mask"]) - 1]


def test_all_frameworks_have_a_format():
    assert ROW_FORMATS.keys() == set(choices(Framework))


def test_the_targets_are_those_of_training(written, trained):
    """Each line is the draw of its seed, and its targets are the probabilities of the tokens after those before them."""
    framework, result, rows = written
    assert result.rows == len(rows) == EPOCHS * len(trained.fitting)
    drawn = set()
    for line, row in enumerate(rows):
        epoch, index = divmod(line, len(trained.fitting))
        assert (row["seed"], row["epoch"], row["row"]) == (SEED, epoch, index)
        question, example = trained.fitting[index]
        begin = question["labels"].count(IGNORE_INDEX)
        path = trained.tries.of(example).draw(np.random.default_rng([SEED, line]))
        ids = [*question["input_ids"][:begin], *path.token_ids]
        read_ids = row["model_input"] if framework == "tinker" else row["input_ids"]
        assert read_ids[: len(ids)] == (ids[:-1] if framework == "tinker" else ids)
        found = targets_of(framework, row)
        assert found[: begin - 1] == [{}] * (begin - 1)
        assert len(found) == len(ids) - 1
        for target, truth in zip(found[begin - 1 :], path.targets, strict=True):
            assert target == pytest.approx(truth, rel=1e-14)
            assert math.fsum(target.values()) == pytest.approx(1, abs=1e-14)
        drawn.add((index, *path.token_ids))
    assert len(drawn) > 1.5 * len(trained.fitting)  # another draw in the second epoch
    assert result.top_k == max(len(target) for row in rows for target in targets_of(framework, row)) > 5


# Losses


Loss = Callable[[Rows, Tensor, Any], Tensor]


def axolotl_stand_in(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    """``DataCollatorForKD`` pads; the loss is summed over entries of the mask, without a shift, and divided by the labels."""
    top_k = max(len(target) for row in rows for target in row["target_logprobs"])
    length = max(len(row["labels"]) for row in rows)

    def padded(name: str, fill: float) -> Tensor:
        tables = [[[*target, *[fill] * (top_k - len(target))] for target in row[name]] for row in rows]
        return torch.tensor([[*table, *[[fill] * top_k] * (length - len(table))] for table in tables])

    ids, logs, mask = padded("target_token_ids", 0), padded("target_logprobs", -1e9).float(), padded("target_mask", 0).bool()
    at_ids = logits[:, :length].log_softmax(-1).gather(-1, ids)
    count = sum(label != IGNORE_INDEX for row in rows for label in row["labels"])
    return (logs.exp() * (logs - at_ids))[mask].sum() / count


def axolotl_own(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    """The settings ``kd_ce_alpha: 0.0, kd_alpha: 1.0, kd_temperature: 1.0, kd_beta: 0.0, kd_normalize_topk: false``."""
    collator = pytest.importorskip("axolotl.integrations.kd.collator").DataCollatorForKD
    kernels = pytest.importorskip("axolotl.integrations.kd.kernels.liger")
    features = [{name: value for name, value in row.items() if name not in ("seed", "epoch", "row")} for row in rows]
    batch = collator(tokenizer)(features)
    loss = kernels.LigerFusedLinearKLTopKLogprobLoss(
        0.0, 1.0, 1.0, 0.0, compiled=False, compute_ce_loss=False, normalize_topk=False
    )
    hidden = logits[:, : batch["labels"].shape[1]]
    named = [batch[name] for name in ("target_token_ids", "target_logprobs", "target_mask")]
    return (
        loss(torch.eye(logits.shape[-1]), hidden, *named, true_labels=batch["labels"]) / (batch["labels"] != IGNORE_INDEX).sum()
    )


def distillkit_stand_in(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    """``collate_packed_batch`` stacks; targets are normalised; positions whose own label is not ignored take part."""
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    mask, logs = batch["labels"] >= 0, batch["top_values"].log_softmax(-1)
    values = (logs.exp() * (logs - logits.log_softmax(-1).gather(-1, batch["token_ids"]))).sum(-1)
    return (values * mask).sum() / mask.sum()


def distillkit_own(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    """The settings ``teacher: {kind: dataset, logprob_compressor: ..}`` and ``function: kl, temperature: 1.0``."""
    main, compression = (pytest.importorskip(f"distillkit.{name}") for name in ("main", "compression"))
    signals, losses = (pytest.importorskip(f"distillkit.{name}") for name in ("signals", "lossfuncs.kl"))
    outputs = pytest.importorskip("transformers.modeling_outputs")
    top_k = len(rows[0]["token_ids"][0])
    config = compression.DistributionQuantizationConfig(d=logits.shape[-1], k=top_k, exact_k=top_k, residual_bins=[])
    batch = main.collate_packed_batch(rows)
    signal = signals.OfflineSignalSource(compression.LogprobCompressor(config=config), logits.shape[-1]).get_signal(batch)
    loss = losses.KLDLoss(temperature=1.0)
    return loss(outputs.CausalLMOutput(logits=logits.clone()), signal, mask=(batch["labels"] >= 0).unsqueeze(-1))


def tinker_loss(rows: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> Tensor:
    """The sum of the weighted losses, which the service optimises, by label."""
    total = sum(-(own[: len(ids)].log_softmax(-1).gather(-1, ids) * p).sum() for own, (ids, p) in zip(logits, rows, strict=True))
    return torch.as_tensor(total) / sum(p.sum().round() for _, p in rows)


def tinker_stand_in(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    inputs = [row["loss_fn_inputs"] for row in rows]
    return tinker_loss([(torch.tensor(one["target_tokens"]), torch.tensor(one["weights"])) for one in inputs], logits)


def tinker_own(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    tinker = pytest.importorskip("tinker")
    made = [tinker.Datum(tinker.ModelInput.from_ints(row["model_input"]), row["loss_fn_inputs"]) for row in rows]
    assert [datum.model_input.length for datum in made] == [len(row["loss_fn_inputs"]["weights"]) for row in rows]
    tensors = [[datum.loss_fn_inputs[name].to_torch() for name in ("target_tokens", "weights")] for datum in made]
    return tinker_loss([(ids, p) for ids, p in tensors], logits)


def generic(rows: Rows, logits: Tensor, tokenizer: Any) -> Tensor:
    """The loop of the documentation."""
    total, count = torch.zeros(()), 0
    for row, own in zip(rows, logits, strict=True):
        ids, p = torch.tensor(row["target_ids"][1:]), torch.tensor(row["target_probabilities"][1:])
        total = total - (p * own[: len(ids)].log_softmax(-1).gather(-1, ids)).sum()
        count += sum(label != IGNORE_INDEX for label in row["labels"])
    return total / count


LOSSES: dict[str, Mapping[str, Loss]] = {
    "generic": {"stand-in": generic},
    "axolotl": {"stand-in": axolotl_stand_in, "own": axolotl_own},
    "distillkit": {"stand-in": distillkit_stand_in, "own": distillkit_own},
    "tinker": {"stand-in": tinker_stand_in, "own": tinker_own},
}


@pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")
@pytest.mark.parametrize(
    ("written", "reader"), [(framework, name) for framework in LOSSES for name in LOSSES[framework]], indirect=["written"]
)
def test_the_loss_is_that_of_the_objective(reader, written, trained):
    """Cross-entropy itself, or without the entropy of the targets, which has no gradient: in value and gradient."""
    framework, result, rows = written
    lines = [*range(0, len(rows), 7)]
    batch = trained.batch(lines)
    vocab = trained.encoder.vocab
    shape = len(lines), result.length, vocab.vocab_size
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    soft = SoftTargets.from_batch(batch)
    labels = batch["labels"]
    truth = NumericObjective(None, vocab=vocab)(logits[:, : labels.shape[1]], labels, soft=soft, shift=True).loss
    (expected,) = torch.autograd.grad(truth, logits)
    targets = [target for line in lines for target in targets_of(framework, rows[line])]
    entropy = -math.fsum(p * math.log(p) for target in targets for p in target.values()) / int((labels != IGNORE_INDEX).sum())
    assert entropy > 0.5
    loss = LOSSES[framework][reader]([rows[line] for line in lines], logits, trained.encoder.tokenizer)
    (grad,) = torch.autograd.grad(loss, logits)
    constant = entropy if framework in ("axolotl", "distillkit") else 0.0
    assert float(loss.detach()) + constant == pytest.approx(float(truth.detach()), rel=1e-5)
    assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_padding_of_distillkit_is_finite_in_half_precision(dtype, trained):
    """A masked position with infinite padding would make the loss NaN."""
    rows = [SoftRow.of(row) for row, _ in trained.fitting[:2]]
    written = [ROW_FORMATS["distillkit"](row, FileSizes(5, 20)) for row in rows]
    logits = torch.zeros(2, 20, trained.encoder.vocab.vocab_size, dtype=dtype)
    assert distillkit_stand_in(written, logits, None).isfinite()
    assert torch.tensor([row["top_values"] for row in written]).to(dtype).isfinite().all()


# The file


def test_drawn_answers_with_hard_labels(table, tmp_path):
    """With soft_jitter, targets are the labels, which differ from those of the table."""
    rows = read(write(table, "generic", tmp_path, loss="soft_jitter", epochs=1).path, "generic")
    for row in rows:
        assert targets_of("generic", row) == [{} if label == IGNORE_INDEX else {label: 1.0} for label in row["labels"][1:]]
    soft = read(write(table, "generic", tmp_path, epochs=1, overwrite=True).path, "generic")
    assert [row["input_ids"] for row in soft] == [row["input_ids"] for row in rows]


def test_fixed_answers_are_those_of_the_table(table, tmp_path):
    trained = Trained(table, loss="soft_fixed")
    rows = read(write(table, "generic", tmp_path, loss="soft_fixed", epochs=1).path, "generic")
    assert [row["input_ids"] for row in rows] == [row["input_ids"] for row, _ in trained.fitting]


def test_a_failed_export_leaves_the_old_file(table, tmp_path):
    path = write(table, "generic", tmp_path).path
    before = path.read_bytes()

    def stop(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        if stage == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(table, "generic", tmp_path, overwrite=True, progress=stop, seed=4)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_progress_ends_with_all_rows(table, tmp_path, trained):
    seen: list[tuple[str, int, int]] = []
    write(table, "tinker", tmp_path, progress=lambda stage, done, total, figures: seen.append((stage, done, total)))
    total = EPOCHS * len(trained.fitting)
    assert {stage: (done, of) for stage, done, of in seen} == {"draw": (total, total), "write": (total, total)}


def test_rows_that_are_too_long_are_counted(tmp_path):
    data = tmp_path / "a.csv"
    data.write_text("area,price\n" + "".join(f"{'1' * (40 if i % 4 == 0 else 2)}{i},{i}\n" for i in range(10, 60)))
    result = write(str(data), "generic", tmp_path / "out", max_length=30)
    assert result.too_long > 0
    assert result.rows % EPOCHS == 0


def test_rows_that_are_not_written_are_said(table, tmp_path):
    """More than the settings take, and those that cannot be read."""
    data = tmp_path / "bad.csv"
    data.write_text(Path(table).read_text() + "5,many\n")
    result = write(str(data), "generic", tmp_path / "out", skip_bad=True, train_examples=20)
    assert result.rows == EPOCHS * 20
    skipped, capped = result.notes
    assert skipped.startswith("Skipped 1 row that could not be read; the first:")
    all_rows = int(capped.rpartition("=")[2].split()[0])
    assert capped.startswith(f"Wrote 20 of {all_rows} training rows")
    again = write(str(data), "generic", tmp_path / "out", skip_bad=True, train_examples=all_rows, overwrite=True)
    assert (again.rows, [*again.notes]) == (EPOCHS * all_rows, [skipped])


def test_pictures_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has pictures, which these files cannot hold"):
        export_soft(None, "generic", model="tiny-vlm", out=tmp_path / "a.jsonl", task="clock")  # type: ignore[arg-type]


def test_a_tokenizer_alone_knows_the_end_of_an_answer(tmp_path):
    """As the settings of the generation, or those of the model, say."""
    loaded = load_model("tiny")
    assert load_encoder("tiny").end == loaded.end
    loaded.tokenizer.save_pretrained(tmp_path)
    loaded.model.generation_config.eos_token_id = [5, 6]
    loaded.model.save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path)).end == load_model(str(tmp_path)).end == 5
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    assert load_encoder(str(tmp_path)).end == load_model(str(tmp_path)).end == 7
