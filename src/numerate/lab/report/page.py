"""Render the report as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any

from numerate.lab.report.analysis import Setup
from numerate.lab.report.chapters import FIGURES, Chapter, first_screen, loss_styles
from numerate.lab.report.data import to_decisions, to_table
from numerate.lab.report.examples import PIXELS, examples_table
from numerate.lab.report.figures.drawing import FigurePlan
from numerate.lab.report.figures.svg import loss_key
from numerate.lab.report.member_scores import which_is_which
from numerate.lab.report.records import ExperimentRecord
from numerate.lab.report.tables import csv_address
from numerate.lab.stats import LEAST_SEEDS
from numerate.lab.wording.decisions import decision_title
from numerate.lab.wording.text import (
    counted,
    effect_text,
    either,
    listed,
    minus,
    p_text,
    percent,
    rounded,
    safe_text,
    sentence,
    split_name,
    times,
)
from numerate.plotting.palette import css, variables

_LOSS_KEYS = ("label", "loss", "format", "weight", "normalize", "scale", "loss_settings")


def to_html(experiment: ExperimentRecord, chapters: Sequence[Chapter], across: Sequence[FigurePlan] = ()) -> str:
    """Return the page; ``across`` are the figures that compare setups."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    script = (files("numerate.lab.report") / "page.js").read_text(encoding="utf-8")
    page.filters |= {"variables": variables, "shown": safe_text, "sentence": sentence, "split": split_name, "svg": Markup}
    page.filters |= {"p": p_text, "times": times, "rounded": rounded, "effect": effect_text, "counted": counted}
    page.filters |= {"change": percent, "share": lambda share: f"{minus(f'{100 * share:.0f}')} %"}
    template = page.from_string((files("numerate.lab.report") / "page.html").read_text(encoding="utf-8"))
    setups = [chapter.setup for chapter in chapters]
    seeds = {seed for setup in setups for seed in setup.seeds}
    labels = list(dict.fromkeys(label for setup in setups for label in setup.labels))
    names = {setup.without_format(label) for setup in setups for label in setup.labels}
    written = {setup.format(label) for setup in setups for label in setup.labels}
    of_formats = [counted(len(written), "format")] if len(written) > 1 else []
    most = max([1, *(size for setup in setups for label in setup.labels for size in setup.sizes(label))])
    of_members = [f"up to {most} members"] if most > 1 else []
    settings, losses = _settings(chapters)
    return template.render(
        run=experiment,
        chapters=chapters,
        across=across,
        first=first_screen(chapters),
        date=_date(experiment.created),
        about=listed([counted(len(names), "loss"), *of_formats, *of_members, counted(len(seeds), "seed")]),
        question=_question(setups),
        settings=settings,
        losses=losses,
        environment=[(key, _text(value)) for key, value in experiment.environment.items() if value not in (None, "", {})],
        grid=json.dumps(experiment.config, indent=2, ensure_ascii=False),
        unfinished=experiment.unfinished,
        table=to_table(chapters),
        least_seeds=LEAST_SEEDS,
        infinity=math.inf,
        pixels=PIXELS,
        decision_title=decision_title,
        which_is_which=which_is_which,
        address=csv_address,
        to_decisions=to_decisions,
        examples_table=examples_table,
        style_of=loss_styles(experiment, setups),
        labels=labels,
        loss_key=loss_key,
        figures=FIGURES,
        light=css(),
        dark=css(dark=True),
        script=script,
        script_hash=f"sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}",  # no other script runs in the page
    )


def _question(setups: Sequence[Setup]) -> str:
    """Return what the page answers; decisions are part of every answer."""
    compared = {name for setup in setups for name in setup.dimensions()}
    named = {"loss": "a numeric loss", "format": "a format", "number of members": "a pool of members"}
    return f"does {either([noun for name, noun in named.items() if name in compared] or ['a numeric loss'])} help?"


def _date(created: str) -> str:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M %Z}".strip()


def _settings(chapters: Sequence[Chapter]) -> tuple[list[tuple[str, list[str]]], list[dict[str, str]]]:
    """Return the settings that all losses share, with several values where setups differ, and those of each loss.

    Settings in which losses of one setup differ, such as a tuned learning rate, are those of a loss.
    """
    values: dict[str, dict[str, None]] = {}
    own: dict[str, None] = {}
    for cells in (chapter.setup.runs() for chapter in chapters):
        for key in dict.fromkeys(key for cell in cells for key in cell.config if key not in (*_LOSS_KEYS, "seed")):
            texts = dict.fromkeys(_text(cell.config.get(key)) for cell in cells)
            values.setdefault(key, {}).update(texts)
            own |= {key: None} if len(texts) > 1 else {}
    rows: dict[tuple[str, ...], set[int]] = {}
    by_label = [(label, cell) for chapter in chapters for label, runs in chapter.setup.cells.items() for cell in runs.values()]
    for label, cell in by_label:
        row = {key: _text(cell.config.get(key)) for key in _LOSS_KEYS} | {"label": label}
        if cell.config.get("loss") == "ce":  # has no numeric term
            row |= dict.fromkeys(("weight", "normalize", "scale"), "")
        other = ", ".join(f"{key.replace('_', ' ')} {text}" for key in own if (text := _text(cell.config.get(key))))
        rows.setdefault((*row.values(), other), set()).add(cell.seed)
    names = (*_LOSS_KEYS, "other")
    losses = [{**dict(zip(names, row, strict=True)), "seeds": ", ".join(map(str, sorted(seeds)))} for row, seeds in rows.items()]
    return [(key, [*texts]) for key, texts in values.items() if key not in own and [*texts] != [""]], losses


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
