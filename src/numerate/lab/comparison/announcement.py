"""Print the plan of a comparison or a run: steps, model, rows, a question as the model sees it and its tokens, folder."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import torch

from numerate.lab.comparison.cells import is_finished
from numerate.lab.comparison.plan import Experiment
from numerate.lab.data import Task
from numerate.lab.data.chats import SEVERAL_TURNS
from numerate.lab.data.regression import Regression
from numerate.lab.data.settings import DataSettings
from numerate.lab.data.splits import reserved_rows
from numerate.lab.models.loading import PromptEncoder, load_model
from numerate.lab.models.names import BUILT
from numerate.lab.models.pretrained import count_parameters
from numerate.lab.models.settings import PLAIN, ModelSettings
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import run_encoder
from numerate.lab.training.validation import MOST
from numerate.lab.wording.text import counted, without_plain

_WIDTH, _TITLES = 80, 11  # columns of a line, and of what stands before a text
_MOST_LINES = 2  # of a text
_COUNTED_ROWS = 500  # whose tokens are counted


@dataclass(frozen=True)
class Setting:
    """Where the runs of a comparison are executed, how many trials come before them, and what the budget changed."""

    folder: Path
    executor: str
    processes: int
    trials: int = 0
    budget: str = ""


def announcement(experiment: Experiment, cells: Sequence[RunConfig], tasks: Sequence[Task], setting: Setting) -> list[str]:
    """Return the lines to print; ``tasks`` are those of the cells, or none if they are not known on this machine."""
    first = cells[0]
    others = [name for name in _losses(cells) if name != experiment.baseline]
    lines = [
        *textwrap.wrap(f"Comparing {', '.join(others) or 'nothing'} with the baseline {experiment.baseline}.", _WIDTH),
        *_line("runs", _runs(cells, setting)),
        *_line("model", "; ".join(_model(cell) for cell in {cell.model: cell for cell in cells}.values()), None),
    ]
    if tasks:
        task, more = tasks[0], len(tasks) - 1
        lines += _line("rows", _rows(first, task, tuned=bool(setting.trials)) + (f" (first of {more + 1} tasks)" if more else ""))
        lines += _question(first, task)
    else:
        lines += _line("answers", _decided(first))
    formats = {name: {cell.format for cell in cells if _unformatted(cell) == name} for name in map(_unformatted, cells)}
    alone = without_plain([name for name, known in formats.items() if PLAIN not in known], experiment.baseline)
    device = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    machine = f"{device}{counted(os.cpu_count() or 1, 'CPU core')}, {counted(setting.processes, 'process')}"
    if setting.executor == "ray":
        machine = "a Ray cluster"
    return [
        *lines,
        *_line("formats", alone, None),
        *_line("machine", f"{machine}, executor {setting.executor}; folder {setting.folder}", None),
        *(_line("budget", setting.budget, None) if setting.budget else []),
    ]


def run_announcement(
    config: RunConfig, task: Task, folder: Path, *, step: int = 0, steps: int | None = None, budget: str = ""
) -> list[str]:
    """Return the lines to print before a run.

    ``step`` is that of the checkpoint from which it is resumed; ``steps`` are those of all members that are trained in turn.
    """
    rows = config.batch_size * config.accumulation
    most = task.count("train")
    passes = config.steps * rows / (config.train_examples if most is None else min(config.train_examples, most))
    turns = 1 if steps is None else steps // config.steps
    begun = f"; resumed after step {step:,}" + (f" of {steps:,}" if turns > 1 else "") if step else ""
    each = " each" if turns > 1 else ""
    return [
        *textwrap.wrap(f"Training {config.name} on {config.task}, seed {config.seed}.", _WIDTH),
        *_line("steps", f"{config.steps:,} of {counted(rows, 'row')}{each}: {passes:.3g} passes over the training rows{begun}"),
        *_line("model", _model(config), None),
        *(_line("members", _members(config, turns), None) if config.members > 1 else []),
        *_line("rows", _rows(config, task, tuned=False)),
        *_question(config, task),
        *_line("folder", str(folder), None),
        *(_line("budget", budget, None) if budget else []),
    ]


def _losses(cells: Sequence[RunConfig]) -> list[str]:
    return list(dict.fromkeys(cell.name for cell in cells))


def _unformatted(cell: RunConfig) -> str:
    return cell.name.removesuffix(f" {cell.format}")


def _decided(cell: RunConfig) -> str:
    return ", ".join(["greedy", *(f"by {rule}" for rule in cell.decide), *(["samples"] if cell.samples else [])])


def _line(title: str, text: str, most: int | None = _MOST_LINES) -> list[str]:
    """Return a text of up to ``most`` lines with a title before the first; a longer one is cut."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {title}".ljust(_TITLES),
        subsequent_indent=" " * _TITLES,
        max_lines=most,
        placeholder=" ..",
    )


def _runs(cells: Sequence[RunConfig], setting: Setting) -> str:
    """Return how many runs there are, of what, how long, and how many are finished."""
    losses = counted(len(_losses(cells)), "loss") + (" and formats" if len({cell.format for cell in cells}) > 1 else "")
    counts = {
        "seed": len({cell.seed for cell in cells}),
        "task": len({json.dumps([cell.task, cell.task_settings, cell.data]) for cell in cells}),
        "model": len({cell.model for cell in cells}),
    }
    members = sorted({cell.members for cell in cells})
    product = " x ".join([losses, *(counted(count, name) for name, count in counts.items() if count > 1 or name == "seed")])
    steps = sorted({cell.steps for cell in cells})
    rows = cells[0].batch_size * cells[0].accumulation
    length = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    done = sum(is_finished(setting.folder, cell) for cell in cells)
    tuned = (
        f"; {counted(setting.trials, 'tuning trial')}{' with one member' * (members[-1] > 1)} before" if setting.trials else ""
    )
    finished = f"; {done} already finished" if done else ""
    pooled = f", {'' if len(members) == 1 else f'{members[0]} to '}{counted(members[-1], 'member')} each"
    return f"{len(cells)} ({product}){pooled if members[-1] > 1 else ''}, {length} steps of {rows:,} rows each{tuned}{finished}"


def _model(cell: ModelSettings) -> str:
    count = parameters(cell)
    size = [] if count is None else [f"{count / 1e6:,.1f} M parameters" if count >= 1e6 else f"{count:,} parameters"]
    origin = "built from scratch" if cell.model in BUILT else "pre-trained"
    adapter = [] if cell.adapter == "none" else [f"trained by {cell.adapter} of rank {cell.rank}"]
    return ", ".join([cell.model, *size, origin, *adapter])


def _members(cell: RunConfig, turns: int) -> str:
    """Return how many members a run has, and how they are trained."""
    how = "trained as one" if turns == 1 else f"trained {'in ' if turns < cell.members else 'one after the other'}"
    return f"{cell.members}, {how}" + (f"{turns} parts" if 1 < turns < cell.members else "") + "; their pool decides"


def parameters(cell: ModelSettings) -> int | None:
    """Return the number of parameters of a model without loading pre-trained weights; None if its configuration does not say."""
    if cell.model in BUILT:
        return int(load_model(cell.model).model.num_parameters())
    return count_parameters(cell.model, trust_remote_code=cell.trust_remote_code)


def _rows(cell: RunConfig, task: Task, *, tuned: bool) -> str:
    """Return how many rows a run trains on, is validated on and is tested on."""
    most = task.count("train")
    validated = cell.eval_examples if tuned else min(MOST, cell.eval_examples) if cell.validate_every else 0
    reserved = reserved_rows(task, validated) if validated and cell.validate_every else 0
    parts = [f"{cell.train_examples if most is None else min(cell.train_examples, most - reserved):,} for training"]
    if validated:
        parts.append(f"{validated if most is None else reserved_rows(task, validated):,} for validation")
    tests = []
    for split in (split for split in cell.eval_splits if split in task.splits):
        there = task.count(split)
        count = cell.eval_examples if there is None else min(cell.eval_examples, there)
        tests.append(f"{count:,} {'out of range' if split == 'extrapolate' else 'for the test'}")
    return ", ".join(parts + tests) + (" (generated)" if most is None else "")


def _question(cell: RunConfig, task: Task) -> list[str]:
    """Return a question as the model sees it, its answer, and the columns of a table that are shown and left out."""
    example = task.examples("train", 1, seed=cell.seed)[0]
    encoder = run_encoder(cell, task)
    seen = encoder.prompt(example.prompt, picture=example.picture is not None)
    lines = _line("question", json.dumps(seen, ensure_ascii=False))
    lines += _tokens(cell, task, encoder) if example.picture is None else []
    lines += _line("answers", f"{_decided(cell)}; here {json.dumps(encoder.format.answer(example.answer), ensure_ascii=False)}")
    shown, hidden = _columns(cell, task)
    if shown:
        left_out = f"; left out: {', '.join(hidden)}" if hidden else "; none left out"
        lines += _line("columns", f"{', '.join(shown)}{left_out}")
    return lines + [line for note in task.notes if SEVERAL_TURNS in note for line in _line("chats", note)]


def _tokens(cell: RunConfig, task: Task, encoder: PromptEncoder) -> list[str]:
    """Return how many tokens a question has, and in how many long texts are cut, among the first training rows."""
    most = task.count("train")
    examples = task.examples("train", min(_COUNTED_ROWS, cell.train_examples if most is None else most), seed=cell.seed)
    asked = [example.prompt for example in examples]
    fitted = [encoder.fitted(question) for question in asked]
    lengths = [len(ids) for ids in encoder.tokens([encoder.prompt(question) for question in fitted])]
    cut = sum(question != whole for question, whole in zip(fitted, asked, strict=True))
    among = (
        f"; long texts are cut in {cut:,} of {len(asked):,} questions, to fit into max_length={cell.max_length:,}" if cut else ""
    )
    return _line("tokens", f"a question has {median_low(lengths):,} (median) to {max(lengths):,} (largest) tokens{among}", None)


def _columns(cell: DataSettings, task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of a table that questions show, and the others, but for the target; none for other tasks."""
    if not isinstance(task, Regression) or cell.data is None or task.target is None:
        return (), ()
    shown, _ = task.asked_columns(Path(cell.data))
    return shown, tuple(name for name in task.left_out if name != task.target)
