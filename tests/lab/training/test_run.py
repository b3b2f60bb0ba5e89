"""One run: files that can be trusted, the same numbers for the same seed, plain errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from packaging.version import Version

from numerate.lab.data import TASKS, Arithmetic
from numerate.lab.data.splits import held_out, reserved_rows, training_examples, validation_examples
from numerate.lab.evaluation.evaluate import summarize
from numerate.lab.files.records import jsonable, read_jsonl, write_json, write_text
from numerate.lab.models.encoding import collate, encode, training_data, training_order
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig, checked, read_yaml
from numerate.lab.training.kept_runs import evaluate
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack
from numerate.vocab import NumericVocab

EASY = {"difficulty": 1, "operations": "+-", "wording": "bare"}
QUICK = {"task_settings": EASY, "steps": 4, "batch_size": 8, "train_examples": 64, "eval_examples": 6, "log_every": 2}


def quick(**settings):
    return checked(RunConfig, {**QUICK, **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with its weights; shared, so tests write elsewhere."""
    folder = tmp_path_factory.mktemp("trained")
    run(quick(loss="smmd", keep_model=True), folder)
    return folder


def test_a_run_writes_what_it_promises(tmp_path, capsys):
    seen = []
    config = quick(loss="smmd", keep_model=True)
    result = run(config, tmp_path, progress=lambda *update: seen.append(update[:3]))
    assert capsys.readouterr().out == ""  # progress is reported, not printed
    assert ("train", 4, 4) in seen
    assert ("evaluate", 12, 12) in seen
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(jsonable(result)))
    assert result["headline"] == "exact"
    assert result["splits"] == {"interpolate": {"n": 6}, "extrapolate": {"n": 6}}
    assert result["cost"]["steps"] == 4
    curve = read_jsonl(tmp_path / "curve.jsonl")
    assert [point["step"] for point in curve] == [1, 2, 4]
    assert curve[-1]["loss"] == pytest.approx(curve[-1]["loss/cross_entropy"] + 0.3 * curve[-1]["loss/numeric"], rel=1e-3)
    assert 0 < curve[-1]["numeric/mass"] < 1
    assert all(0 < point["numeric/overrun"] < 1 for point in curve)
    record = read_jsonl(tmp_path / "predictions.jsonl")[0]
    assert record["measures"].keys() == {*Arithmetic.measures, "derailed"}
    digits = [character for character in record["gold"] if character.isdigit()]
    assert [digit["place"] for digit in record["digits"]] == list(range(len(digits)))[::-1]
    assert all(0 <= digit["p"] <= digit["mass"] <= 1 for digit in record["digits"])
    recorded = json.loads((tmp_path / "environment.json").read_text())["packages"]["torch"]
    assert Version(recorded).public == Version(torch.__version__).public  # the distribution of a CUDA build may not name CUDA
    card = (tmp_path / "model" / "README.md").read_text()
    assert "cross-entropy + 0.3 x `smmd`" in card
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("stacked", [False, True])
def test_no_model_is_trained_with_the_attention_of_cudnn(stacked, tmp_path, monkeypatch):
    assert torch.backends.cuda.cudnn_sdp_enabled()
    seen, attention = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, **kwargs):
        if torch.is_grad_enabled():
            seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    if stacked:
        run_stack([RunConfig(**QUICK)], [tmp_path])
    else:
        run(RunConfig(**QUICK), tmp_path)
    assert {*seen} == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled()


class Interrupted(Exception):  # noqa: N818
    pass


def resumed(config, folder, *, at):
    """Run until the end of step ``at``, as if killed while writing a line, then resume; return the steps that are repeated."""

    def stop(what, done, total, figures):
        if (what, done) == ("train", at):
            raise Interrupted

    with pytest.raises(Interrupted):
        run(config, folder, progress=stop)
    assert not (folder / "result.json").exists()
    with (folder / "curve.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    steps = []
    run(config, folder, progress=lambda what, done, *_: steps.append(done) if what == "train" else None)
    return steps


@pytest.mark.parametrize("loss", ["smmd", "soft"])
def test_resuming_from_a_checkpoint(loss, tmp_path):
    """Steps 4 and 5 are repeated; each has one line, one point in TensorBoard, and its own time."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = quick(loss=loss, soft={"width": 2} if loss == "soft" else None, steps=6, save_every=3, log_every=1, tensorboard=True)
    run(config, tmp_path / "whole")
    seen = []
    assert resumed(config, tmp_path / "broken", at=5) == [4, 5, 6]
    assert read_jsonl(tmp_path / "broken" / "predictions.jsonl") == read_jsonl(tmp_path / "whole" / "predictions.jsonl")
    for folder in (tmp_path / "whole", tmp_path / "broken"):
        points = read_jsonl(folder / "curve.jsonl")
        seconds = [point.pop("seconds") for point in points]
        assert seconds == sorted(seconds)
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        board = [(event.step, event.value) for event in events.Scalars("train/loss")]
        cost = json.loads((folder / "result.json").read_text())["cost"]
        seen.append((points, board, cost["tokens_per_second"] * cost["train_seconds"]))
    (whole, whole_board, tokens), (broken, broken_board, later_tokens) = seen
    assert [point["step"] for point in whole] == [step for step, _ in whole_board] == [1, 2, 3, 4, 5, 6]
    assert broken == whole
    assert broken_board == whole_board
    assert 0.3 * tokens < later_tokens < 0.7 * tokens  # the speed is that of the second part alone


def test_evaluating_again(trained, tmp_path):
    first = read_jsonl(trained / "predictions.jsonl")
    assert jsonable(evaluate(trained, {}, tmp_path / "again")) == first
    run(quick(loss="smmd", seed=1), tmp_path / "other")
    other = read_jsonl(tmp_path / "other" / "predictions.jsonl")
    assert other != first
    # The same test examples for every seed, so that runs can be compared in pairs.
    assert [record["prompt"] for record in other] == [record["prompt"] for record in first]
    more = evaluate(trained, {"eval_examples": 9, "samples": 4}, tmp_path / "more")
    assert len(more) == 18
    assert len(more[0]["samples"]) == 4
    assert "sample_crps" in more[0]["measures"]
    with pytest.raises(ValueError, match="cells: there is no such folder"):
        evaluate(tmp_path / "cells", {}, tmp_path)


def test_evaluation_goes_on_where_it_stopped(trained, tmp_path, monkeypatch):
    """Finished examples are not evaluated again, and the tokenizer is read once for all batches."""
    small = {"eval_batch_size": 2}
    expected = evaluate(trained, small, tmp_path / "whole")

    def stop(what, done, total, figures):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, small, tmp_path / "out", progress=stop)
    (part,) = (tmp_path / "out").glob(".predictions.*.part")
    with part.open("a") as file:
        file.write('{"split": "interpolate", "ind')  # the line that was being written
    seen, reads, read = [], [], NumericVocab.from_tokenizer
    monkeypatch.setattr(NumericVocab, "from_tokenizer", lambda tokenizer, **how: reads.append(1) or read(tokenizer, **how))
    records = evaluate(trained, small, tmp_path / "out", progress=lambda what, done, *_: seen.append(done))
    assert jsonable(records) == jsonable(expected)
    assert seen == [6, 8, 10, 12]
    assert len(reads) == 1


def test_summaries():
    """Means, or medians where a score can be infinite; null in a file is the score of no answer."""
    rows = [("a", 1.0, 0.5), ("a", None, None), ("a", 0.5, 0.1), ("b", 0.0, 3.0)]
    records = [{"split": split, "measures": {"exact": exact, "relative_error": error}} for split, exact, error in rows]
    assert summarize(records) == {"a": {"exact": 0.5, "relative_error": 0.5}, "b": {"exact": 0.0, "relative_error": 3.0}}


def test_what_does_not_fit_is_said(tmp_path):
    with pytest.raises(ValueError, match="max_length=8 is shorter than every example"):
        run(quick(max_length=8, task_settings={"difficulty": 5}), tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_configuration_files(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("task: arithmetic\nloss: smmd\nsteps: 3\n")
    assert checked(RunConfig, read_yaml(path)).loss == "smmd"
    for text, message in (
        ("", "is empty: expected settings"),
        ("- a\n", "holds a list: expected settings"),
        ("a: [", "is not valid YAML"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_yaml(path)


LEAST = {
    **dict.fromkeys(("rank", "steps", "batch_size", "accumulation", "train_examples", "log_every", "save_every"), 1),
    **dict.fromkeys(("eval_examples", "eval_batch_size", "max_new_tokens", "decide_width", "validate_every", "members"), 1),
    **dict.fromkeys(("weight", "number_weight", "seed", "warmup", "weight_decay", "samples"), 0),
    "max_length": 8,
}


def test_bounds_of_settings():
    numbers = {name for name, field in RunConfig.model_fields.items() if field.metadata}
    assert numbers == {*LEAST, "learning_rate", "max_grad_norm", "interval"}
    assert RunConfig(**LEAST).model_dump() == RunConfig().model_dump() | LEAST
    for name, least in LEAST.items():
        below = least - 1 if isinstance(getattr(RunConfig(**LEAST), name), int) else least - 1e-9
        with pytest.raises(ValueError, match=name):
            RunConfig(**{name: below})
    for name, least in (("learning_rate", 0.0), ("max_grad_norm", 0.0), ("warmup", 1.0), ("interval", 0.0), ("interval", 1.0)):
        with pytest.raises(ValueError, match=name):
            RunConfig(**{name: least})
    assert RunConfig(learning_rate=1e-9, max_grad_norm=1e-9, warmup=0.999).warmup == 0.999


def test_the_hash_is_of_what_decides_the_result():
    assert quick().hash == quick(label="plain", log_every=1, keep_model=True).hash
    assert len({quick(seed=1).hash, quick().hash, quick(steps=5).hash, quick(weight=0.1).hash}) == 4
    assert RunConfig().hash == "4d01b002fa71cf2a"  # names the folders of finished runs: another value runs them all again


def test_the_learning_rate_suits_the_model():
    assert RunConfig.model_fields["learning_rate"].default is None
    assert RunConfig().learning_rate == RunConfig(learning_rate=None).learning_rate
    assert RunConfig().learning_rate > 10 * RunConfig(model="smollm2").learning_rate
    assert RunConfig(model="smollm2", adapter="lora").learning_rate > RunConfig(model="smollm2").learning_rate
    assert RunConfig(model="smollm2", learning_rate=0.5).learning_rate == 0.5
    assert RunConfig(**RunConfig(model="smollm2").model_dump()) == RunConfig(model="smollm2")


# Data


def test_training_order():
    def spread(lengths, order):
        """Mean difference of the longest and the shortest of a batch."""
        batches = [[lengths[at] for at in order[i : i + 4]] for i in range(0, len(order), 4)]
        return sum(max(batch) - min(batch) for batch in batches) / len(batches)

    similar, different = [20 + at % 7 for at in range(100)], [1 + 7 * (at % 7) for at in range(100)]
    for lengths in (similar, different):
        order = training_order(lengths, 4, 60, seed=1)
        assert len(order) == 240
        assert {order.count(at) for at in range(100)} <= {2, 3}
        firsts = [lengths[order[i]] for i in range(0, 240, 4)]
        assert firsts != sorted(firsts)
        assert training_order(lengths, 4, 60, seed=1) == order != training_order(lengths, 4, 60, seed=2)
    assert spread(different, training_order(different, 4, 60, seed=1)) < 7  # one step of the lengths at most, on average
    assert spread(similar, training_order(similar, 4, 60, seed=1)) > 3  # four at random: 4.1


def test_only_the_answer_is_learnt():
    loaded = load_model("tiny")
    example = Arithmetic(wording="bare").examples("train", 1)[0]
    (row,) = encode(loaded, [example])
    learnt = [token for token in row["labels"] if token != -100]
    assert loaded.tokenizer.decode(learnt) == f"{example.answer}<eos>"
    assert loaded.tokenizer.decode(row["input_ids"]) == f"{example.prompt}\n{example.answer}<eos>"
    for left in (False, True):
        batch = collate([row, {"input_ids": [5], "labels": [5]}], pad=0, left=left)
        assert batch["attention_mask"].sum(1).tolist() == [len(row["input_ids"]), 1]
        at = -1 if left else 0
        assert [int(batch[name][1, at]) for name in ("input_ids", "labels", "attention_mask")] == [5, 5, 1]
        assert (batch["labels"][1] == -100).sum() == len(row["input_ids"]) - 1


def test_validation_and_test_share_no_example():
    task = Arithmetic(**EASY)
    assert set(held_out(task, ("interpolate", "extrapolate"), 6)) == {"interpolate", "extrapolate"}
    test = {example.prompt for example in held_out(task, ("interpolate",), 6)["interpolate"]}
    validation = {example.prompt for example in validation_examples(task, 6, seed=0)["interpolate"]}
    assert test
    assert validation
    assert not test & validation
    shares = [sum(len(prompt) > 4 for prompt in prompts) / len(prompts) for prompts in (test, validation)]
    assert abs(shares[0] - shares[1]) < 0.3  # neither has all the short questions


def test_validation_of_data_from_files(tmp_path, monkeypatch):
    """The whole test set stays the test set; validation comes out of the training rows, and is not trained on."""
    (tmp_path / "train.txt").write_text("".join(f"{i} + 2\n{i + 2}\n" for i in range(50)))
    (tmp_path / "interpolate.txt").write_text("".join(f"{i} + 1\n{i + 1}\n" for i in range(9)))
    task = Arithmetic.from_files(tmp_path)

    def prompts(examples):
        return {example.prompt for example in examples}

    assert len(held_out(task, ("interpolate", "extrapolate"), 200)["interpolate"]) == 9
    every = prompts(training_examples(task, 1000, seed=3))
    assert len(every) == 50
    validation = prompts(validation_examples(task, 9, seed=3)["interpolate"])
    assert len(validation) == reserved_rows(task, 9) == 9
    assert reserved_rows(task, 200) == 10  # a fifth
    tuned = prompts(training_examples(task, 1000, seed=3, reserved=9))
    assert tuned | validation == every
    assert not tuned & validation
    seen, encode_all = [], training_data
    monkeypatch.setattr(
        "numerate.lab.training.prepare.training_data",
        lambda loaded, rows, **how: seen.extend(rows) or encode_all(loaded, rows, **how),
    )
    counts = {"train_examples": 1000, "eval_examples": 9, "seed": 3}
    run(quick(data=str(tmp_path), task_settings={}, validation=True, **counts), tmp_path / "run")
    assert prompts(seen) == tuned
    assert {record["prompt"] for record in read_jsonl(tmp_path / "run" / "predictions.jsonl")} == validation
    (tmp_path / "train.txt").write_text("1 + 1\n2\n")
    with pytest.raises(ValueError, match="too few"):
        validation_examples(Arithmetic.from_files(tmp_path), 9, seed=3)


@pytest.mark.launch
def test_two_processes_train_as_one_that_accumulates(tmp_path):
    """The same batches and draws in the same order: accelerate launch changes the speed of a run, and nothing else."""
    settings = {**QUICK, "loss": "smmd", "soft": {"width": 2}, "log_every": 1, "eval_examples": 2, "keep_model": False}
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0", "-m", "numerate"]  # 0: any that is free
    flags = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    environment = {**os.environ, "PYTHONPATH": f"src:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, "train", *flags, "--out", str(tmp_path / "two")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("results in") == 1
    run(checked(RunConfig, {**settings, "accumulation": 2}), tmp_path / "one")
    two, one = (read_jsonl(tmp_path / name / "curve.jsonl") for name in ("two", "one"))
    for key in ("step", "loss", "grad_norm", "loss/numeric"):
        assert [point[key] for point in two] == pytest.approx([point[key] for point in one], rel=1e-4)


# Models and files


def test_an_adapter_is_all_that_is_trained(recwarn):
    pytest.importorskip("peft")
    warnings.simplefilter("always")
    model = load_model("tiny", adapter="lora", rank=2).model
    assert not [warning for warning in recwarn if warning.category is FutureWarning]  # users could do nothing about them
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def test_a_model_from_a_folder(tmp_path):
    """With its own chat template, and nothing to pad with; trained, kept, and evaluated again."""
    loaded = load_model("tiny")
    loaded.tokenizer.pad_token = None
    loaded.tokenizer.chat_template = TEMPLATE
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    config = quick(model=str(tmp_path / "model"), loss="smmd", keep_model=True)
    assert config.learning_rate < RunConfig().learning_rate
    run(config, tmp_path / "run")
    again = load_model(str(tmp_path / "model"))
    assert again.chat
    assert again.prompt("1+1=") == "1+1=>"
    assert torch.equal(again.model.lm_head.weight, loaded.model.lm_head.weight)
    trained = load_model(tmp_path / "run" / "model")
    assert not torch.equal(trained.model.lm_head.weight, loaded.model.lm_head.weight)
    first = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    evaluate(tmp_path / "run", {}, tmp_path / "again")
    assert read_jsonl(tmp_path / "again" / "predictions.jsonl") == first


def test_a_vision_language_model_from_a_folder(tmp_path):
    """Pictures go through its own processor."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    loaded = load_model("tiny-vlm")
    side = {"height": 112, "width": 112}
    processor = LlavaProcessor(
        CLIPImageProcessor(size=side, crop_size=side),
        loaded.tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    loaded.model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    settings = {"model": str(tmp_path / "model"), "task": "clock", "task_settings": {}, "loss": "smmd", "steps": 2}
    run(quick(**settings, batch_size=2, train_examples=4, eval_examples=2), tmp_path / "run")
    again = load_model(str(tmp_path / "model"))
    assert again.sees
    example = TASKS["clock"]().examples("train", 1)[0]
    (row,) = again.encode([(example.prompt, example.image)])
    assert row["pixel_values"].shape == (1, 3, 112, 112)
    assert row["input_ids"].count(again.tokenizer.convert_tokens_to_ids("<image>")) == 64
    records = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    assert len(records) == 4
    assert (tmp_path / "run" / records[0]["image"]).is_file()
    assert "time_gap_circular" in records[0]["measures"]


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": float("inf"), "y": [float("nan"), 1]})
    monkeypatch.setattr("os.fsync", lambda _: path.joinpath("full").mkdir())
    with pytest.raises(OSError, match="Not a directory"):
        write_text(path, "half")
    assert json.loads(path.read_text()) == {"x": None, "y": [None, 1]}
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


def test_every_task_has_a_model_that_can_learn_it():
    for name, kind in TASKS.items():
        assert kind.visual == (kind().examples("train", 1)[0].image is not None), name


@pytest.mark.parametrize("stacked", [False, True])
def test_a_run_that_diverges_says_so(stacked, tmp_path):
    configs = [quick(seed=seed, learning_rate=rate) for seed, rate in ((0, 1e-3), (1, 1e30))]
    folders = [tmp_path / "right", tmp_path / "diverged"]
    if stacked:
        results = run_stack(configs, folders)
    else:
        results = [run(config, folder) for config, folder in zip(configs, folders, strict=True)]
    assert results[0]["notes"] == []
    (note,) = results[1]["notes"]
    assert "Training of ce with seed 1 diverged: its weights are not finite" in note
    assert "learning_rate=1e+30" in note
    diverged = read_jsonl(folders[1] / "curve.jsonl")
    assert any(point["grad_norm"] is None or point["loss"] is None for point in diverged)


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize("loss", ["ce", "smmd", "scalar_head"])
def test_activations_that_are_computed_again_change_nothing(loss, adapter, tmp_path, monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaMLP

    computed, forward = [], LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: computed.append(self.training) or forward(self, x))
    losses, counts = [], []
    for again in (False, True):
        config = quick(loss=loss, adapter=adapter, gradient_checkpointing=again, steps=3, log_every=1)
        assert config.hash == quick(loss=loss, adapter=adapter, steps=3).hash
        computed.clear()
        run(config, tmp_path / str(again))
        counts.append(sum(computed))
        losses.append([point["loss"] for point in read_jsonl(tmp_path / str(again) / "curve.jsonl")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] != losses[0][0]
    assert counts[1] == 2 * counts[0] > 0
