"""``--set name=value``: read each value by the type of its setting.

steps=200                            a number, a text, true or false, null
columns=area,rooms                   several texts; columns='["a, b","c"]' where one holds a comma
loss_settings.variant=repaired       an entry of a mapping
loss_settings='{"sigma":2}'          a mapping
columns=area                         in train and compare: short for task_settings.columns
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from numerate.messages import check_choice

Types = Mapping[str, Any]
SET_HELP = (
    'A setting: steps=200, columns=area,rooms, columns=\'["a, b","c"]\', loss_settings.sigma=2, '
    "loss_settings='{\"sigma\":2}'; several times."
)
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse_settings(texts: Iterable[str], types: Types) -> dict[str, Any]:
    """Settings of ``name=value`` texts; a dotted name is an entry of a mapping.

    Example:
        >>> parse_settings(["steps=20", "columns=a,b"], {"steps": int, "task_settings.columns": tuple[str, ...]})
        {'steps': 20, 'task_settings': {'columns': ('a', 'b')}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise ValueError(f"--set {text!r} has no name or no value: expected name=value, such as difficulty=3.")
        if name not in types and f"task_settings.{name}" in types:
            name = f"task_settings.{name}"
        try:
            read = _value(value, types.get(name, Any))
        except _Unlike as error:
            raise ValueError(f"--set {name}={value}: expected {error}.") from None
        *groups, last = name.split(".")
        for group in reversed(groups):
            last, read = group, {last: read}
        found = merged(found, {last: read})
    return found


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with ``more`` over them; mappings are merged entry by entry."""
    both = {name: merged(values[name], more[name]) for name in more if _both_mappings(name, values, more)}
    return {**values, **more, **both}


def task_types(*names: str, prefix: str = "") -> dict[str, Any]:
    """Types of the settings of these tasks."""
    from numerate.lab.tasks import TASKS

    found: dict[str, Any] = {}
    for name in names:
        check_choice("task", name, tuple(TASKS))
        hints = get_type_hints(TASKS[name])
        found |= {f"{prefix}{field.name}": hints[field.name] for field in fields(TASKS[name])}  # type: ignore[arg-type]
    return found


def run_types(*tasks: str) -> dict[str, Any]:
    """Types of the settings of a run, and of its task."""
    from numerate.lab.config import RunConfig

    hints = get_type_hints(RunConfig)
    return {name: hints[name] for name in RunConfig.model_fields} | task_types(*tasks, prefix="task_settings.")


def experiment_types(tasks: str | Sequence[str | Mapping[str, Any]]) -> dict[str, Any]:
    """Types of the settings of a comparison, of its runs, and of their tasks."""
    listed = [tasks] if isinstance(tasks, str) else tasks
    names = [name.get("task", "arithmetic") if isinstance(name, Mapping) else name for name in listed]
    several = {"losses": tuple[Any, ...], "tasks": tuple[Any, ...], "models": tuple[str, ...], "seeds": int | tuple[int, ...]}
    return run_types(*names) | several | {"name": str, "baseline": str, "settings": dict}


class _Unlike(Exception):  # noqa: N818 - never seen by a user
    """A text is not of the type; says what was expected."""


def _value(text: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        reasons = []
        for one in sorted(get_args(kind), key=lambda one: (one is not NoneType, one is str)):
            try:
                return _value(text, one)
            except _Unlike as error:
                reasons.append(str(error))
        raise _Unlike(" or ".join(dict.fromkeys(reasons)))
    try:
        read = json.loads(text)
    except json.JSONDecodeError:
        read = text
    if kind is Any:
        return read
    if kind is NoneType:
        if text.strip().lower() in ("null", "none"):
            return None
        raise _Unlike("null")
    if get_origin(kind) is Literal:
        said = read if isinstance(read, str) else text
        if said not in get_args(kind):
            raise _Unlike(f"one of {', '.join(map(repr, get_args(kind)))}")
        return said
    if kind is bool:
        if text.strip().lower() not in _FLAGS:
            raise _Unlike("true or false")
        return _FLAGS[text.strip().lower()]
    if kind in (int, float):
        return _number(read, kind)
    if kind is str:
        return read if isinstance(read, str) else text
    if get_origin(kind) in (tuple, list):
        items = get_args(kind)
        given = read if isinstance(read, list) else next(csv.reader([text], skipinitialspace=True), [])
        kinds = items[:1] * len(given) if items[1:] in ((), (...,)) else items
        if len(kinds) != len(given):
            raise _Unlike(f"{len(kinds)} values, such as 2,5")
        return tuple(
            _value(item if isinstance(item, str) else json.dumps(item), one) for item, one in zip(given, kinds, strict=True)
        )
    if (get_origin(kind) or kind) is dict:
        if not isinstance(read, dict):
            raise _Unlike('a mapping, such as {"sigma": 2}, or one entry of it with a dot, such as loss_settings.sigma=2')
        return read
    return read


def _number(read: Any, kind: type) -> int | float:
    known = isinstance(read, int | float) and not isinstance(read, bool) and math.isfinite(read)
    if not known or (kind is int and read != int(read)):
        raise _Unlike("a whole number" if kind is int else "a number")
    return int(read) if kind is int else float(read)


def _both_mappings(name: str, values: Mapping[str, Any], more: Mapping[str, Any]) -> bool:
    return isinstance(values.get(name), Mapping) and isinstance(more[name], Mapping)
