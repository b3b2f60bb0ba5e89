"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import numerate
from numerate import LOSSES
from numerate.cli import app
from numerate.cli.app import what_brings
from numerate.cli.compare import _show
from numerate.formats import KINDS
from numerate.tokenizers import load_tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
load = cache(load_tokenizer)  # most of the time of `numerate inspect`


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("numerate.cli.inspect.load_tokenizer", load)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def plain(output: str) -> str:
    """One space for each run of spaces and table lines, and no colours."""
    return re.sub(r"[\s│┃]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", output))


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"numerate {numerate.__version__}\n")
    assert "Usage" in run().output


def test_the_installed_command_is_this_app():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert EntryPoint("numerate", scripts["numerate"], "console_scripts").load() is app


class TestInspect:
    def test_deepseek(self, run):
        result = run("inspect", "deepseek")
        output = plain(result.output)
        assert result.exit_code == 0
        assert "deepseek: chunks of 1-3 digits, left to right" in output
        assert "numeric tokens 1,110 of 129,280" in output
        assert "12345.678 123 45 . 678 12345.678 10² 10⁰ 10⁻³" in output
        assert "1,000 1 , 000 1, 0" in output
        assert "1,000 1 , 000 1000 thousands=True" in output
        assert "grouped 12 , 345 . 6 2.0 1-3 aligned" in output
        assert all(f" {kind} " in output for kind in KINDS)
        assert "shifting: where tokens are cut depends" in output
        assert "no tokens for" not in output
        assert all(f" {name} each " in output for name in LOSSES)
        assert "ntl_mse each token poor" in output

    def test_texts_of_your_own(self, run):
        output = plain(run("inspect", "mistral", "--text", "x = -0.5", "--text", "[INST] 3").output)
        assert "x = -0.5 ␣x ␣= ␣- 0 . 5 -0.5" in output
        assert "[INST] 3" in output
        assert "12345.678" not in output

    def test_plot(self, run, tmp_path):
        for loss, flags in (("smmd", []), ("emd", ["--loss", "emd"])):
            result = run("inspect", "mistral", "--plot", str(tmp_path / "deep" / f"{loss}.png"), *flags)
            assert result.exit_code == 0
            assert (tmp_path / "deep" / f"{loss}.png").read_bytes().startswith(b"\x89PNG")
            assert f"plot of {loss} in {tmp_path}" in result.output


class TestErrors:
    @pytest.mark.launch
    def test_a_missing_package_comes_with_its_remedy(self, tmp_path):
        script = "import sys; sys.modules['tokenizers'] = None; from numerate.cli import app; app(['compare'])"
        environment = {**os.environ, "PYTHONPATH": str(Path(numerate.__file__).parents[1]), "COLUMNS": "200"}
        how = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 600}
        done = subprocess.run([sys.executable, "-c", script], **how)
        assert done.returncode == 1
        assert "this needs the package tokenizers: run pip install 'numerate[lab]'." in done.stderr
        assert "Traceback" not in done.stderr

    def test_the_extra_that_has_the_package_is_named(self, monkeypatch):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        lines = [f"{line}; extra == '{extra}'" for extra, asked in extras.items() for line in asked]
        monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
        named = {"transformers.models": "lab", "yaml": "lab", "trl.trainer": "trl", "shapely": "tasks", "ray": "ray"}
        for module, extra in (named | {"jinja2": "report", "starlette.responses": "playground"}).items():
            assert what_brings(module) == f"'numerate[{extra}]'"
        assert what_brings("tensor") == "tensor"  # tensorboard is another package

    def test_traceback(self, run):
        result = run("--traceback", "inspect", "nowhere.json")
        assert isinstance(result.exception, FileNotFoundError)

    @pytest.mark.parametrize("flags", [[], ["--trust-remote-code"]])
    def test_remote_code_by_a_flag_alone(self, run, monkeypatch, flags: list[str]):
        given = []

        def load(name, *, trust_remote_code):
            given.append(trust_remote_code)
            raise FileNotFoundError(name)

        monkeypatch.setattr("numerate.cli.inspect.load_tokenizer", load)
        run("inspect", "someone/some-model", *flags)
        assert given == [bool(flags)]


class TestTask:
    def test_prints_examples(self, run):
        done = run("task", "arithmetic", "-n", "3", "--split", "extrapolate", "--set", "difficulty=1", "--seed", "4")
        assert done.exit_code == 0, done.output
        assert "arithmetic, extrapolate, seed 4" in done.output
        assert done.output.count("├") == 2  # three rows

    def test_draws_a_sheet(self, run, tmp_path):
        from PIL import Image

        sheet = tmp_path / "new" / "clocks.png"
        done = run("task", "clock", "--preview", str(sheet), "-n", "4", "--set", "size=64")
        assert done.exit_code == 0, done.output
        assert "Saved" in done.output
        with Image.open(sheet) as image:
            assert image.width > 128
            assert image.height > 64

    def test_reads_a_table_and_counts_what_it_skips(self, run, tmp_path):
        rows = "\n".join(f"{i},{100 * i}" for i in range(50))
        (tmp_path / "t.csv").write_text(f"area,price\n{rows}\n7,cheap\n")
        command = ["task", "regression", "--data", str(tmp_path / "t.csv"), "--target", "price"]
        broken = run(*command)
        assert broken.exit_code == 1
        assert "line 52: the answer 'cheap' contains no number." in " ".join(broken.output.split())
        done = run(*command, "--skip-bad")
        assert done.exit_code == 0, done.output
        assert "Skipped 1 row " in done.output
        assert "price?" in done.output


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_table_of_compare_has_losses_with_members_of_their_own(seeds):
    same = {"setup": "prices", "split": "interpolate", "measure": "absolute_error", "seeds": seeds, "p": None}
    rows = [
        same | {"loss": loss, "decision": decision, "score": score, "low": score, "high": score}
        for loss, decision, score in (("ce", "median", 3.25), ("soft", "median", 2.5), ("soft", "median of 2 members", 1.75))
    ]
    console = Console(file=(file := io.StringIO()), width=200)
    _show(console, rows)
    ce, soft = (line for line in file.getvalue().splitlines() if line.startswith(("│ ce", "│ soft")))
    assert "3.25" in ce
    assert "2.5" in soft
    assert "1.75" in soft
    assert ce.count("│") == soft.count("│")
