"""The report as one HTML page that needs nothing but itself, and as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib.resources import files
from typing import Any

from numerate.lab.report import figures
from numerate.lab.report.analysis import LEAST_SEEDS, Cost, Score, Setup, costs, scores
from numerate.lab.report.answer import Answer, answer, how_far_off, overall
from numerate.lab.report.downloads import csv_address
from numerate.lab.report.examples import PIXELS, SHOWN, Differing, differing, examples_table
from numerate.lab.report.figures import drawing, split_name, to_svg
from numerate.lab.report.plans import Plan, plans
from numerate.lab.report.records import Run
from numerate.lab.report.series import Table
from numerate.lab.report.wording import Measure, counted, effect_text, listed, p_text, rounded, sentence, shown, times

_LOSS_KEYS = ("label", "loss", "weight", "normalize", "scale", "loss_settings")
_COLUMNS = 6  # of a table of all measures, beside the baseline
_MANY_EXAMPLES = 48  # of all setups together


@dataclass(frozen=True)
class Drawn:
    """A figure, what it says, and its data."""

    title: str
    caption: str
    data: Table
    svg: str

    @property
    def address(self) -> str:
        """Of its data."""
        return csv_address(self.data)


@dataclass(frozen=True)
class Chapter:
    """Everything the report says of one setup."""

    anchor: str
    where: str
    setup: Setup
    answer: Answer
    scores: Sequence[Score]
    costs: Sequence[Cost]
    figures: Mapping[str, Drawn]
    missing: Sequence[str]
    differing: Differing | None

    @property
    def headline(self) -> list[Score]:
        """The scores by which losses are judged."""
        return [score for score in self.scores if score.measure == self.setup.headline]

    @property
    def compared(self) -> bool:
        """Whether there is a baseline to compare with."""
        return any(score.comparison is not None for score in self.headline)

    @property
    def tested(self) -> bool:
        """Whether there are seeds enough for a test."""
        return any(score.comparison is not None and score.comparison.seeds >= LEAST_SEEDS for score in self.headline)

    @property
    def same_seeds(self) -> bool:
        """Whether all losses were run with the same seeds."""
        return all(tuple(cells) == self.setup.seeds for cells in self.setup.cells.values())

    def rows(self, split: str) -> list[Score]:
        """Of the headline."""
        return [score for score in self.headline if score.split == split]

    def cost(self, label: str) -> Cost:
        """Of a loss."""
        return next(cost for cost in self.costs if cost.label == label)

    def cost_columns(self) -> list[tuple[str, str]]:
        """What was measured, and its heading."""
        every = {
            "ms_per_step": "ms per step",
            "time_ratio": "Time ratio",
            "peak_mib": "Peak MiB",
            "memory_ratio": "Memory ratio",
            "tokens_per_second": "Tokens per second",
            "train_seconds": "Training, s",
        }
        return [(name, text) for name, text in every.items() if any(getattr(cost, name) is not None for cost in self.costs)]

    def columns(self) -> list[tuple[str, ...]]:
        """The losses in parts that fit a page, the baseline in each."""
        first, *others = self.setup.labels
        return [(first, *others[at : at + _COLUMNS]) for at in range(0, max(1, len(others)), _COLUMNS)]

    def described(self) -> list[Measure]:
        """The measures that need a word of explanation."""
        every = dict.fromkeys(shown for split in self.setup.splits for shown in self.setup.measures(split))
        return [shown for shown in every if shown.description and not shown.name.startswith("within_")]

    def score(self, label: str, split: str, measure: Measure) -> Score:
        """One of the scores."""
        return next(score for score in self.scores if (score.label, score.split, score.measure) == (label, split, measure))


def chapters(run: Run, setups: Sequence[Setup]) -> list[Chapter]:
    """What the report says, setup by setup."""
    labels = sorted({label for setup in setups for label in setup.labels})
    looks = figures.styles(labels, [run.baseline])
    limit = max(3, min(SHOWN, _MANY_EXAMPLES // len(setups)))
    found = []
    for at, setup in enumerate(setups, 1):
        every, spent = scores(setup), costs(setup)
        headline = [score for score in every if score.measure == setup.headline]
        where = setup.task if len(setups) == 1 else setup.title
        said = answer(setup, headline, spent, where)
        if farther := how_far_off(setup, every):
            said = replace(said, more=(*said.more, farther))
        chosen = differing(setup, headline, limit)
        drawn, missing = _figures(plans(setup, headline, spent, looks), f"s{at}")
        if chosen is None:
            missing.append("examples (no example is answered differently by two losses with the same seed)")
        found.append(Chapter(f"s{at}", where, setup, said, every, spent, drawn, missing, chosen))
    return found


def lead(run: Run, found: Sequence[Chapter]) -> str:
    """The answer of all setups, in a sentence."""
    if len(found) == 1:
        return found[0].answer.lead
    return overall([one.setup for one in found], [one.answer for one in found], run.baseline)


def to_html(run: Run, found: Sequence[Chapter]) -> str:
    """The page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {"shown": shown, "sentence": sentence, "split": split_name, "svg": Markup}
    page.filters |= {"p": p_text, "times": times, "rounded": rounded, "effect": effect_text, "counted": counted}
    template = page.from_string((files("numerate.lab.report") / "page.html").read_text(encoding="utf-8"))
    seeds = sorted({seed for chapter in found for seed in chapter.setup.seeds})
    return template.render(
        run=run,
        chapters=found,
        lead=lead(run, found),
        verdict_of=found[0].answer.verdict
        if len(found) == 1
        else "better"
        if any(one.answer.winners for one in found)
        else "noise",
        date=_date(run.created),
        about=listed([counted(len({label for one in found for label in one.setup.labels}), "loss"), counted(len(seeds), "seed")]),
        settings=_settings(found),
        losses=_losses(found),
        environment=_flat(run.environment),
        grid=json.dumps(run.config, indent=2, ensure_ascii=False),
        unfinished=run.unfinished,
        table_address=csv_address(to_table(found)),
        least_seeds=LEAST_SEEDS,
        pixels=PIXELS,
        examples_address=lambda chosen: csv_address(examples_table(chosen)),
        style_of=figures.styles(sorted({label for one in found for label in one.setup.labels}), [run.baseline]),
    )


def to_table(found: Sequence[Chapter]) -> Table:
    """Every score, one to a row."""
    columns = (
        *("task", "model", "setup", "label", "split", "measure", "summary", "higher_is_better", "headline", "seeds", "examples"),
        *("value", "low", "high", "baseline", "difference", "difference_low", "difference_high", "difference_of"),
        *("test", "p", "p_holm", "comparisons", "effect", "better"),
    )
    rows = []
    for chapter in found:
        setup = chapter.setup
        for score in chapter.scores:
            shown, gain, compared = score.measure, score.gain, score.comparison
            base = (setup.task, setup.model, setup.title, score.label, score.split, shown.name)
            kind = (
                "median" if shown.median else "mean",
                shown.higher_is_better,
                shown == setup.headline,
                score.seeds,
                score.examples,
            )
            value = (score.interval.estimate, score.interval.low, score.interval.high)
            against: tuple[Any, ...] = (setup.baseline, *(None,) * 10)
            if compared is not None and gain is not None:
                against = (setup.baseline, gain.estimate, gain.low, gain.high, "examples won" if score.by_sign else "means")
                against += (compared.test, compared.p_value, compared.corrected_p, score.family, score.effect, score.better)
            rows.append((*base, *kind, *value, *against))
    return Table(columns, rows)


def to_data(run: Run, found: Sequence[Chapter]) -> dict[str, Any]:
    """Everything on the page but its pictures, for programs."""
    table = to_table(found)
    return {
        "experiment": {
            "name": run.name,
            "created": run.created,
            "command": run.command,
            "baseline": run.baseline,
            "config": run.config,
            "environment": run.environment,
        },
        "answer": lead(run, found),
        "answers": [
            {"setup": one.setup.title, "verdict": one.answer.verdict, "sentences": [one.answer.lead, *one.answer.more]}
            for one in found
        ],
        "scores": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "costs": [{"setup": one.setup.title, **asdict(cost)} for one in found for cost in one.costs],
        "figures": [
            {"setup": one.setup.title, "figure": name, "columns": drawn.data.columns, "rows": drawn.data.rows}
            for one in found
            for name, drawn in one.figures.items()
        ],
        "unfinished": [
            {"folder": cell.folder.name, "label": cell.label, "seed": cell.seed, "steps": cell.steps} for cell in run.unfinished
        ],
    }


def _figures(found: Iterable[Plan], anchor: str) -> tuple[dict[str, Drawn], list[str]]:
    """The figures that can be drawn, and what is missing for the others."""
    drawn: dict[str, Drawn] = {}
    missing: list[str] = []
    with drawing():
        for plan in found:
            if plan.data is None:
                missing.append(f"{plan.title[0].lower()}{plan.title[1:]} ({plan.missing})")
                continue
            svg = to_svg(plan.draw(plan.data), f"{anchor}-{plan.name}", f"{plan.title}. {plan.caption}")
            drawn[plan.name] = Drawn(plan.title, plan.caption, plan.data, svg)
    return drawn, missing


def _date(created: str) -> str:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M %Z}".strip()


def _settings(found: Sequence[Chapter]) -> list[tuple[str, list[str]]]:
    """Settings that all losses share; several values where setups differ."""
    own = {*_LOSS_KEYS, "seed", *_by_loss(found)}
    values: dict[str, dict[str, None]] = {}
    for cell in (cell for chapter in found for cells in chapter.setup.cells.values() for cell in cells.values()):
        for key, value in cell.config.items():
            if key not in own:
                values.setdefault(key, {})[_text(value)] = None
    return [(key, list(several)) for key, several in values.items() if list(several) != [""]]


def _by_loss(found: Sequence[Chapter]) -> list[str]:
    """Settings in which losses of one setup differ, such as a learning rate that was tuned for each."""
    keys: dict[str, None] = {}
    for chapter in found:
        cells = [cell for cells in chapter.setup.cells.values() for cell in cells.values()]
        for key in dict.fromkeys(key for cell in cells for key in cell.config if key not in (*_LOSS_KEYS, "seed")):
            if len({_text(cell.config.get(key)) for cell in cells}) > 1:
                keys[key] = None
    return list(keys)


def _losses(found: Sequence[Chapter]) -> list[dict[str, str]]:
    """Settings of each loss."""
    more = _by_loss(found)
    rows: dict[tuple[str, ...], set[int]] = {}
    names = ("label", *_LOSS_KEYS[1:], "other")
    for chapter in found:
        for label, cells in chapter.setup.cells.items():
            for seed, cell in cells.items():
                row = {key: _text(cell.config.get(key)) for key in _LOSS_KEYS}
                if cell.config.get("loss") == "ce":  # which has no numeric term for them to act on
                    row |= dict.fromkeys(("weight", "normalize", "scale"), "")
                other = ", ".join(f"{key.replace('_', ' ')} {_text(cell.config.get(key))}" for key in more)
                rows.setdefault((label, *list(row.values())[1:], other), set()).add(seed)
    return [{**dict(zip(names, row, strict=True)), "seeds": ", ".join(map(str, sorted(seeds)))} for row, seeds in rows.items()]


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, _text(value)) for key, value in values.items() if value not in (None, "", {})]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
