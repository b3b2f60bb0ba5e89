"""Does reinforcement learning add anything after supervised training? GRPO with rewards for numbers, and what it costs.

    numerate compare research/configs/tables_births.yaml --tune 5 --loss ce --loss soft --set keep_model=true
    python research/after_training.py run runs/tables_births after.csv --tune 3 --processes 6
    python research/after_training.py table after.csv                                          # Markdown

Every run of the comparison is continued in several ways, each from its own weights and on its own training rows: TRL's
``GRPOTrainer`` with one reward, for each reward, and then, as a control, its own supervised training for as many seconds as the
slowest of them took. The CSV file has a row for each run and way, with figures before and after: the mean absolute error of
greedy answers and of the median of the model's distribution, the median error of greedy answers, and the CRPS. A second call does
what is missing in the file.

``--tune`` tries several learning rates for each way, on the best tuning trial of each loss and its validation rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from numerate.checks import check_choice
from numerate.decode.rows import any_shape
from numerate.lab.data import Examples, Task
from numerate.lab.data.settings import make_task
from numerate.lab.evaluation.error_sources import read_decisions
from numerate.lab.evaluation.evaluate import Record
from numerate.lab.evaluation.missing import with_fallback
from numerate.lab.files.records import RESULT, read_jsonl, write_text
from numerate.lab.models.encoding import SharedData
from numerate.lab.models.loading import LoadedModel
from numerate.lab.models.pretrained import quietly
from numerate.lab.stats import holm, paired_t
from numerate.lab.training.config import RunConfig
from numerate.lab.training.finish import evaluated
from numerate.lab.training.kept_runs import load_run, trained_config
from numerate.lab.training.prepare import check_run, run_data, run_examples, training_arguments
from numerate.lab.wording.text import p_text
from numerate.rewards import REWARDS, RewardFunction, with_settings

SUPERVISED = "supervised"  # the control
WAYS = ("crps:form=fair", "log_error")
FACTORS = (0.1, 0.03, 0.3)  # of the learning rate that the run was trained with
MEASURES = {"greedy": "MAE, greedy", "typical": "median error, greedy", "median": "MAE, median", "crps": "CRPS"}
COLUMNS = (
    *("comparison", "model", "start", "seed", "validation", "way", "factor", "steps", "samples", "seconds"),
    *(f"{when}_{measure}" for when in ("before", "after") for measure in MEASURES),
)
PILOT = 50  # supervised steps that are timed before the control

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How GRPO trains."""

    steps: int
    prompts: int  # per step
    group: int  # completions per prompt
    temperature: float = 1.0


@dataclass(frozen=True)
class Start:
    """A finished run whose weights were kept."""

    folder: Path
    config: RunConfig

    @property
    def comparison(self) -> str:
        """Name of the comparison's folder."""
        return self.folder.parents[1].name


# The runs


def find_starts(folder: Path, labels: Sequence[str]) -> tuple[list[Start], list[Start]]:
    """Return the runs of a comparison with these labels, by label and seed, and the best tuning trial of each label."""
    listed = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))["cells"]
    kept = [cell for cell in sorted((folder / "cells").iterdir()) if (cell / RESULT).is_file() and (cell / "model").is_dir()]
    found = [Start(cell, trained_config(cell)) for cell in kept]
    runs = [start for start in found if start.folder.name in listed and start.config.name in labels]
    if missing := [label for label in labels if not any(start.config.name == label for start in runs)]:
        known = ", ".join(sorted({start.config.name for start in found})) or "none"
        raise SystemExit(
            f"{folder} has no finished run of {', '.join(missing)} whose weights were kept (known: {known}): run the comparison "
            "with this loss, and with --set keep_model=true, in a new folder."
        )
    tuned = ("learning_rate", "weight", "soft", "loss", "loss_settings")
    trials: dict[str, Start] = {}
    for run in runs:
        for trial in found:
            same = all(getattr(trial.config, name) == getattr(run.config, name) for name in tuned)
            if trial.config.validation and trial.config.name == run.config.name and same:
                trials.setdefault(run.config.name, trial)
    return sorted(runs, key=lambda start: (start.config.name, start.config.seed)), [trials[name] for name in sorted(trials)]


def figures(records: Iterable[Record]) -> dict[str, float]:
    """Return the means on the first split: errors of greedy answers and, if the records have decisions, of medians, and CRPS.

    ``typical`` is the median error of greedy answers, which a derailed one does not decide. A missing answer, and a
    missing distribution, count as the median of the training labels.
    """
    records = list(records)
    rows = [record for record in records if record["split"] == records[0]["split"]]
    greedy = np.array([with_fallback(record, record["measures"])["absolute_error"] for record in rows], dtype=float)
    found = {"greedy": float(greedy.mean()), "typical": float(np.median(greedy))}
    decided = read_decisions(rows)
    if decided is None or "median" not in decided.rules:
        return found
    crps = np.where(np.isinf(decided.crps), decided.fallback["absolute_error"], decided.crps)
    return found | {"median": float(decided.for_mean("median", "absolute_error").mean()), "crps": float(crps.mean())}


def continued(start: Start, factors: dict[str, float], settings: Settings) -> list[Row]:
    """Continue a run in several ways, the control last; return a row for each."""
    # The trials of a comparison are evaluated without decisions.
    config = start.config.model_copy(update={"decide": ("median",)})
    task = make_task(config)
    examples = run_examples(config, task)
    known = json.loads((start.folder / RESULT).read_text(encoding="utf-8"))
    before = figures(read_jsonl(start.folder / "predictions.jsonl"))
    about = {"comparison": start.comparison, "model": config.model, "start": config.name, "seed": config.seed}
    rows: list[Row] = []
    for way, factor in sorted(factors.items(), key=lambda item: item[0] == SUPERVISED):
        assert config.learning_rate is not None  # RunConfig sets it
        changed = config.model_copy(update={"learning_rate": config.learning_rate * factor})
        loaded = load_run(start.folder, config)
        if way == SUPERVISED:
            cost = train_on(start, changed, task, loaded, max(row["seconds"] for row in rows))
        else:
            cost = reinforce(changed, examples, loaded, way, settings)
        labels = known["label_digits"], known["label_median"]
        after = figures(evaluated(config, task, loaded, labels))
        measured = {f"before_{name}": value for name, value in before.items()}
        measured |= {f"after_{name}": value for name, value in after.items()}
        rows.append({**about, "validation": int(config.validation), "way": way, "factor": factor, **cost, **measured})
    return rows


# Ways to go on


def reward_of(way: str) -> RewardFunction:
    """Return a reward by its name and settings, such as ``crps:form=fair``."""
    name, *pairs = way.split(":")
    check_choice("--rewards", name, tuple(REWARDS))
    settings = dict(pair.split("=", 1) for pair in pairs)
    return with_settings(REWARDS[name], name=way, **{key: _value(text) for key, text in settings.items()})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def reinforce(config: RunConfig, examples: Examples, loaded: LoadedModel, way: str, settings: Settings) -> Row:
    """Train the model in place with GRPO; return the cost."""
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    prompts = [loaded.prompt(example.prompt) for example in examples]
    if loaded.tokenizer(prompts[:1])["input_ids"] != loaded.tokens(prompts[:1]):
        raise ValueError(f"the tokenizer of model={config.model!r} adds tokens to prompts, which GRPOTrainer would keep.")
    longest = max(map(len, loaded.tokens([example.answer for example in examples])))
    samples = settings.prompts * settings.group
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = GRPOTrainer(
            model=loaded.model,
            processing_class=loaded.tokenizer,
            reward_funcs=reward_of(way),
            train_dataset=Dataset.from_list([{"prompt": p, "answer": e.answer} for p, e in zip(prompts, examples, strict=True)]),
            args=GRPOConfig(
                **training_arguments(config.model_copy(update={"steps": settings.steps, "batch_size": samples}), bf16=config.bf16)
                | {"gradient_accumulation_steps": 1, "save_strategy": "no", "logging_steps": settings.steps},
                output_dir=folder,
                num_generations=settings.group,
                max_completion_length=longest + longest // 2 + 4,  # as in the evaluation
                temperature=settings.temperature,
                gradient_checkpointing=False,
                use_cpu=not cuda,
                dataloader_pin_memory=cuda,
                report_to="none",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        begin = time.perf_counter()
        with any_shape():
            trainer.train()
        seconds = time.perf_counter() - begin
    return {"steps": settings.steps, "samples": settings.steps * samples, "seconds": seconds}


def train_on(start: Start, config: RunConfig, task: Task, loaded: LoadedModel, seconds: float) -> Row:
    """Train the model in place as its run did, for about as many seconds; return the cost.

    Soft labels are made before, as are the prompts of GRPO: the seconds are those of training alone.
    """
    pilot, shared = load_run(start.folder, config), SharedData()
    run_data(config, task, pilot, shared)
    for tries in shared.tries.values():
        tries.make_expected(1)
    _more_steps(config, task, pilot, shared, 5)
    steps = max(1, round(seconds / _more_steps(config, task, pilot, shared, PILOT) * PILOT))
    spent = _more_steps(config, task, loaded, shared, steps)
    return {"steps": steps, "samples": steps * config.batch_size * config.accumulation, "seconds": spent}


def _more_steps(config: RunConfig, task: Task, loaded: LoadedModel, shared: SharedData, steps: int) -> float:
    """Train on the rows that would have followed those of the run, with soft labels that are drawn anew; return the seconds."""
    from numerate.lab.training.trainer import fit

    data, _ = run_data(config.model_copy(update={"steps": config.steps + steps}), task, loaded, shared)
    first = config.steps * config.batch_size * config.accumulation
    further = torch.utils.data.Subset(data, range(first, len(data)))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(config.model_copy(update={"steps": steps, "save_every": None}), bf16=config.bf16)
        cost = fit(loaded, further, check_run(config, task, loaded), arguments | {"output_dir": folder}, Path(folder))
    return float(cost["train_seconds"])


# All of them


def run(folder: Path, out: Path, ways: dict[str, Sequence[str]], settings: Settings, *, tune: int, processes: int) -> None:
    """Continue runs of a comparison, by label in several ways, and write the rows; those in the file already are kept."""
    runs, trials = find_starts(folder, [*ways])
    if tune and len(trials) < len(ways):
        raise SystemExit(f"{folder} has tuning trials of {len(trials)} of {len(ways)} losses: run the comparison with --tune.")
    rows = read(out) if out.is_file() else []

    def finish(jobs: Iterable[tuple[Start, dict[str, float]]]) -> None:
        done = {_key(row) for row in rows}
        left = [job for job in jobs if not {_job_key(job[0], *item) for item in job[1].items()} <= done]
        for found in _executed(left, settings, processes):
            again = {_key(row) for row in found}
            rows[:] = [row for row in rows if _key(row) not in again] + found
            write(out, rows)

    finish((trial, dict.fromkeys(ways[trial.config.name], factor)) for trial in trials for factor in FACTORS[:tune])
    chosen = {label: dict.fromkeys(own, FACTORS[0]) for label, own in ways.items()}
    for label, way in ((label, way) for label, own in ways.items() for way in own if tune):
        names = folder.name, label, way
        tried = [row for row in rows if row["validation"] and (row["comparison"], row["start"], row["way"]) == names]
        chosen[label][way] = min(tried, key=lambda row: row["after_greedy"])["factor"]
    finish((start, chosen[start.config.name]) for start in runs)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("comparison", "start", "seed", "validation", "way", "factor"))


def _job_key(start: Start, way: str, factor: float) -> tuple[Any, ...]:
    config = start.config
    return (start.comparison, config.name, config.seed, int(config.validation), way, factor)


def _executed(jobs: list[tuple[Start, dict[str, float]]], settings: Settings, processes: int) -> Iterator[list[Row]]:
    """Yield the rows of each job as it ends, and say so."""

    def said(number: int, rows: list[Row]) -> list[Row]:
        first = rows[0]
        changes = ", ".join(f"{row['way']} {row['before_greedy']:.4g} to {row['after_greedy']:.4g}" for row in rows)
        what = "trial" if first["validation"] else "run"
        print(f"{number}/{len(jobs)} {what} {first['start']} seed {first['seed']}: {changes}", flush=True)
        return rows

    if processes == 1 or len(jobs) < 2:
        for number, (start, factors) in enumerate(jobs, 1):
            yield said(number, continued(start, factors, settings))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(continued, start, factors, settings) for start, factors in jobs]
        for number, future in enumerate(as_completed(futures), 1):
            yield said(number, future.result())


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write the rows; what a row lacks is empty."""
    write_text(file, pd.DataFrame(rows, columns=COLUMNS, dtype=object).to_csv(index=False, lineterminator="\n"))


def read(file: Path) -> list[Row]:
    """Read what :func:`write` wrote."""
    rows = pd.read_csv(file).to_dict("records")
    return [{name: value for name, value in row.items() if value == value} for row in rows]


# Markdown


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table for each comparison: means over seeds, and in brackets the p-values against the start and the control."""
    for name in dict.fromkeys(row["comparison"] for row in rows):
        mine = [row for row in rows if row["comparison"] == name and not row["validation"]]
        if not mine:
            continue
        starts, ways = ([*dict.fromkeys(row[key] for row in mine)] for key in ("start", "way"))
        columns = {
            (start, way): sorted((row for row in mine if (row["start"], row["way"]) == (start, way)), key=lambda row: row["seed"])
            for start in starts
            for way in ways
        }
        p = {measure: _p_values(columns, measure) for measure in MEASURES}
        counts = {start: min(len(columns[start, way]) for way in ways) for start in starts}
        many = [f"{counts[start]} seeds" + (f" from `{start}`" if len({*counts.values()}) > 1 else "") for start in starts]
        yield f"\n`{name}`, model `{mine[0]['model']}`, {', '.join(dict.fromkeys(many))}\n"
        yield f"| training | steps | samples | seconds | {' | '.join(MEASURES.values())} |\n|{'---|' * (4 + len(MEASURES))}"
        for start in starts:
            first = columns[start, ways[0]]
            cells = [_mean(first, f"before_{measure}") for measure in MEASURES]
            yield f"| `{start}` | | | | {' | '.join(cells)} |"
            for way in ways:
                own = columns[start, way]
                cost = [_mean(own, "steps", ",.0f"), _mean(own, "samples", ",.0f"), _mean(own, "seconds", ",.1f")]
                cells = [f"{_mean(own, f'after_{measure}')} {p[measure][start, way]}".strip() for measure in MEASURES]
                yield f"| + `{way}` | {' | '.join([*cost, *cells])} |"


def _mean(rows: Sequence[Row], name: str, form: str = ".4g") -> str:
    return f"{np.mean([row[name] for row in rows]):{form}}"


def _p_values(columns: dict[tuple[str, str], list[Row]], measure: str) -> dict[tuple[str, str], str]:
    """Return p-values of each way against its start and the control, paired over seeds, corrected by Holm's method, as text."""
    against: tuple[dict[Any, float], dict[Any, float]] = {}, {}
    for (start, way), rows in columns.items():
        after = _column(rows, f"after_{measure}")
        control = columns.get((start, SUPERVISED), [])
        if len(rows) > 1:
            against[0][start, way] = paired_t(after, _column(rows, f"before_{measure}"), over="seeds")
        if len(rows) > 1 and way != SUPERVISED and [row["seed"] for row in rows] == [row["seed"] for row in control]:
            against[1][start, way] = paired_t(after, _column(control, f"after_{measure}"), over="seeds")
    corrected = [holm(found) if found else {} for found in against]
    found = {key: [p_text(p[key]) for p in corrected if key in p] for key in columns}
    return {key: f"({'; '.join(shown)})" if shown else "" for key, shown in found.items()}


def _column(rows: Sequence[Row], name: str) -> Any:
    return np.array([[row[name]] for row in rows])


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="continue the runs of a finished comparison whose weights were kept")
    one.add_argument("folder", type=Path, help="folder of the comparison")
    one.add_argument("out", type=Path, help="CSV file to write, or to complete")
    one.add_argument("--starts", default="ce,soft", help="losses of the comparison, with commas between them. Default: ce,soft")
    one.add_argument("--rewards", default=",".join(WAYS), help=f"rewards, with settings after colons. Default: {','.join(WAYS)}")
    one.add_argument("--steps", type=int, default=300, help="steps of GRPO. Default: 300")
    one.add_argument("--prompts", type=int, default=16, help="prompts per step. Default: 16")
    one.add_argument("--group", type=int, default=8, help="completions per prompt. Default: 8")
    one.add_argument("--tune", type=int, default=0, choices=range(len(FACTORS) + 1), help="learning rates to try for each way")
    one.add_argument("--processes", type=int, default=1, help="runs at a time, in processes of their own. Default: 1")
    commands.add_parser("table", help="print the means and tests as Markdown").add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.command == "table":
        print("\n".join(table([row for file in given.files for row in read(file)])))
        return
    for reward in given.rewards.split(","):
        reward_of(reward)
    ways = {label: (*given.rewards.split(","), SUPERVISED) for label in given.starts.split(",")}
    settings = Settings(given.steps, given.prompts, given.group)
    run(given.folder, given.out, ways, settings, tune=given.tune, processes=given.processes)


if __name__ == "__main__":
    main()
