"""Save trained weights with a model card: how good the model is, how it was trained and asked, and code that predicts.

The front matter is metadata of the Hugging Face Hub, with the metrics as evaluation results.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.lab.data import Task
from numerate.lab.data.regression import Regression
from numerate.lab.data.tables import TABLES
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import read_decisions
from numerate.lab.evaluation.evaluate import Record, summarize
from numerate.lab.evaluation.missing import WHY_INFINITE, figure_text, gold_answers
from numerate.lab.files.markdown import block, code, inline
from numerate.lab.files.records import saving, write_json, write_text
from numerate.lab.models.loading import LoadedModel
from numerate.lab.models.names import BUILT, MEMBER, NAMED, member_folder
from numerate.lab.models.pretrained import quietly
from numerate.lab.models.questions import ASKED
from numerate.lab.training.config import CROSS_ENTROPY, run_name

HUB_NAMES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""The Hub ids of models that have a name of their own here; other such models are not on the Hub."""

_HEADLINES = 4  # measures in the front matter; the card has all of them

SPLITS = {"interpolate": "test rows", "extrapolate": "test rows out of range", "validation": "validation rows"}


def save_model(loaded: LoadedModel, folder: Path, card: str, asked: Mapping[str, Any] | None = None) -> None:
    """Save weights, tokenizer, model card and what the model was asked; the folder gets its name when all are written."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with quietly(), saving():
        _save_weights(loaded, part)
        (loaded.processor or loaded.tokenizer).save_pretrained(part)
    write_text(part / "README.md", card)
    if asked is not None:
        write_json(part / ASKED, asked)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def _save_weights(loaded: LoadedModel, folder: Path) -> None:
    """Save the weights of a model, or of the members of a pool: the first in the folder itself, the others below it."""
    model, pool = loaded.model, loaded.pool
    if pool is None or pool.adapters is None:
        for member, own in enumerate((model,) if pool is None else pool.models):
            own.save_pretrained(member_folder(folder, member))
        return
    for member, name in enumerate(pool.adapters):
        model.save_pretrained(folder, selected_adapters=[name])  # peft puts all but "default" into a folder of their name
        if member:
            target = member_folder(folder, member)
            target.parent.mkdir(exist_ok=True)
            (folder / name).rename(target)


def model_card(settings: Mapping[str, Any], records: Sequence[Record], task: Task, asked: Mapping[str, Any] | None = None) -> str:
    """Return the model card of a run.

    ``asked`` is what its questions looked like (:func:`numerate.lab.models.questions.asked`).
    """
    data = None if settings.get("data") is None else Path(settings["data"]).name
    target = getattr(task, "target", None)
    title = f"{settings['model']}: {f'{target} of {data}' if target else data or settings['task']}"
    figures = list(_figures(records))
    parts = [
        f"---\n{_front_matter(settings, task, data, title, figures)}---",
        f"# {inline(title)}",
        _objective(settings),
        "## How good it is",
        _measures(figures, task, records),
        _decision(settings),
        "## How it is asked",
        "\n\n".join(_asking(task, asked, data, records)),
    ]
    if (row := example_row(task, records)) is not None:
        parts += ["## How to predict", _snippet(row)]
        if settings.get("members", 1) > 1:
            parts += ["## Its members", _members(settings, task, asked, records)]
    shown = {**settings, "data": data}  # without the folder, which is of no use elsewhere
    shown |= {"loss": _name(settings)} if settings["loss"] == CROSS_ENTROPY else {}
    listed = "\n".join(f"- {name}: {code(value)}" for name, value in shown.items())
    return "\n\n".join([*parts, "## Settings", listed]) + "\n"


def _front_matter(settings: Mapping[str, Any], task: Task, data: str | None, title: str, figures: Sequence[_Figures]) -> str:
    import yaml

    kind = "tabular-regression" if getattr(task, "target", None) else "text-generation"
    table = {"name": data or settings["task"], "type": data or settings["task"]}
    results: list[dict[str, Any]] = []
    for split in dict.fromkeys(split for split, *_ in figures):
        metrics = [
            {"type": name, "name": f"{name}, {decision}", "value": float(f"{values[name]:.6g}")}
            for own, decision, _, values in figures
            for name in task.measures[:_HEADLINES]
            if own == split and math.isfinite(values.get(name, math.inf))
        ]
        results += [{"task": {"type": kind}, "dataset": {**table, "split": split}, "metrics": metrics}] if metrics else []
    model = settings["model"]
    base = HUB_NAMES.get(model, model if model not in NAMED and not Path(model).is_dir() and model.count("/") == 1 else None)
    metadata: dict[str, Any] = {
        "library_name": "peft" if settings.get("adapter", "none") != "none" else "transformers",
        "pipeline_tag": "image-text-to-text" if task.visual else "text-generation",
        **({"base_model": base} if base else {}),
        "tags": list(dict.fromkeys(["numerate", settings["task"], *_name(settings).split("+")])),
        "model-index": [{"name": title, "results": results}],
    }
    return str(yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=1000))


def _name(settings: Mapping[str, Any]) -> str:
    """Return the name of the loss as ``numerate train`` takes it: soft labels are the loss ``ce`` with ``soft``."""
    return run_name(settings["loss"], (settings.get("soft") or {}).get("path"))


def _objective(settings: Mapping[str, Any]) -> str:
    numeric = "" if settings["loss"] == CROSS_ENTROPY else f" + {settings['weight']:g} x {code(settings['loss'])}"
    if soft := settings.get("soft"):
        used = ", ".join(f"{name} {value}" for name, value in soft.items() if value not in (None, 0))
        numeric += f" on soft labels ({used})"
    members = settings.get("members", 1)
    several = f" {members} members were trained so on the same rows; the others are in `members/`." if members > 1 else ""
    return f"Trained with cross-entropy{numeric} for {settings['steps']:,} steps with numerate.{several}"


# Measures

_Figures = tuple[str, str, int, dict[str, float]]  # split, decision, examples, values by metric


def _figures(records: Sequence[Record]) -> Iterator[_Figures]:
    for split, greedy in summarize(records).items():
        mine = [record for record in records if record["split"] == split]
        yield split, GREEDY, len(mine), greedy
        if (decided := read_decisions(mine)) is not None:
            for rule in decided.rules:
                yield split, rule, len(mine), {name: _summary(name, scores) for name, scores in decided.measures[rule].items()}


def _summary(name: str, scores: Iterable[float]) -> float:
    values = [float(score) for score in scores]
    return METRICS[name].summarize(values) if name in METRICS else float(np.mean(values))


def _measures(figures: Sequence[_Figures], task: Task, records: Sequence[Record]) -> str:
    """Return a table of the metrics, the headline first."""
    heads = [
        f"{SPLITS.get(split, split)} ({examples:,}){'' if decision == GREEDY else f', {decision}'}"
        for split, decision, examples, _ in figures
    ]
    names = dict.fromkeys((task.measures[0], *(name for *_, values in figures for name in values)))
    golds = {split: gold_answers(records, split) for split, *_ in figures}
    lines = [f"| metric | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name in names:
        cells = ["-" if name not in own else figure_text(name, own[name], golds[split], ".4g") for split, *_, own in figures]
        median = " (median)" if name in METRICS and METRICS[name].summary == "median" else ""
        lines.append(f"| {name}{median} | {' | '.join(cells)} |")
    lines += [f"\n{text}: {why}." for text, why in WHY_INFINITE.items() if any(f" {text} " in line for line in lines)]
    return "\n".join(lines)


def _decision(settings: Mapping[str, Any]) -> str:
    members = settings.get("members", 1) > 1
    said = f"Answers are greedy, what the {'first member' if members else 'model'} writes token by token"
    if not settings.get("decide"):
        return f"{said}. `numerate predict` gives the median of the model's distribution over numbers."
    source = "the pool of all members' distributions" if members else "its distribution over numbers"
    return f"{said}, or decided from {source}: {', '.join(settings['decide'])}."


# Questions


def _asking(task: Task, asked: Mapping[str, Any] | None, data: str | None, records: Sequence[Record]) -> Iterator[str]:
    if asked is not None and asked["target"] is not None:
        columns = ", ".join(map(code, asked["columns"]))
        source = f"the table {data} that comes with numerate" if data in TABLES else inline(data)
        yield f"{code(asked['target'])} is predicted from {columns}. The rows are those of {source}."
        if left_out := {name: why for name, why in getattr(task, "left_out", {}).items() if name != asked["target"]}:
            yield f"Columns that are not shown: {', '.join(f'{code(name)} ({inline(why)})' for name, why in left_out.items())}."
    elif data is not None:
        yield f"The questions are those of {inline(data)}, unchanged."
    else:
        yield f"The questions are generated by the task `{task.name}`."
    row = example_row(task, records)
    known = asked is not None and asked["target"] is not None and row is not None and isinstance(task, Regression)
    prompt = task.ask(row, Path()).prompt if known else records[0]["prompt"]  # type: ignore[attr-defined]
    written = TaskFormat.kept(task, (asked or {}).get("format"))
    yield f"A question:\n\n{block(written.question(prompt), 'text')}"
    if not written.plain:
        answer = records[0]["gold"]
        widths = {name: value[1] for name, value in written.settings.items() if name != "kind"}
        width = f", with up to {widths['digits']} digits and {widths['decimals']} decimals" if widths else ""
        yield (
            f"Numbers are written in the format {code(written.format.kind)}{width}: the answer {code(answer)} is "
            f"{code(written.answer(answer))}. `numerate predict` asks in this format, and gives ordinary numbers."
        )


def example_row(task: Task, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return a row to predict: the most frequent value of each column; None if the answers are not one number.

    A model of a table is shown no row that is in it, unless all its values are frequent ones.
    """
    if task.visual or task.answer_is != "one number" or task.period is not None:
        return None
    rows = (task.rows or {}).get("train", ())
    if not isinstance(task, Regression) or task.target is None or not rows:
        return {"prompt": records[0]["prompt"]}
    if any(row.image is not None for row in rows):
        return None
    cells: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row.cells.items():
            cells.setdefault(name, Counter())[json.dumps(value, ensure_ascii=False, default=str)] += 1
    return {name: json.loads(max(counts, key=lambda text: (counts[text], text))) for name, counts in cells.items()}


def _snippet(row: Mapping[str, Any]) -> str:
    cells = {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value) for name, value in row.items()
    }
    inner = "".join(f"        {json.dumps(name, ensure_ascii=False)}: {cell},\n" for name, cell in cells.items())
    example = f"""from numerate.lab.prediction.predict import predict

rows = [
    {{
{inner}    }}
]
result = predict(".", rows, "predictions/new.csv", explain=1, overwrite=True)
print(result.path.read_text())
print(result.explained[0].distribution)"""
    return f"""In the folder of this model, with `pip install 'numerate[lab]'`; elsewhere, put its path in place of the dot:

{block(example, "python")}

`rows` may also be a pandas frame or the path of a file. For a file, `numerate predict . --data new.csv` does the same."""


def _members(settings: Mapping[str, Any], task: Task, asked: Mapping[str, Any] | None, records: Sequence[Record]) -> str:
    """Return how all members are asked: by what is above, and, if the base can be loaded anywhere, in code without the lab."""
    text = "The code above asks all members, and decides from their pool. The folder itself holds the first, a working model."
    model, adapter = settings["model"], settings.get("adapter", "none") != "none"
    if not TaskFormat.kept(task, (asked or {}).get("format")).plain or (adapter and model in BUILT):
        return text
    question, chat = records[0]["prompt"], (asked or {}).get("chat")
    prompt = [{"role": "user", "content": question}] if chat else f"{question}\n"
    text, others = f"{text} Without the lab:", f"range(1, {settings['members']})"
    lines = f"""import numerate as nm
{"from peft import PeftModel" + chr(10) if adapter else ""}from transformers import AutoModelForCausalLM, AutoTokenizer

prompts, tokenizer = [{json.dumps(prompt, ensure_ascii=False)}], AutoTokenizer.from_pretrained(".")
"""
    if adapter:
        lines += f"""base = AutoModelForCausalLM.from_pretrained({json.dumps(HUB_NAMES.get(model, model))})
model = PeftModel.from_pretrained(base, ".")
for k in {others}:
    model.load_adapter(f"members/{{k}}", f"{MEMBER}{{k:03d}}")
found = nm.decode.distribution(model, prompts, tokenizer, adapters=[*model.peft_config])"""
    else:
        lines += f"""folders = [".", *(f"members/{{k}}" for k in {others})]
models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
found = nm.decode.distribution(models, prompts, tokenizer)"""
    return f"{text}\n\n{block(lines + chr(10) + 'print(found[0].median, found[0].interval(0.9))', 'python')}"
