"""Runs with several members: the same rows, the pool of all in the records, and a folder that works alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from numerate.decode import distribution
from numerate.distribution import pool, spread
from numerate.lab.comparison.cells import cell_folder, is_finished, run_cells, train_cells
from numerate.lab.data import TASKS
from numerate.lab.data.settings import make_task
from numerate.lab.evaluation.decisions import recorded_distribution
from numerate.lab.files.records import read_jsonl
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.models.questions import ASKED
from numerate.lab.prediction.answering import find_source
from numerate.lab.prediction.train import InterruptedTraining, train
from numerate.lab.training.config import NO_EFFECT, RunConfig
from numerate.lab.training.kept_runs import evaluate, load_run
from numerate.lab.training.prepare import load_run_model, run_data, run_encoder
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack, stacks

EASY = {"difficulty": 1, "operations": "+-", "wording": "bare"}
FEW = {"steps": 3, "batch_size": 4, "train_examples": 24, "eval_examples": 3, "eval_batch_size": 2, "log_every": 1}
HOW: dict[str, dict[str, Any]] = {
    "a stack": {},
    "adapters": {"adapter": "lora", "rank": 2},
    "whole models": {"number_weight": 2.0},  # which is not stacked
}


def config(**settings: Any) -> RunConfig:
    task = {"task": "arithmetic", "task_settings": EASY, "eval_splits": ("interpolate",)}
    return RunConfig(**task | FEW | {"decide": ("median", "mode"), "members": 3, "keep_model": True} | settings)


def records(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "seconds"} for one in read_jsonl(folder / "predictions.jsonl")]


def contents(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Predictions without times, and the weights of all members."""
    return records(folder), {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.glob("model/**/*.safetensors"))}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each kind."""
    made = {how: tmp_path_factory.mktemp("run") for how in HOW}
    for how, settings in HOW.items():
        run(config(**settings), made[how])
    return made


def test_one_member_is_no_setting() -> None:
    assert RunConfig(members=1).hash == RunConfig().hash
    assert "members" not in RunConfig(members=1).used
    assert len({RunConfig(members=count).hash for count in (1, 2, 3)}) == 3
    assert "members" not in NO_EFFECT


@pytest.mark.parametrize("soft", [None, {"width": 2.0}])
def test_members_have_the_rows_of_their_run_in_other_orders(soft: dict[str, float] | None) -> None:
    own = config(soft=soft, steps=48)  # eight passes
    task = make_task(own)
    loaded = load_run_model(own, run_encoder(own, task))
    seen = [run_data(own, task, loaded, member=member)[0] for member in range(3)]
    texts = [[loaded.tokenizer.decode(row["input_ids"]) for row in rows] for rows in seen]
    questions = [[text.split("\n")[0] for text in rows] for rows in texts]
    assert set(questions[0]) == set(questions[1]) == set(questions[2])
    assert questions[0] != questions[1] != questions[2] != questions[0]
    assert (sorted(texts[0]) == sorted(texts[1])) == (soft is None)  # whole passes, with other answers if these are drawn
    first = run_data(own.model_copy(update={"members": 1}), task, loaded)[0]
    assert [*first] == [*seen[0]]
    other = run_data(own.model_copy(update={"seed": 1}), task, loaded)[0]
    assert {loaded.tokenizer.decode(row["input_ids"]).split("\n")[0] for row in other} != set(questions[0])


@pytest.mark.parametrize("how", HOW)
def test_the_first_member_is_the_run_with_one(how: str, folders: dict[str, Path], tmp_path: Path) -> None:
    run(config(members=1, **HOW[how]), tmp_path)
    alone, first = records(tmp_path), records(folders[how])
    for one, own in zip(alone, first, strict=True):
        assert (one["output"], one["measures"]) == (own["output"], own["measures"])
        assert own["nll"] == pytest.approx(one["nll"], rel=1e-4)
        assert own["pools"]["1"]["decisions"] == one["decisions"]
        assert own["pools"]["1"]["crps"] == pytest.approx(one["crps"], rel=1e-3, abs=1e-6)
    (file,) = tmp_path.glob("model/*.safetensors")
    if how != "a stack":  # which rounds differently
        assert (folders[how] / "model" / file.name).read_bytes() == file.read_bytes()
    lines = [read_jsonl(folder / "curve.jsonl") for folder in (tmp_path, folders[how])]
    for one, own in zip(*lines, strict=True):
        assert own["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.parametrize("how", HOW)
def test_a_record_has_the_pool_of_its_members_and_of_the_first_of_them(how: str, folders: dict[str, Path]) -> None:
    own = config(**HOW[how])
    loaded = load_run(folders[how], own)
    assert loaded.pool is not None
    assert loaded.pool.size == 3
    found = records(folders[how])
    rows = collate(loaded.encode([(one["prompt"], None) for one in found]), pad=loaded.pad, left=True)
    search: dict[str, Any] = {"grammar": make_task(own).answer_grammar(), "seed": own.seed, "end_token_ids": [loaded.end]}
    adapters = loaded.pool.adapters
    if adapters is None:
        alone = [distribution(model, rows, loaded.tokenizer, **search) for model in loaded.pool.models]
    else:
        alone = [distribution(loaded.model, rows, loaded.tokenizer, adapters=[name], **search) for name in adapters]
    assert len({str(members[0].probabilities) for members in alone}) == 3
    for record, *members in zip(found, *alone, strict=True):
        kept, whole, apart = recorded_distribution(record), pool(members), spread(members)
        assert kept is not None
        masses = dict(zip(kept.values, kept.probabilities.tolist(), strict=True))
        for value, mass in zip(whole.values, whole.probabilities.tolist(), strict=True):
            assert masses.get(value, 0.0) == pytest.approx(mass, abs=1e-6)
        assert kept.covered == pytest.approx(whole.covered, abs=1e-6)
        assert record["members"]["disagreement"] == pytest.approx(apart.between, rel=1e-4)
        assert record["members"]["within"] == pytest.approx(apart.within, rel=1e-4)
        assert [*record["pools"]] == ["1", "2"]
        for count, some in record["pools"].items():
            smaller = pool(members[: int(count)])
            assert some["decisions"].keys() == record["decisions"].keys()
            assert float(some["median"]) == float(smaller.median)
            assert some["crps"] == pytest.approx(smaller.crps(record["truth"]), rel=1e-4)
    # The same records, from the weights that were kept.
    evaluate(folders[how], {}, folders[how] / "again")
    again = records(folders[how] / "again")
    assert [one["decisions"] for one in again] == [one["decisions"] for one in found]
    assert [one["members"] for one in again] == [pytest.approx(one["members"], rel=1e-5) for one in found]


@pytest.mark.parametrize("how", HOW)
def test_a_folder_with_members_works_alone(how: str, folders: dict[str, Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folders[how] / "model", moved)
    assert json.loads((moved / ASKED).read_text())["members"] == 3
    source = find_source(str(moved))
    assert source.config is None
    found, kept = source.load(), load_run(folders[how], config(**HOW[how]))
    assert found.pool is not None
    assert kept.pool is not None
    assert found.pool.adapters == kept.pool.adapters
    for one, other in zip(found.pool.models, kept.pool.models, strict=True):
        weights = dict(other.named_parameters())
        assert all(torch.equal(weight, weights[name]) for name, weight in one.named_parameters())
    mark = source.weights
    (file,) = (moved / "members" / "2").glob("*.safetensors")
    os.utime(file, (1, 1))
    assert source.weights != mark
    shutil.rmtree(moved / "members" / "2")
    with pytest.raises(ValueError, match=r"members/2 is missing: expected the weights of 3 members"):
        source.load()


def test_anybody_can_load_the_first_member(folders: dict[str, Path]) -> None:
    alone = transformers.AutoModelForCausalLM.from_pretrained(folders["a stack"] / "model")
    assert torch.equal(alone.lm_head.weight, load_run(folders["a stack"], config()).model.lm_head.weight)
    peft = pytest.importorskip("peft")
    base = load_model("tiny").model
    model = peft.PeftModel.from_pretrained(base, folders["adapters"] / "model")
    assert [*model.peft_config] == ["default"]


def test_the_cost_is_that_of_all_members(folders: dict[str, Path]) -> None:
    for how, folder in folders.items():
        cost, one = (
            json.loads((folder / "result.json").read_text())["cost"],
            load_run_model(config(**HOW[how]), load_encoder("tiny")),
        )
        assert cost["members"] == 3
        assert cost["parameters"] == sum(weight.numel() for weight in one.model.parameters())
        assert cost["train_seconds"] > 0
        curves = [read_jsonl(place / "curve.jsonl") for place in (folder, folder / "members" / "1", folder / "members" / "2")]
        assert [[point["step"] for point in curve] for curve in curves] == [[1, 2, 3]] * 3
        assert len({curve[-1]["loss"] for curve in curves}) == 3
        assert not (folder / "checkpoints").exists()


# Interrupted


def interrupt(stage: str, at: int) -> Any:
    def progress(what: str, done: int, *_: object) -> None:
        if (what, done) == (stage, at):
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.mark.parametrize("how", [*HOW, "parts of a stack"])
def test_members_that_are_interrupted_end_like_those_that_are_not(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(**HOW.get(how, {}), steps=2, members=2).model_dump(exclude_unset=True)
    turns = 1 if how == "a stack" else 2
    if how == "parts of a stack":
        monkeypatch.setattr("numerate.lab.training.stacked.train._MOST_ON_CPU", 1)
    if how == "adapters":
        pytest.importorskip("peft")
    train(out=tmp_path / "whole", **settings)
    part, total = tmp_path / "part", 2 * turns
    for step in range(1, total):
        with pytest.raises(InterruptedTraining, match=f"^Interrupted: step {step} of {total} is saved in {part}.$"):
            train(out=part, resume=step > 1, progress=interrupt("train", step), **settings)
    lines: list[str] = []
    with pytest.raises(InterruptedTraining, match="is trained; its evaluation is left"):
        train(out=part, resume=True, say=lines.append, progress=interrupt("evaluate", 2), **settings)
    assert f"resumed after step {total - 1}" in " ".join(" ".join(lines).split())
    seen: list[str] = []
    train(out=part, resume=True, progress=lambda what, *_: seen.append(what), **settings)
    assert "train" not in seen
    assert contents(part) == contents(tmp_path / "whole")
    assert len(contents(part)[1]) == 2
    assert {path.name for path in part.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


def test_a_run_that_starts_over_keeps_no_trained_member(tmp_path: Path) -> None:
    own = config(steps=2)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, progress=interrupt("evaluate", 2), **own.model_dump(exclude_unset=True))
    assert len([*tmp_path.glob("checkpoints/member-*.pt")]) == 3
    seen: list[str] = []
    run(own, tmp_path, resume=False, progress=lambda what, *_: seen.append(what))
    assert "train" in seen


# Stacks of runs with members


def test_runs_with_members_share_a_stack(tmp_path: Path) -> None:
    cells = [config(seed=seed, members=2, keep_model=False) for seed in (0, 1)]
    run_stack(cells, [tmp_path / str(seed) for seed in (0, 1)])
    for own in cells:
        run(own, tmp_path / "alone" / str(own.seed))
        for one, other in zip(records(tmp_path / str(own.seed)), records(tmp_path / "alone" / str(own.seed)), strict=True):
            assert one["decisions"] == other["decisions"]
            assert one["members"] == pytest.approx(other["members"], rel=1e-3)
    train_cells(cells, tmp_path / "apart")
    assert not any(is_finished(tmp_path / "apart", own) for own in cells)
    run_cells(cells, tmp_path / "apart", progress=lambda what, *_: pytest.fail("trained again") if what == "train" else None)
    for own in cells:
        assert [one["decisions"] for one in records(cell_folder(tmp_path / "apart", own))] == [
            one["decisions"] for one in records(tmp_path / str(own.seed))
        ]


def test_a_stack_counts_members() -> None:
    cells = [config(seed=seed, members=4) for seed in range(6)]
    assert [len(part) for part in stacks(cells, 8)] == [2, 2, 2]
    assert [len(part) for part in stacks(cells, 3)] == [1] * 6
    assert [len(part) for part in stacks([config(members=count, seed=count) for count in (1, 2)], 4)] == [2]


# What is refused, and every task


@pytest.mark.parametrize(
    ("settings", "launched", "message"),
    [
        ({"loss": "scalar_head", "keep_model": False}, "1", "members=3 is not supported for loss='scalar_head'"),
        ({"decide": ()}, "1", "members=3 has no decide, and greedy answers cannot be pooled: expected a rule"),
        ({}, "2", "members=3 is trained by one process, and 2 are launched"),
        ({"task": "grounding", "task_settings": {}, "model": "tiny-vlm", "decide": ()}, "1", "members=3 .* a box of four"),
    ],
)
def test_members_that_cannot_be_are_refused_before_anything_is_loaded(
    settings: dict[str, Any], launched: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", launched)
    monkeypatch.setattr("numerate.lab.training.prepare.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match=message):
        train(out=tmp_path, **config(**settings).model_dump(exclude_unset=True))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_members_or_says_why_not(name: str, tmp_path: Path) -> None:
    kind = TASKS[name]
    own = {"task": name, "task_settings": {}, "steps": 1, "members": 2, "train_examples": 4, "eval_examples": 1, "samples": 2}
    own |= {"model": "tiny-vlm" if kind.visual else "tiny", "decide": ("mode",), "max_new_tokens": 3, "keep_model": False}
    if kind.answer_is != "one number" and not kind.ends_in_number:
        with pytest.raises(ValueError, match=kind.answer_is):
            train(out=tmp_path, **config(**own).model_dump(exclude_unset=True))
        return
    run(config(**own), tmp_path)
    (record,) = records(tmp_path)
    assert record["members"].keys() == {"disagreement", "within"}
    assert record["pools"]["1"]["decisions"].keys() == {"mode"}
    assert len(record["samples"]) == 2


def small(**settings: Any) -> dict[str, Any]:
    tokens = load_encoder("tiny").tokenizer
    special = {"pad_token_id": tokens.pad_token_id, "eos_token_id": tokens.eos_token_id, "bos_token_id": None}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return {"vocab_size": len(tokens), **special, **(sizes | {"num_key_value_heads": 1} | settings)}


KINDS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small())),
    "qwen": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**small())),
    "gemma": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**small(head_dim=8))),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**small(n_embd=16, n_layer=1, n_head=2, n_positions=64))
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", ["lora", "none"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # peft, of GPT-2
def test_members_of_pretrained_models(adapter: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    KINDS[kind]().save_pretrained(tmp_path / "base")
    load_encoder("tiny").tokenizer.save_pretrained(tmp_path / "base")
    own = config(model=str(tmp_path / "base"), adapter=adapter, rank=2, members=2, max_new_tokens=3, decide=("median",))
    run(own, tmp_path / "run")
    found, loaded = records(tmp_path / "run"), load_run(tmp_path / "run", own)
    assert loaded.pool is not None
    rows = collate(loaded.encode([(one["prompt"], None) for one in found]), pad=loaded.pad, left=True)
    models: Any = [*loaded.pool.models] if loaded.pool.adapters is None else loaded.model
    search: dict[str, Any] = {"grammar": make_task(own).answer_grammar(), "seed": own.seed, "end_token_ids": [loaded.end]}
    for record, one in zip(
        found, distribution(models, rows, loaded.tokenizer, adapters=loaded.pool.adapters, **search), strict=True
    ):
        assert float(record["median"]) == float(one.median)
        assert record["crps"] == pytest.approx(one.crps(record["truth"]), rel=1e-4)
    shutil.copytree(tmp_path / "run" / "model", tmp_path / "moved")
    again = find_source(str(tmp_path / "moved")).load().pool
    assert again is not None
    assert again.size == 2
    card = (tmp_path / "moved" / "README.md").read_text()
    assert "2 members were trained" in card
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1]
    monkeypatch.chdir(tmp_path / "moved")
    exec(compile(code, "README.md", "exec"), values := {})
    (said,) = values["found"]
    whole = distribution(models, [f"{found[0]['prompt']}\n"], loaded.tokenizer, adapters=loaded.pool.adapters)
    assert said == whole[0]
