"""The skill for coding agents, which is in the wheel: its blocks run as they are, one after the other."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

import numerate
from numerate.cli import app

SKILL = Path(numerate.__file__).parent / ".agents" / "skills" / "numerate" / "SKILL.md"  # where tools look for it
TEXT = SKILL.read_text(encoding="utf-8")


def blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def yours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A small model with random weights and its tokenizer, which has a token for each character."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    characters = ["<end>", *map(chr, range(32, 127))]
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(characters)}, []))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=0, pad_token_id=0, **sizes)
    return {"model": LlamaForCausalLM(config), "tokenizer": tokenizer}


def test_it_says_who_it_is():
    """By the specification of agentskills.io: a name equal to the folder's, and a description of at most 1024 characters."""
    yaml = pytest.importorskip("yaml")
    facts = yaml.safe_load(TEXT.split("---\n")[1])
    assert facts["name"] == SKILL.parent.name
    assert 100 < len(facts["description"]) <= 1024
    assert len(TEXT.splitlines()) < 500


@pytest.mark.no_cover
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_its_python_runs(yours, capsys):
    model = yours["model"]
    for block in blocks("python"):
        yours["model"] = copy.deepcopy(model)  # a trainer marks the model that it prepares, and loops then want its engine
        exec(compile(block, str(SKILL), "exec"), yours)
    assert len(yours["numbers"]) == len(yours["intervals"]) == 2
    assert yours["spans"].tolist() == [12, 30, 42]
    assert (Path("stars.csv").read_text(encoding="utf-8").splitlines()[0]).startswith("text,prediction,low,high")


@pytest.mark.no_cover
def test_its_commands_run(yours):
    table = "area,price\n" + "".join(f"{area},{12 * area + area % 7}\n" for area in range(20, 60))
    Path("train.csv").write_text(table, encoding="utf-8")
    Path("new.csv").write_text("area\n33\n", encoding="utf-8")
    small = {"train": ["--steps", "2"], "compare": ["--seeds", "1", "--set", "steps=2", "--loss", "soft", "--processes", "1"]}
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("numerate ")]
    assert [shlex.split(line)[1] for line in commands] == ["compare", "train", "predict"]
    for line in commands:
        arguments = shlex.split(line, comments=True)[1:]
        if "--budget" in arguments:  # the time is what a reader waits, not a test
            place = arguments.index("--budget")
            del arguments[place : place + 2]
        done = CliRunner().invoke(app, [*arguments, *small.get(arguments[0], [])])
        assert done.exit_code == 0, done.output
    assert Path("runs/train/report.html").is_file()
    assert (
        Path("predictions.csv").read_text(encoding="utf-8").splitlines()[0]
        == "area,prediction,low,high,covered,no_number,problem"
    )
