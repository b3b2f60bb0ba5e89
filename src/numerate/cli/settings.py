"""Options shared by several commands, and ``--set name=value``: parse each value by the type of its setting.

steps=200                            a number, a string, true or false, null
columns=area,rooms                   several strings; columns='["a, b","c"]' if one contains a comma
loss_settings.variant=repaired       an entry of a mapping
loss_settings='{"sigma":2}'          a mapping
task_settings='{step: 5}'            lists and mappings as in a YAML file
soft.relative=0.05                   soft labels, with a width of 5 %
columns=area                         in train and compare: short for task_settings.columns
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from numerate.checks import check_choice
from numerate.cli.app import options
from numerate.lab.comparison.presets import merged

_data, _question, _answer, _other = map(options, ("Data", "Question", "Answer", "Model of another server"))
Data = Annotated[
    str | None,
    _data(
        "PATH", "Table or chats (.csv, .tsv, .jsonl, .json, .parquet, .xlsx), or a folder; diamonds and esol are packaged tables."
    ),
]
Target = Annotated[str | None, _data("COLUMN", "Column to predict.")]
Columns = Annotated[str | None, _data("NAMES", "Input columns, such as area,rooms. Default: all informative columns.")]
Without = Annotated[str | None, _data("NAMES", "Columns to leave out, such as id,name.")]
Encoding = Annotated[
    str | None, _data("NAME", "Encoding of a text file, such as cp1250. Default: detected (UTF-8, UTF-16 or cp1252).")
]
Sheet = Annotated[str | None, _data("NAME", "Sheet of an Excel workbook. Default: the only sheet.")]
SkipBad = Annotated[bool, _data(None, "Skip rows that cannot be read instead of stopping.", "--skip-bad")]
AskedModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Folder of a run of numerate train; smollm2, a model folder, or a Hub id; with --url, a name."
    ),
]
AskedTarget = Annotated[str | None, _question("NAME", "Quantity to ask for, if MODEL is not a run.")]
PromptTemplate = Annotated[
    str | None,
    _question("TEXT", "Prompt template, if MODEL is not a run: 'A flat of {area} m2 costs', with columns in braces."),
]
AskedFormat = Annotated[
    str | None,
    _question("NAME", "How the model writes numbers, if it is not a run: plain, spaced, padded:5.2 and others. Default: plain."),
]
Decide = Annotated[
    str,
    _answer("RULE", "median (lowest absolute error), mean (squared error), relative, mode, within:2, within:5%, or greedy."),
]
Interval = Annotated[float, _answer("LEVEL", "Level of the prediction interval, between 0 and 1.")]
Calibrate = Annotated[
    str,
    _answer(
        "ROWS",
        "Rows used to calibrate intervals: a file with known answers, held-out (the run's test rows), none, or auto "
        "(held-out if available).",
    ),
]
Width = Annotated[int, _answer("N", "Beam width: prefixes kept per step; more is slower.", min=1)]
Chat = Annotated[bool, _other(None, "Ask the other server in chats.", "--chat")]
ServedTokenizer = Annotated[
    str | None, _other("NAME", "Tokenizer of its model, for an exact search: a folder or Hub id.", "--tokenizer")
]
ApiKeyVariable = Annotated[str | None, _other("NAME", "Environment variable with its API key.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")]
MODELS = "tiny, tiny-3, tiny-vlm, small, smollm2, a folder, a GGUF file, or a Hub id"
FORMAT_HELP = "How numbers are written: plain, padded, reversed, spaced, grouped, exponent, or several joined by +."
SOFT_LOSSES = "soft labels (soft, soft_fixed, soft_jitter)"
SET_HELP = (
    'Any setting, such as steps=200, columns=\'["a, b","c"]\', soft.relative=0.05, loss_settings.sigma=2 or '
    "loss_settings='{\"sigma\":2}'; repeatable."
)
BUDGET_HELP = "Total time, such as 300 (seconds), 90s, 5m or 1h; determines"
Types = Mapping[str, Any]
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def check_without_url(given: Mapping[str, Any]) -> None:
    """Raise if an option is given that has an effect on the model of another server only."""
    if (alone := next((option for option, value in given.items() if value), None)) is not None:
        raise ValueError(f"{alone} has no effect without --url: name the server that has the model, or leave it out.")


def parse_settings(texts: Iterable[str], types: Types) -> dict[str, Any]:
    """Return the settings of ``name=value`` texts; a dotted name is an entry of a mapping.

    Examples:
        >>> parse_settings(["steps=20", "columns=a,b"], {"steps": int, "task_settings.columns": tuple[str, ...]})
        {'steps': 20, 'task_settings': {'columns': ('a', 'b')}}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise ValueError(f"--set {text!r} is incomplete: expected name=value, such as difficulty=3.")
        if name not in types and f"task_settings.{name}" in types:
            name = f"task_settings.{name}"
        try:
            read = _value(value, types.get(name, Any))
        except _WrongTypeError as error:
            raise ValueError(f"--set {name}={value}: expected {error}.") from None
        *groups, last = name.split(".")
        for group in reversed(groups):
            last, read = group, {last: read}
        settings = merged(settings, {last: read})
    return settings


def column_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in ``area,rooms``, or of a JSON list if one contains a comma; None for None.

    Examples:
        >>> column_names("area, rooms"), column_names('["a, b","c"]')
        (('area', 'rooms'), ('a, b', 'c'))
    """
    return None if text is None else tuple(name.strip() for name in _value(text, tuple[str, ...]))


def task_types(*names: str, prefix: str = "") -> dict[str, Any]:
    """Return the types of the settings of these tasks."""
    from numerate.lab.data import TASKS

    types: dict[str, Any] = {}
    for name in names:
        check_choice("task", name, tuple(TASKS))
        hints = get_type_hints(TASKS[name])
        types |= {f"{prefix}{field.name}": hints[field.name] for field in fields(TASKS[name])}  # type: ignore[arg-type]
    return types


def run_types(*tasks: str) -> dict[str, Any]:
    """Return the types of the settings of a run and its task."""
    from numerate.lab.training.config import RunConfig, SoftLabels

    hints, soft = get_type_hints(RunConfig), get_type_hints(SoftLabels)
    types = {name: hints[name] for name in RunConfig.model_fields} | {
        f"soft.{name}": soft[name] for name in SoftLabels.model_fields
    }
    return types | task_types(*tasks, prefix="task_settings.")


def experiment_types(tasks: str | Sequence[str | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the types of the settings of a comparison, its runs and their tasks."""
    from numerate.lab.comparison.plan import task_names

    several: dict[str, Any] = dict.fromkeys(("losses", "tasks"), tuple[Any, ...])
    several |= {"formats": tuple[str, ...], "models": tuple[str, ...]}
    several |= dict.fromkeys(("members", "seeds"), int | tuple[int, ...])
    return run_types(*task_names(tasks)) | several | {"name": str, "baseline": str, "settings": dict}


class _WrongTypeError(Exception):
    """A text does not have the type of its setting; the message is the expected type."""


def _value(text: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        reasons = []
        for member in sorted(get_args(kind), key=lambda member: (member is not NoneType, member is str)):
            try:
                return _value(text, member)
            except _WrongTypeError as error:
                reasons.append(str(error))
        raise _WrongTypeError(" or ".join(dict.fromkeys(reasons)))
    read = _read(text)
    if kind is Any:
        return read
    if kind is NoneType:
        if text.strip().lower() in ("null", "none"):
            return None
        raise _WrongTypeError("null")
    if get_origin(kind) is Literal:
        choice = read if isinstance(read, str) else text
        if choice not in get_args(kind):
            raise _WrongTypeError(f"one of {', '.join(map(repr, get_args(kind)))}")
        return choice
    if kind is bool:
        if text.strip().lower() not in _FLAGS:
            raise _WrongTypeError("true or false")
        return _FLAGS[text.strip().lower()]
    if kind in (int, float):
        return _number(read, kind)
    if kind is str:
        return read if isinstance(read, str) else text
    if get_origin(kind) in (tuple, list):
        kinds = get_args(kind)
        items = read if isinstance(read, list) else next(csv.reader([text], skipinitialspace=True), [])
        kinds = kinds[:1] * len(items) if kinds[1:] in ((), (...,)) else kinds
        if len(kinds) != len(items):
            raise _WrongTypeError(f"{len(kinds)} values, such as 2,5")
        texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
        return tuple(map(_value, texts, kinds))
    if (get_origin(kind) or kind) is dict:
        if not isinstance(read, dict):
            raise _WrongTypeError('a mapping, such as {"sigma": 2}, or one of its entries, such as loss_settings.sigma=2')
        return read
    return read


def _read(text: str) -> Any:
    """Parse a text as JSON, or as YAML if it is a list or a mapping; else return the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if not text.lstrip().startswith(("[", "{")) or find_spec("yaml") is None:
            return text
    import yaml

    try:
        return _in_json(yaml.BaseLoader(text).get_single_data())  # strings only
    except (yaml.YAMLError, RecursionError):  # [&a [*a]] contains itself
        return text


def _in_json(read: Any) -> Any:
    """Parse the strings in lists and mappings as JSON: ``no`` stays a string, unlike in YAML."""
    if isinstance(read, dict):
        return {name: _in_json(entry) for name, entry in read.items()}
    return [_in_json(entry) for entry in read] if isinstance(read, list) else _read(read)


def _number(read: Any, kind: type) -> int | float:
    known = isinstance(read, int | float) and not isinstance(read, bool) and math.isfinite(read)
    if not known or (kind is int and read != int(read)):
        raise _WrongTypeError("an integer" if kind is int else "a number")
    return int(read) if kind is int else float(read)
