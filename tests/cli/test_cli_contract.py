"""Every command, found by walking the app: its help, its speed, wrong calls, bad files, Ctrl-C and closed pipes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

import numerate
from numerate.cli import app
from numerate.cli.settings import parse_settings, run_types
from numerate.cli.task import TASK_NAMES
from numerate.lab.comparison.compare import ComparisonResult
from numerate.lab.comparison.presets import merged
from numerate.lab.data import TASKS
from numerate.lab.training.config import SOFT

Call = tuple[str, ...]


def walk(command: Any, path: Call = ()) -> dict[Call, Any]:
    """Every command and group by the words that call it."""
    found = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        found |= walk(inner, (*path, name))
    return found


EVERY = walk(typer.main.get_command(app))
COMMANDS = {path: command for path, command in EVERY.items() if not hasattr(command, "commands")}


def words(paths: Any) -> list[str]:
    return [" ".join(path) or "numerate" for path in paths]


def options(command: Any) -> list[tuple[str, set[Any], Any]]:
    """Name, types and settings of each option, from the function behind a command."""
    found, names = [], {param.name: param.opts[0] for param in command.params}
    for name, hint in get_type_hints(command.callback, include_extras=True).items():
        if get_origin(hint) is Annotated and isinstance(get_args(hint)[1], typer.models.OptionInfo):
            kind, info = get_args(hint)[:2]
            found.append((names[name], {kind, *get_args(kind)}, info))
    return found


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


def start(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    source = str(Path(numerate.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen([sys.executable, *arguments], **{**pipes, **how})


# Help


@pytest.mark.parametrize("path", EVERY, ids=words(EVERY))
def test_help(path, run):
    done = run(*path, "--help")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"Usage: {' '.join(('root', *path))}")
    shown = " ".join(done.output.split())
    assert EVERY[path].help
    examples = done.output.partition("\n  Examples:\n")[2].splitlines()
    assert 1 <= len(examples) <= 3 if path else not examples
    for example in examples:  # as printed: complete, and accepted by the parser
        program, command, *arguments = shlex.split(example)
        assert (program, command) == ("numerate", *path)
        COMMANDS[path].make_context(command, arguments)
    for param in EVERY[path].params:
        assert param.help, param.name
        assert " ".join(param.help.split())[:30] in shown


@pytest.mark.parametrize("path", EVERY, ids=words(EVERY))
def test_no_sentence_of_a_help_is_cut(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = run(*path, "--help").output
    assert not [line for line in output.splitlines()[1:] if ".." in line or "…" in line]
    for command in getattr(EVERY[path], "commands", {}).values():
        assert command.help.split(".")[0] in " ".join(output.split())


@pytest.mark.parametrize("columns", [80, 120])
def test_help_in_sections(run, monkeypatch, columns: int):
    """More than ten options are in sections, in any width; general options come last, and commands in order of use."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for path, command in COMMANDS.items():
        output = run(*path, "--help").output
        assert max(map(len, output.splitlines())) <= columns
        titles = re.findall(r"^(\w+):$", output, re.MULTILINE)
        sections = [title for title in titles if title != "Arguments"]
        assert sections[-1] == "Options"
        assert len(sections) > 1 or len(command.params) <= 10, path
    listed = re.findall(r"^  ([a-z]+)  ", run("--help").output.partition("Commands:")[2], re.MULTILINE)
    assert listed == ["compare", "train", "predict", "serve", "eval", "report", "export", "inspect", "task", "playground"]


SILENT = {("playground",), ("serve",)}  # print no result


def test_results_as_json_or_none_at_all(run, tmp_path, monkeypatch):
    empty: dict[str, Any] = {"decisions": [], "levels": [], "level_notes": []}
    monkeypatch.setattr("numerate.lab.comparison.compare.compare", lambda *_, **__: ComparisonResult(Path("b"), "yes", [], empty))
    monkeypatch.setattr("numerate.lab.report.write_report", lambda *_: Path("b"))
    (tmp_path / "table.csv").write_text(TABLE)
    short = ["--data", "table.csv", "--target", "price", "--set", "eval_examples=4", "--set", "batch_size=4"]
    calls: list[tuple[list[str], set[str]]] = [
        (["task", "arithmetic", "-n", "2"], {"task", "examples"}),
        (["inspect", "smollm2"], {"style", "readings", "formats", "advice"}),
        (["train", *short, "--steps", "2", "--out", "a", "--resume"], {"folder", "model", "figures", "levels"}),
        (["eval", "a", "--set", "eval_examples=3"], {"folder", "figures"}),
        (["predict", "a", "--data", "table.csv", "--limit", "3", "--overwrite"], {"path", "rows", "figures"}),
        (["compare", "--loss", "ce", "--out", "b"], {"path", "answer"}),
        (["report", "b"], {"path"}),
        (
            ["export", "soft", *short[1:4], "--model", "tiny", "--for", "axolotl", "--overwrite"],
            {"path", "rows", "top_k", "seed"},
        ),
    ]
    assert {tuple(call[:1]) for call, _ in calls} == COMMANDS.keys() - SILENT
    for call, keys in calls:
        done = run(*call, "--json")
        assert done.exit_code == 0, (call, done.output)
        assert keys <= json.loads(done.stdout).keys(), call
        if call[0] not in ("task", "inspect"):  # whose only purpose is to print
            done = run(*call, "--quiet")
            assert (done.exit_code, done.stdout) == (0, ""), call


def public_modules(module: Any = numerate) -> list[Any]:
    """A module, and those that its ``__all__`` names."""
    inner = [getattr(module, name) for name in module.__all__]
    return [module, *(one for part in inner if isinstance(part, ModuleType) for one in public_modules(part))]


@pytest.mark.parametrize("module", [*public_modules(), numerate.lab], ids=lambda module: module.__name__)
def test_what_a_module_lists_is_public(module):
    assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__) - {"__version__"}


@pytest.mark.launch
def test_help_imports_nothing_heavy():
    """Help and a wrong option of every command, in one process."""
    script = f"""
import sys
import numerate
from numerate.cli import app
for path in {list(EVERY)!r}:
    for last, code in (("--help", 0), ("--no-such-flag", 2)):
        try:
            app([*path, last], prog_name="numerate")
        except SystemExit as end:
            assert end.code == code, (path, last, end.code)
heavy = ("torch", "transformers", "trl", "peft", "datasets", "pandas", "pyarrow", "sklearn", "ray", "scipy", "numpy")
heavy += ("matplotlib", "jinja2", "yaml", "PIL", "rich", "numerate.lab.data", "numerate.lab.training.config")
print([name for name in heavy if name in sys.modules])
"""
    out, err = start("-c", script).communicate(timeout=600)
    assert out.splitlines()[-1] == "[]", err


def test_the_names_of_tasks_in_the_help():
    assert ", ".join(TASKS) == TASK_NAMES


@pytest.mark.parametrize("command", ["train", "compare", "export"])
def test_the_names_of_soft_labels_in_the_help(command, run):
    assert all(name in run(command, "--help").output for name in SOFT)


# Bad files and names: one message, exit code 1, no traceback

TABLE = "area,price\n" + "".join(f"{area},{9 * area + 100}\n" for area in range(40))
BAD: list[tuple[str, str]] = [
    ("inspect {missing}", "does not exist"),
    ("inspect {empty}", "empty.json"),
    ("inspect deepsek", "deepseek"),
    ("inspect smollm2 --plot x.gif", "expected one of '.png', '.svg', '.pdf'"),
    ("inspect smollm2 --plot x.png --loss smd", "Did you mean 'smmd'"),
    ("inspect smollm2 --loss emd", "has no effect without --plot"),
    (f"inspect smollm2 --text {'9' * 400}", "a number of 400 digits is beyond float64"),
    ("task regression --data {missing}.csv --target price", "there is no such file"),
    ("task regression --data {folder} --target price", "is a folder. Name one file in it"),
    ("task regression --data https://example.com/a.csv --target price", "is a web address"),
    ("task regression --data {table} --target price --encoding utf9", "encoding='utf9' is not known"),
    ("task regression --data {missing}.xlsx --target price --sheet A", "there is no such file"),
    ("task clock --data {table}", "your own table is for the task 'regression'"),
    ("task regression --data {table} --target prise", "Did you mean 'price'"),
    ("task regression --data {table} --target price --set columns=area,romms", "has no column 'romms'"),
    ("task regression --data {table} --target price --set decimal=;", "expected null or one of '.', ','"),
    ("task regression --target price", "target='price' has no effect on generated examples"),
    ("task regression --columns area", "needs a target"),
    ("task regression --target price --without area", "has no effect on generated examples"),
    ("task regression --skip-bad", "--skip-bad has no effect"),
    ("task regression --split test", "expected one of 'train', 'interpolate', 'extrapolate'"),
    ("task arithmetic --preview x.png", "has no images"),
    ("task arithmetic --target price", "is not a setting of the task 'arithmetic'"),
    ("task arithmetic --set difficulti=1", "Did you mean 'difficulty'"),
    ("task arithmetic --set =1", "expected name=value"),
    ("task clock -n 1 --preview {underfile}/a.png", "Not a directory"),
    ("task word_problems --data {folder}", "no .jsonl or .json files"),
    ("task word_problems --data {emptyjson}", "empty.json"),
    ("train --task arithmetik", "Did you mean 'arithmetic'"),
    ("train --loss smd", "Did you mean 'smmd'"),
    ("train --loss scalar_head --members 2", "whose weights are not kept"),
    ("train --data {table} --target price --encoding utf9", "encoding='utf9' is not known"),
    ("train --data {missing}.xlsx --target price --sheet A", "there is no such file"),
    ("train --target price", "target='price' has no effect on generated examples"),
    ("train --columns area", "columns=('area',) needs a target"),
    ("train --skip-bad", "skip_bad=True has no effect: the examples are generated"),
    ("train --data {table} --target price --set kind=series", "kind='series' has no effect on real data"),
    ("train --data {table} --target price --columns aera", "Did you mean 'area'"),
    ("train --data {table} --target price --without aera", "Did you mean 'area'"),
    ("train --data {table} --target price --columns area --without area", "are both set"),
    ("train --data {constant} --target price", "all 33 training answers of the column 'price' are '7'"),
    ("train --task clock", "model='tiny' does not accept pictures"),
    ("train --model {folder}/tiny", "there is no such folder"),
    ("train --set weight=1", "weight=1.0 has no effect: the run has no numeric loss"),
    ("train --set rank=4", "rank=4 has no effect: the run has no adapter"),
    ("train --set interval=0.8", "interval=0.8 has no effect: no decide is set"),
    ("train --model nowhere/at-all --steps 1", "model='nowhere/at-all' cannot be loaded"),
    ("train --set stepps=1", "Did you mean 'steps'"),
    ("train --set steps=x", "expected an integer"),
    ("train --loss smmd --set loss_settings.sigm=2", "Did you mean 'sigma'"),
    ("train --loss soft --set soft.path=fixed", "leave out soft.path"),
    ("train {missing}", "there is no such file"),
    ("train {folder}", "Is a directory"),
    ("train {empty}", "expected settings"),
    ("train --data {three} --target price", "at least 10 different rows"),
    ("train --steps 1 --out {underfile}", "cannot be written to"),
    ("train --format paded", "Did you mean 'padded'"),
    ("train --task clock --model tiny-vlm --format reversed", "does not fit the task 'clock': expected padded or plain"),
    ("compare --format padded:x", "has no such width"),
    ("compare --members 3 --members 8", "members=3 is not among the pools of a run with 8"),
    ("predict tiny --data {table} --target price --format padded", "has no width, and model='tiny' keeps none"),
    ("train --steps 1 --resume --overwrite", "expected only one of them"),
    ("eval {missing}", "there is no such folder"),
    ("eval {folder}", "holds no trained model"),
    ("eval {empty}", "is a file"),
    ("predict tiny --data {table} --target price --encoding utf9", "encoding='utf9' is not known"),
    ("predict tiny --data {missing}.xlsx --target price --sheet A", "there is no such file"),
    ("predict {missing} --data {table}", "there is no such folder"),
    ("predict {table} --data {table} --target price", "table.csv' is a file: expected a folder with a model"),
    ("predict {folder}s --data {table} --target price", "Did you mean '{folder}'?"),
    ("predict {missing} --data {table} --decide medain", "Did you mean 'median'"),
    ("predict tiny --data {table} --target price --interval 1", "interval=1.0 is out of range"),
    (
        "predict nowhere/at-all --data {table} --target price",
        "model='nowhere/at-all' cannot be loaded (there is no such file or folder; as an id of the Hub: ",
    ),
    ("predict {folder} --data {table}", "holds no trained model"),
    ("predict tiny --data {file} --target price", "Expected .csv, .tsv, .jsonl"),
    ("predict tiny --data {table}", "it is not known what to ask"),
    ("predict tiny --data {table} --prompt {{aera}}", "Did you mean 'area'"),
    ("predict tiny --data {table} --target price --out x.xlsx", "ends in .csv, .tsv, .jsonl"),
    ("predict tiny --data {table} --target price --out {table}", "is the file with the data"),
    ("predict tiny --data {table} --target price --out {three}", "exists, and three.csv.json"),
    ("predict tiny --data {table} --target price --out {underfile}/a.csv", "cannot be written to"),
    ("predict tiny --data {table} --target price --calibrate {missing}.csv", "there is no such file"),
    ("predict tiny --data {table} --target price --calibrate held-out", "needs the run of a table"),
    ("predict m --data {table} --target price --chat", "--chat has no effect without --url"),
    ("predict m --data {table} --target price --tokenizer smollm2", "--tokenizer has no effect without --url"),
    ("predict m --data {table} --target price --api-key-variable KEY", "--api-key-variable has no effect without --url"),
    ("predict m --data {table} --target price --timeout 5", "--timeout has no effect without --url"),
    ("predict m --data {table} --target price --concurrency 2", "--concurrency has no effect without --url"),
    ("predict m --data {table} --target price --url localhost:9000", "is not the URL of a server"),
    (
        "predict m --data {table} --target price --url http://localhost/v1 --api-key-variable NO_KEY",
        "expected an environment variable",
    ),
    ("compare --data {table} --target price --encoding utf9", "encoding='utf9' is not known"),
    ("compare --data {missing}.xlsx --target price --sheet A", "there is no such file"),
    ("compare --task arithmetic --skip-bad", "skip_bad=True has no effect"),
    ("compare --data {constant} --target price", "all 33 training answers of the column 'price' are '7'"),
    ("compare --data {table} --target price --columns aera", "Did you mean 'area'"),
    ("compare --data {table} --target price --without aera", "Did you mean 'area'"),
    ("compare --task clock --model tiny", "model='tiny' does not accept pictures"),
    ("compare --address auto", "address='auto' has no effect without executor='ray'"),
    ("compare --executor ray --processes 2", "processes=2 has no effect"),
    ("compare --executor ray --budget 5m", "budget is measured on this machine"),
    ("compare --budget soon", "budget='soon'"),
    ("train --budget soon", "budget='soon'"),
    ("compare --tune-seeds 2", "tune=0, tune_seeds=2"),
    ("compare --preset dmo", "Did you mean 'demo'"),
    ("compare --executor rai", "Did you mean 'ray'"),
    ("compare --loss smd", "Did you mean 'smmd'"),
    ("compare --loss emd --set soft.width=1", "no loss of the comparison has soft labels"),
    ("compare --loss soft --set soft.width=0", "a soft width of 0 is 'ce'"),
    ("compare --task clok", "Did you mean 'clock'"),
    ("compare --baseline sm", "baseline='sm' is not known"),
    ("compare --model nowhere/at-all", "nowhere/at-all"),
    ("compare --set seeds=0", "nothing is compared"),
    ("compare --set stepps=1", "Did you mean 'steps'"),
    ("compare {missing}", "there is no such file"),
    ("compare --data {three} --target price", "at least 10 different rows"),
    ("compare --out {underfile}", "cannot be written to"),
    ("export hard {table} --target price --model tiny --for axolotl", "what='hard' is not known: expected one of 'soft'"),
    ("export soft {table} --target price --model tiny --for axolotle", "Did you mean 'axolotl'"),
    ("export soft {table} --target price --model tiny --for verl", "for='verl' reads no file of soft targets"),
    ("export soft {table} --target price --model tiny --for Megatron-LM", "reads teacher distributions only by batch"),
    ("export soft {missing}.csv --target price --model tiny --for generic", "there is no such file"),
    ("export soft {missing}.xlsx --target price --sheet A --model tiny --for generic", "there is no such file"),
    ("export soft {table} --target prise --model tiny --for generic", "Did you mean 'price'"),
    ("export soft {table} --target price --columns aera --model tiny --for generic", "Did you mean 'area'"),
    ("export soft {table} --target price --without aera --model tiny --for generic", "Did you mean 'area'"),
    ("export soft {table} --target price --encoding utf9 --model tiny --for generic", "encoding='utf9' is not known"),
    ("export soft {table} --task arithmetik --model tiny --for generic", "Did you mean 'arithmetic'"),
    ("export soft {table} --target price --model nowhere/at-all --for generic", "model='nowhere/at-all' cannot be loaded"),
    ("export soft {table} --target price --format paded --model tiny --for generic", "Did you mean 'padded'"),
    (
        "export soft {table} --target price --set steps=3 --model tiny --for generic",
        "steps=3 has no effect: nothing is trained here",
    ),
    ("export soft {table} --target price --set soft.width=0 --model tiny --for generic", "is not soft labels alone"),
    ("export soft {table} --target price --loss smmd --model tiny --for generic", "loss='smmd' is not soft labels alone"),
    (
        "export soft {table} --target price --loss soft_fixed --epochs 2 --model tiny --for generic",
        "epochs=2 would repeat rows",
    ),
    ("export soft {table} --target price --out x.csv --model tiny --for generic", "expected a name that ends in .jsonl"),
    ("export soft {table} --target price --out {rows} --model tiny --for generic", "rows.jsonl exists: name another file"),
    ("export soft {rows} --target price --out {rows} --overwrite --model tiny --for generic", "is the file with the data"),
    ("export soft {table} --target price --out {underfile}/a.jsonl --model tiny --for generic", "cannot be written to"),
    ("report {missing}", "missing"),
    ("report {empty}", "empty"),
    ("playground --port 70000", "port=70000"),
    ("serve {missing} --port 0", "there is no such folder"),
    ("serve {folder} --port 0", "holds no trained model"),
    ("serve {missing} --port 0 --decide medain", "Did you mean 'median'"),
    ("serve tiny --port 0 --interval 1", "interval=1.0 is out of range"),
    ("serve tiny --port 0 --format padded", "has no width, and model='tiny' keeps none"),
    ("serve tiny --port 0 --calibrate {missing}.csv", "there is no such file"),
    ("serve tiny --port 70000", "port=70000"),
    ("serve tiny --port 0 --chat", "--chat has no effect without --url"),
    ("serve tiny --port 0 --tokenizer smollm2", "--tokenizer has no effect without --url"),
    ("serve tiny --port 0 --api-key-variable KEY", "--api-key-variable has no effect without --url"),
    ("serve tiny --port 0 --url localhost:9000", "is not the URL of a server"),
    ("serve tiny --port 0 --url http://localhost/v1 --calibrate held-out", "needs a model of this machine"),
    ("serve tiny --port 0 --url http://localhost/v1 --decide greedy", "choose another rule, such as median"),
    ("serve tiny --port 0 --url http://localhost/v1 --api-key-variable NO_KEY", "expected an environment variable with a key"),
    ("serve tiny --host no.such.host.invalid", "is not known here"),
    ("playground --host no.such.host.invalid", "is not known here"),
]


def bad_places(folder: Path, call: str) -> dict[str, Path]:
    """Write the files that the bad calls name, and return their paths."""
    (folder / "folder").mkdir(exist_ok=True)
    texts = {"empty": "", "empty.json": "", "empty.csv": "", "file": "x", "table.csv": TABLE}
    texts["three.csv"] = "area,price\n1,2\n3,4\n5,6\n"
    texts["constant.csv"] = "area,price\n" + "".join(f"{area},7\n" for area in range(40))
    for name, text in texts.items():
        (folder / name).write_text(text)
    names = {"missing": "missing", "empty": "empty.json" if call.startswith("inspect") else "empty", "emptyjson": "empty.json"}
    names |= {"emptycsv": "empty.csv", "folder": "folder", "file": "file", "table": "table.csv", "three": "three.csv"}
    (folder / "rows.jsonl").write_text("".join(f'{{"area": {area}, "price": {9 * area + 100}}}\n' for area in range(40)))
    names |= {"rows": "rows.jsonl", "constant": "constant.csv", "underfile": "file/under"}
    return {name: folder / file for name, file in names.items()}


@pytest.mark.parametrize(("call", "message"), BAD, ids=[call for call, _ in BAD])
def test_bad_input_is_one_message(call, message, run, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    places = bad_places(tmp_path, call)
    done = run(*(word.format(**places) for word in call.split()))
    assert done.exit_code == 1, (done.output, done.exception)
    assert message.format(**places) in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)
    assert not list(tmp_path.glob("runs/*/config.json"))  # nothing was begun


CHECKED_AT_ONCE = ("train", "compare", "predict", "task", "inspect", "eval", "export")
NEEDS_TORCH = {
    "train --loss smmd --set loss_settings.sigm=2",  # the loss itself knows its settings
    *(call for call, _ in BAD if "nowhere/at-all" in call),  # the Hub knows its models
    *(f"inspect {name}" for name in ("{empty}", "deepsek")),  # transformers reads tokenizers
    *(call for call, _ in BAD if "--text" in call),
}


@pytest.mark.launch
def test_bad_input_is_told_before_torch_is_imported(tmp_path):
    """Every bad call of these commands, in one process in which torch cannot be imported."""
    calls = [
        (call, message)
        for call, message in BAD
        if call.startswith((*CHECKED_AT_ONCE, "report", "serve")) and call not in NEEDS_TORCH
    ]
    filled = []
    for call, message in calls:
        places = bad_places(tmp_path, call)
        filled.append(([word.format(**places) for word in call.split()], message.format(**places)))
    (tmp_path / "calls.json").write_text(json.dumps(filled))
    script = """
import json, sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from numerate.cli import app
for call, message in json.load(open("calls.json")):
    done = CliRunner().invoke(app, call)
    if message not in done.stderr:
        print(call, done.stderr)
"""
    out, err = start("-c", script, cwd=tmp_path).communicate(timeout=600)
    assert not out, err


FREE = {"text", "skip_bad", "overwrite", "trust_remote_code", "quiet", "json"}  # nothing is wrong in itself
TYPED = {int, float}


@pytest.mark.parametrize("name", [name for name in CHECKED_AT_ONCE if name != "eval"])
def test_every_option_has_a_bad_call(name):
    called = {word for call, _ in BAD if call.split()[0] == name for word in call.split() if word.startswith("--")}
    missing = [opt for opt, kinds, _ in options(COMMANDS[name,]) if opt not in called and not kinds & TYPED]
    assert [opt for opt in missing if opt.strip("-").replace("-", "_") not in FREE] == []


def test_every_command_has_bad_input():
    called = {tuple(call.split()[:1]) for call, _ in BAD}
    assert called == set(COMMANDS)


# Settings


SETTINGS: dict[str, Any] = {
    "steps=20": {"steps": 20},
    "steps=1e2": {"steps": 100},
    "learning_rate=1e-3": {"learning_rate": 0.001},
    "learning_rate=null": {"learning_rate": None},
    "bf16=True": {"bf16": True},
    "label=3": {"label": "3"},
    'label="a"': {"label": "a"},
    "data=a,b.csv": {"data": "a,b.csv"},
    "eval_splits=interpolate": {"eval_splits": ("interpolate",)},
    "eval_splits=interpolate,extrapolate": {"eval_splits": ("interpolate", "extrapolate")},
    "eval_splits=[interpolate, extrapolate]": {"eval_splits": ("interpolate", "extrapolate")},
    "columns=[no, 007, a b]": {"task_settings": {"columns": ("no", "007", "a b")}},
    "columns=[a": {"task_settings": {"columns": ("[a",)}},
    "columns=[&a [*a]]": {"task_settings": {"columns": ("[&a [*a]]",)}},
    "label=[a]": {"label": "[a]"},
    "task_settings={columns: [a, 2], target: t}": {"task_settings": {"columns": ["a", 2], "target": "t"}},
    "loss_settings={sigma: [0.5, 1e-3], on: {a: true}}": {"loss_settings": {"sigma": [0.5, 0.001], "on": {"a": True}}},
    "columns=a": {"task_settings": {"columns": ("a",)}},
    "columns=2020, 2021": {"task_settings": {"columns": ("2020", "2021")}},
    'columns=["a, b","c"]': {"task_settings": {"columns": ("a, b", "c")}},
    "task_settings.columns=a,b": {"task_settings": {"columns": ("a", "b")}},
    "decimal=,": {"task_settings": {"decimal": ","}},
    "loss_settings.sigma=2": {"loss_settings": {"sigma": 2}},
    "loss_settings.variant=repaired": {"loss_settings": {"variant": "repaired"}},
    "soft.relative=0.05": {"soft": {"relative": 0.05}},
    'soft={"width": 2}': {"soft": {"width": 2}},
    "unknown=a=b": {"unknown": "a=b"},
}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings(text):
    assert parse_settings([text], run_types("regression")) == SETTINGS[text]


@pytest.mark.parametrize(
    "text", ["steps=2.5", "weight=inf", "bf16=maybe", "eval_splits=tests", "kind=tabl", "task_settings=[1]", "soft.path=jiter"]
)
def test_settings_of_the_wrong_type(text):
    with pytest.raises(ValueError, match=r"--set .*=.*: expected "):
        parse_settings([text], run_types("regression"))


def test_settings_are_merged():
    given = ["columns=a,b", 'task_settings={"extrapolate": 0.1}', "task_settings.extrapolate=0.2", "steps=3"]
    found = merged({"task_settings": {"target": "t"}, "steps": 1}, parse_settings(given, run_types("regression")))
    assert found == {"task_settings": {"target": "t", "columns": ("a", "b"), "extrapolate": 0.2}, "steps": 3}


def test_settings_reach_the_task(run, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c,price\n" + "".join(f"{i},{i},{i},{i}\n" for i in range(20)))
    done = run("task", "regression", "--data", "t.csv", "--target", "price", "--set=columns=a,c")
    assert done.exit_code == 0, done.output
    assert "a: 1" in done.output
    assert "b: " not in done.output


def test_how_a_column_was_read_is_said(run, tmp_path):
    (tmp_path / "t.csv").write_text("a;price\n" + "".join(f"{i};{i},50 €\n" for i in range(20)))
    done = run("task", "regression", "--data", "t.csv", "--target", "price")
    assert "20 of 20 answers were rewritten, such as '0,50 €' as 0.50." in done.output


# Options of compare


def test_options_reach_the_comparison(run, monkeypatch, tmp_path):
    calls: list[Any] = []
    (tmp_path / "x.csv").write_text("area,price\n" + "".join(f"{i},{3 * i}\n" for i in range(40)))

    def stop(config, **settings):
        calls.append({name: value for name, value in settings.items() if value is not None})
        raise ValueError("stop here")

    monkeypatch.setattr("numerate.lab.comparison.compare.compare", stop)
    given = ["--loss", "smmd", "--loss", "emd", "--baseline", "emd", "--seeds", "2", "--set", "models=tiny-3", "--skip-bad"]
    for arguments, expected in [
        ([], {}),
        (["--set", "losses=smmd,emd", "--set", "learning_rate=null"], {"losses": ("smmd", "emd")}),
        (given, {"losses": ["smmd", "emd"], "baseline": "emd", "seeds": 2, "models": ("tiny-3",), "skip_bad": True}),
        (
            ["--task", "clock", "--model", "tiny-vlm", "--set", "size=64"],
            {"tasks": ["clock"], "models": ["tiny-vlm"], "task_settings": {"size": 64}},
        ),
        (["--preset", "ranges", "--tune", "2"], {"preset": "ranges", "tune": 2}),
        (["--tune", "2", "--tune-seeds", "3"], {"tune": 2, "tune_seeds": 3}),
        (["--data", "x.csv", "--target", "price"], {"data": "x.csv", "target": "price"}),
        (["--quiet"], {"progress": False}),
        (["--json"], {"progress": False}),
    ]:
        assert "stop here" in run("compare", *arguments).stderr
        assert calls.pop() == {"tune": 0, "tune_seeds": 1, "progress": True, **expected}


# Folders


def fake_run(folder: Path, *, finished: bool, **settings: Any) -> None:
    from numerate.lab.training.config import RunConfig, checked

    folder.mkdir()
    config = checked(RunConfig, {"keep_model": True, **settings})
    (folder / "config.json").write_text(json.dumps(config.model_dump(mode="json")))
    (folder / "checkpoints").mkdir()
    (folder / "model").mkdir()
    (folder / "predictions.jsonl").write_text('{"split": "interpolate", "measures": {"exact": 1.0}}\n')
    if finished:
        (folder / "result.json").write_text("{}")


@pytest.mark.parametrize("finished", [True, False])
def test_train_does_not_overwrite_a_run(finished, run, tmp_path, monkeypatch):
    begun: list[Any] = []

    def stop(config, folder, **how):
        begun.append((config, how, sorted(path.name for path in folder.iterdir() if path.name != ".lock")))
        raise ValueError("stop here")

    monkeypatch.setattr("numerate.lab.training.run.run", stop)
    fake_run(tmp_path / "a", finished=finished)
    done = run("train", "--out", "a")
    assert done.exit_code == 1
    assert ("a holds a finished run:" if finished else "a holds an interrupted run: continue it with --resume,") in done.stderr
    assert "start over there with --overwrite" in done.stderr
    other = run("train", "--out", "a", "--resume", "--loss", "smmd")
    assert "with other settings (loss is 'ce' there and 'smmd' here)" in other.stderr
    assert not begun
    softer = run("train", "--out", "a", "--resume", "--loss", "soft")
    assert "(soft is None there" in softer.stderr
    same = run("train", "--out", "a", "--resume", "--set", "log_every=7")
    if finished:
        assert same.exit_code == 0
        assert "This run is already finished." in same.output
        assert not begun
    else:
        assert begun.pop()[1]["resume"]
    run("train", "--out", "a", "--overwrite")
    assert begun.pop()[2] == []
    run("train", "--out", "a")
    assert begun


@pytest.mark.parametrize(
    "setting", ["steps=3", "loss=smmd", "seed=1", "model=tiny-3", "weight=1", "batch_size=2", "validation=true"]
)
def test_eval_refuses_settings_without_effect(setting, run, tmp_path):
    fake_run(tmp_path / "a", finished=True)
    done = run("eval", "a", "--set", setting)
    assert done.exit_code == 1
    name = setting.partition("=")[0]
    assert done.stderr.startswith(f"error: {name}=")
    assert "has no effect on an evaluation: expected one of task, task_settings, data" in done.stderr


def test_eval_keeps_other_predictions(run, tmp_path, monkeypatch):
    loaded = SimpleNamespace(limit=lambda length: None, pool=None)
    monkeypatch.setattr("numerate.lab.training.kept_runs._load_trained", lambda *_: loaded)
    monkeypatch.setattr(
        "numerate.lab.training.finish.evaluate", lambda model, task, examples, **_: [{"n": len(examples["interpolate"])}]
    )
    monkeypatch.setattr("numerate.cli.train._show", lambda *_: None)
    fake_run(tmp_path / "a", finished=True)
    before = (tmp_path / "a" / "predictions.jsonl").read_text()
    for n in (3, 4, 3):
        assert run("eval", "a", "--set", f"eval_examples={n}").exit_code == 0
    assert sorted(path.read_text() for path in tmp_path.glob("a/eval-*/predictions.jsonl")) == ['{"n": 3}\n', '{"n": 4}\n']
    assert run("eval", "a", "--set", "eval_examples=3", "--out", "b").exit_code == 0
    for out in ("a", "b"):
        done = run("eval", "a", "--out", out)
        assert done.exit_code == 1
        assert f"{out} holds other predictions, which would be lost" in done.stderr
    (tmp_path / "file").write_text("")
    assert "file cannot be written to (File exists)" in run("eval", "a", "--out", "file").stderr
    assert (tmp_path / "a" / "predictions.jsonl").read_text() == before


# Interruptions


def test_ctrl_c_is_quiet(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("numerate.lab.training.run.run", interrupted)
    done = run("train", "--steps", "1")
    assert done.exit_code in (1, 130)  # typer's older and newer habit
    assert "Traceback" not in done.output
    assert "error" not in done.output


@pytest.mark.launch
@pytest.mark.parametrize("call", ["train --help", "task arithmetic -n 300"])
def test_a_closed_pipe_is_quiet(call):
    process = start("-m", "numerate", *call.split())
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait(600)
    process.stderr.close()
