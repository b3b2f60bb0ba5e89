"""Files of somebody else: settings, models, runs and data that try to run code, or to be written elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.comparison.compare import compare
from numerate.lab.data import TASKS
from numerate.lab.files.records import run_folder
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.prediction.answering import Answering, find_source
from numerate.lab.prediction.predict import predict
from numerate.lab.prediction.train import train
from numerate.lab.training.config import RunConfig, read_yaml
from numerate.lab.training.kept_runs import evaluate, trained_config
from numerate.lab.training.model_card import save_model
from numerate.tokenizers import load_tokenizer

CODE = "from pathlib import Path\nPath({mark!r}).touch()\nclass Mine: pass\n"
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
AUTO_MAP = {"AutoConfig": "evil.Mine", "AutoModelForCausalLM": "evil.Mine", "AutoProcessor": "evil.Mine"}


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path):
    """The path of a file that code of an attacker makes; no test may leave it there."""
    path = tmp_path / "entered"
    yield path
    assert not path.exists()


def test_the_payload_works(tmp_path: Path):
    """Else the tests below would show nothing."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "entered")))
    assert (tmp_path / "entered").is_dir()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_model(load_model("tiny"), folder, "card")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of a small model, to damage."""
    return Path(shutil.copytree(saved, tmp_path / "theirs"))


class TestSettings:
    @pytest.mark.parametrize(
        "tag",
        [
            "!!python/object/apply:os.mkdir [{mark}]",
            "!!python/object/new:os.mkdir [{mark}]",
            "!!python/name:os.system",
            "!!python/module:os",
            "!mine {mark}",
        ],
    )
    @pytest.mark.parametrize("command", ["train", "compare"])
    def test_tags_build_nothing(self, tmp_path: Path, mark: Path, tag: str, command: str):
        file = tmp_path / "run.yaml"
        file.write_text(f"task: arithmetic\nlabel: {tag.format(mark=mark)}\n")
        done = CliRunner().invoke(app, [command, str(file), "--out", str(tmp_path / "out")])
        assert done.exit_code == 1
        assert "is not valid YAML: could not determine a constructor for the tag" in " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (LAUGHS, "10,000 values"),
            ("label: &a [*a]\n", "10,000 values"),
            ("label: " + "[" * 2_000, "is not valid YAML"),
            ("# " + "x" * (1 << 20), "more than 1 MiB"),
            ("trust_remote_code: true\n", "not read from a file.*--set trust_remote_code=true"),
            ("losses: [{loss: emd, trust_remote_code: yes}]\n", "not read from a file"),
        ],
        ids=["billion laughs", "itself", "deep", "large", "trust", "trust of a loss"],
    )
    def test_bombs_and_permissions(self, tmp_path: Path, text: str, message: str):
        (tmp_path / "run.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_yaml(tmp_path / "run.yaml")

    def test_aliases_and_a_refused_permission_are_read(self, tmp_path: Path):
        (tmp_path / "run.yaml").write_text("losses: [&a {loss: emd}, {<<: *a, label: b}]\ntrust_remote_code: false\n")
        assert read_yaml(tmp_path / "run.yaml")["losses"] == [{"loss": "emd"}, {"loss": "emd", "label": "b"}]


NAMES = ["../../x", "..", ".", "", "/etc/x", "a/b", "a\\b", "a\0b", "a\nb", "\ud800", "x" * 300]


class TestNames:
    @pytest.mark.parametrize("name", NAMES[:-1])
    def test_a_folder_of_runs(self, name: str):
        with pytest.raises(ValueError, match="cannot be a folder in runs: expected .* --out"):
            run_folder(name)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_comparison_stays_in_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
        inside = tmp_path / "a" / "b"
        inside.mkdir(parents=True)
        monkeypatch.chdir(inside)
        with pytest.raises((ValueError, OSError), match=r"name=.* cannot be a folder|too long.*--out"):
            compare(name=name, losses=["ce"], task="arithmetic", steps=1, seeds=1, progress=False)
        assert {path.name for path in tmp_path.rglob("*")} <= {"a", "b", "runs"}

    @pytest.mark.parametrize("label", ["../../../x", "/etc/x", "a\0b", "..", "a b/c", "<script>"])
    def test_a_label_stays_in_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str):
        from numerate.lab.prediction import train as training

        wanted: list[Path] = []

        class EnoughError(Exception):
            pass

        def claim(folder: Path, *args: Any, **kwargs: Any) -> bool:
            wanted.append(folder)
            raise EnoughError

        monkeypatch.setattr(training, "claim", claim)
        with pytest.raises(EnoughError):
            train(label=label, steps=1)
        assert wanted[0].parent == Path("runs")
        assert wanted[0].name.startswith("arithmetic-")
        assert wanted[0].name.isprintable()

    @pytest.mark.parametrize("name", ["../../arithmetic", "/arithmetic", "arithmetic\0", "arithmetic/../clock", "a" * 10_000])
    @pytest.mark.parametrize("setting", ["task", "loss"])
    def test_tasks_and_losses_are_those_that_are_known(self, setting: str, name: str):
        with pytest.raises(ValueError, match="is not known: expected one of"):
            RunConfig(**{setting: name})
        assert name not in TASKS

    @pytest.mark.parametrize("name", ["../other", "a/b", "/etc", "", "..", "a\0b", 7])
    def test_cells_of_a_comparison(self, tmp_path: Path, name: Any):
        from numerate.lab.report import write_report

        (tmp_path / "experiment.json").write_text(json.dumps({"cells": [name]}))
        with pytest.raises(ValueError, match=r"is not a list of folders|has no finished run"):
            write_report(tmp_path)

    @pytest.mark.parametrize("name", ["a\0.png", "x" * 5000 + ".png", "../" * 50 + "nowhere.png", "http://x.example/a.png"])
    def test_pictures_that_a_row_names(self, tmp_path: Path, name: str):
        from numerate.lab.data.regression import Regression

        (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "?", "answer": "1", "image": name}) + "\n")
        with pytest.raises(ValueError, match=r"rows.jsonl, line 1: the image .* is missing"):
            Regression.from_files(tmp_path / "rows.jsonl")


LATER = ("scheduler.pt", "rng_state.pth")


class TestPickles:
    @pytest.mark.parametrize("kind", ["zip", "raw"])
    def test_weights_of_a_model(self, folder: Path, mark: Path, kind: str):
        (folder / "model.safetensors").unlink()
        if kind == "zip":
            torch.save({"weight": Payload(mark)}, folder / "pytorch_model.bin")
        else:
            (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark), protocol=2))
        with pytest.raises(ValueError, match=r"weights in a pickle .* which is not run: expected weights in safetensors"):
            load_model(folder)

    def test_an_adapter(self, tmp_path: Path, mark: Path):
        loaded = load_model("tiny", adapter="lora", rank=2)
        run = tmp_path / "run"
        save_model(loaded, run / "model", "card")
        (run / "config.json").write_text(json.dumps({"model": "tiny", "adapter": "lora", "rank": 2}))
        next((run / "model").glob("adapter_model*")).unlink()
        torch.save({"weight": Payload(mark)}, run / "model" / "adapter_model.bin")
        with pytest.raises(ValueError, match="weights in a pickle"):
            find_source(str(run)).load()

    @pytest.mark.parametrize("file", ["optimizer.pt", *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)])
    def test_a_checkpoint(self, interrupted: Path, tmp_path: Path, mark: Path, file: str):
        run = Path(shutil.copytree(interrupted, tmp_path / "run"))
        (checkpoint,) = (run / "checkpoints").glob("checkpoint-*")
        assert (checkpoint / file).is_file()
        torch.save({"state": Payload(mark)}, checkpoint / file)
        done = CliRunner().invoke(app, ["train", *QUICK, "--out", str(run), "--resume"])
        assert done.exit_code == 1
        assert "a pickle that is damaged or contains more than tensors, such as code, which is not run" in done.stderr
        assert "Traceback" not in done.stderr

    def test_arrays_of_objects_are_no_data(self, tmp_path: Path, mark: Path):
        np.savez(tmp_path / "rows.npz", a=np.array([Payload(mark)], dtype=object))
        with pytest.raises((ValueError, OSError), match="npz"):
            predict("tiny", tmp_path / "rows.npz", tmp_path / "out.csv", prompt="{a}")

    @pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.jsonl", "rows.json", "rows.csv.gz", "rows.pkl"])
    def test_a_pickle_by_another_name(self, tmp_path: Path, mark: Path, name: str):
        (tmp_path / name).write_bytes(pickle.dumps([Payload(mark)]))
        with pytest.raises((ValueError, OSError)):
            predict("tiny", tmp_path / name, tmp_path / "out.csv", prompt="{a}")


QUICK = ["--steps", "4", "--set", "save_every=2", "--set", "eval_examples=1", "--set", "batch_size=2"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after its first checkpoint."""
    from transformers import Trainer

    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer.training_step

        def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                raise ValueError("stopped")
            return step(self, *args, **kwargs)

        patch.setattr(Trainer, "training_step", training_step)
        done = CliRunner().invoke(app, ["train", *QUICK, "--out", str(folder)])
    assert "stopped" in done.stderr, done.stderr
    return folder


class TestCodeOfModels:
    @pytest.fixture
    def theirs(self, folder: Path, mark: Path) -> Path:
        """A model of a kind that transformers does not know, whose code makes a file."""
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": AUTO_MAP}))
        (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
        tokenizer = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["evil.Mine", "evil.Mine"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return folder

    @pytest.mark.parametrize(
        "load",
        [
            load_model,
            lambda folder: load_encoder(str(folder)),
            load_tokenizer,
            lambda folder: train(model=str(folder), steps=1, out=folder.parent / "run"),
            lambda folder: compare(model=str(folder), losses=["ce"], task="arithmetic", out=folder.parent / "c", progress=False),
            lambda folder: predict(folder, [{"a": 1}], folder.parent / "out.csv", prompt="{a}"),
        ],
        ids=["model", "encoder", "tokenizer", "train", "compare", "predict"],
    )
    def test_no_code_without_the_flag(self, theirs: Path, load: Any):
        with pytest.raises((ValueError, RuntimeError), match="comes with Python code: (?=.*read)(?=.*trust_remote_code=True)"):
            load(theirs)

    def test_inspect(self, theirs: Path):
        done = CliRunner().invoke(app, ["inspect", str(theirs)])
        assert done.exit_code == 1
        assert "--trust-remote-code" in done.stderr

    def test_with_the_flag_it_runs(self, theirs: Path, mark: Path):
        """Else the tests above would show nothing."""
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_model(theirs, trust_remote_code=True)
        assert mark.is_file()
        mark.unlink()

    def test_a_run_cannot_trust_itself(self, theirs: Path, tmp_path: Path):
        """The settings in the folder of a run came with its model."""
        run = tmp_path / "run"
        shutil.copytree(theirs, run / "model")
        settings = {"model": str(run / "model"), "trust_remote_code": True, "task": "regression"}
        (run / "config.json").write_text(json.dumps(settings))
        assert not trained_config(run).trust_remote_code
        assert trained_config(run, trust_remote_code=True).trust_remote_code
        source = find_source(str(run))
        with pytest.raises(ValueError, match=r"comes with Python code.*numerate predict --trust-remote-code"):
            Answering(source, "median", lambda found: found.interval(0.9)).loaded  # noqa: B018
        with pytest.raises(ValueError, match="comes with Python code"):
            evaluate(run, {"task": "arithmetic", "eval_examples": 1})

    def test_code_for_a_known_kind_is_not_needed(self, folder: Path, mark: Path):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": AUTO_MAP}))
        (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate" / "generate.py").write_text(CODE.format(mark=str(mark)))
        assert type(load_model(folder).model).__name__ == "LlamaForCausalLM"


class TestBrokenModels:
    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("model.safetensors", b"\x00" * 16),
            ("model.safetensors", (1 << 60).to_bytes(8, "little") + b"{}"),
            ("config.json", b'{"model_type": "llama", "hidden_size": "x"}'),
            ("config.json", b'{"model_type": "llama", "hidden_size": 100000000000}'),
            ("config.json", b'{"a":' * 100_000),
            ("config.json", b"[]"),
            ("config.json", b"\xff\xfe"),
        ],
    )
    def test_one_sentence(self, folder: Path, file: str, content: bytes):
        (folder / file).write_bytes(content)
        with pytest.raises(ValueError, match=r"model='.*theirs' cannot be loaded \(.+\): expected tiny") as raised:
            load_model(folder)
        assert "\n" not in str(raised.value)

    def test_weights_of_another_shape(self, folder: Path):
        save_file({"model.embed_tokens.weight": torch.zeros(3, 3)}, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_model(folder)
