"""What a pool of eight members is compared with on the tables of part 15a: eight scalar heads, and gradient boosting.

    python research/pool_baselines.py heads --minutes 9 --processes 14      # research/scores/heads_pools.csv
    python research/pool_baselines.py boosting                              # research/scores/boosting_pools.csv; needs no GPU

    scalar head         a scalar output on the same model, trained with squared error: one, and the mean of eight that are trained
                        on the same rows; its learning rate is the best of three on validation rows of another draw
    gradient boosting   on the columns, with settings chosen on the same validation rows: one fit, and the mean of eight. Another
                        seed alone gives the same trees, so each of the eight is fitted to a bootstrap sample of the training rows

HL-Gauss bins with one member, tuned likewise on the same rows, are in ``scores/tables_*_rivals.csv``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from pool_members import BATCH, TABLES, Row, about, command

from numerate.distribution.exact import Floats
from numerate.lab.baselines import boosting, choose_boosting
from numerate.lab.comparison.cells import TUNING_SEED
from numerate.lab.data import Example
from numerate.lab.data.numbers import gold_numbers
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out, validation_examples
from numerate.lab.files.records import write_json
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import LoadedModel
from numerate.lab.training.config import RunConfig
from numerate.lab.training.heads import with_head
from numerate.lab.training.prepare import load_run_model, run_data, run_encoder, run_examples, training_arguments
from numerate.lab.training.stacked.fit import Stepper
from numerate.lab.training.stacked.model import stack

RATES = (0.0005, 0.001, 0.002)
KNOWN = ROWS = 1000  # validation and test rows


def heads(table: str, config: RunConfig, folder: Path) -> list[Row]:
    """Return the lines of a scalar head, and of the mean of several."""
    return lines(table, config, "scalar head", partial(head_answers, config, folder))


def boosted(table: str, config: RunConfig, folder: Path) -> list[Row]:
    """Return the lines of gradient boosting, and of the mean of several fits."""
    return lines(table, config, "gradient boosting", partial(boosting_answers, config))


def lines(table: str, config: RunConfig, label: str, answered: Callable[[Sequence[Example]], Floats]) -> list[Row]:
    """Return a line for the first of several models, and one for the mean of all; boosting has one more, of all rows."""
    task = make_task(config)
    test = held_out(task, ("interpolate",), ROWS)["interpolate"]
    golds, begin = gold_numbers(task, test), time.perf_counter()
    answers = answered(test)
    same: Row = {"learning_rate": "", "rows": len(golds), "seconds": time.perf_counter() - begin}
    means = {1: answers[0], config.members: answers[-config.members :].mean(0)}
    return [
        about(table, config, label, size) | same | {"absolute_error": float(np.abs(own - golds).mean())}
        for size, own in means.items()
    ]


def boosting_answers(config: RunConfig, test: Sequence[Example]) -> Floats:
    """Return the answers of boosting fitted to all training rows, and to bootstrap samples of them."""
    task = make_task(config)
    tuning = config.model_copy(update={"seed": TUNING_SEED, "validation": True, "eval_examples": KNOWN})
    known = validation_examples(task, KNOWN, TUNING_SEED)["interpolate"]
    settings = choose_boosting(task, run_examples(tuning, task), known)
    rows, rng = list(run_examples(config, task)), np.random.default_rng(config.seed)
    samples = [rows, *([rows[index] for index in rng.integers(len(rows), size=len(rows))] for _ in range(config.members))]
    return np.stack([boosting(task, sample, test, settings, seed=seed).answers for seed, sample in enumerate(samples)])


def head_answers(config: RunConfig, folder: Path, test: Sequence[Example]) -> Floats:
    """Return the answers of scalar heads, with the learning rate that is best on validation rows of another draw."""
    task, kept = make_task(config), folder / f"scalar_{Path(str(config.data)).stem}_{config.train_examples}_{config.steps}.json"
    if kept.is_file():
        rate = json.loads(kept.read_text(encoding="utf-8"))
    else:
        tuning = config.model_copy(update={"seed": TUNING_SEED, "validation": True, "eval_examples": KNOWN})
        known = validation_examples(task, KNOWN, TUNING_SEED)["interpolate"]
        answers, golds = trained_heads(tuning, [0] * len(RATES), RATES, known), gold_numbers(task, known)
        rate = RATES[int(np.abs(answers - golds).mean(1).argmin())]
        write_json(kept, rate)
    return trained_heads(config, range(config.members), [rate] * config.members, test)


def trained_heads(config: RunConfig, members: Sequence[int], rates: Sequence[float], asked: Sequence[Example]) -> Floats:
    """Train scalar heads of these members as one stack; return their answers ``[E, rows]``."""
    config = config.model_copy(update={"loss": "scalar_head", "soft": None, "learning_rate": RATES[0], "bf16": False})
    task = make_task(config)
    encoder, examples = run_encoder(config, task), run_examples(config, task)
    models = [load_run_model(config, encoder, config.member_seed(member)) for member in members]
    models = [
        with_head(model, config.loss, task, examples, config.member_seed(member))
        for model, member in zip(models, members, strict=True)
    ]
    data = [run_data(config, task, model, member=member)[0] for model, member in zip(models, members, strict=True)]
    stacked: Any = stack(models)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = stacked.model.to(device).train()
    stepper = Stepper(model, training_arguments(config, bf16=False), rates)
    for first in range(0, config.steps * config.batch_size, config.batch_size):
        batch = collate([own[at] for own in data for at in range(first, first + config.batch_size)], pad=stacked.pad)
        numbers = batch.pop("number").to(device).float()
        out = model(**{name: value.to(device) for name, value in batch.items()})["out"][:, 0]
        (out - numbers).square().view(len(models), -1).mean(1).sum().backward()
        stepper.step()
    return answers_of(stacked, len(models), asked)


@torch.no_grad()
def answers_of(stacked: LoadedModel, size: int, asked: Sequence[Example]) -> Floats:
    """Return the answers of stacked heads ``[E, rows]``."""
    model: Any = stacked.model.eval()
    found = []
    for first in range(0, len(asked), BATCH):
        rows = stacked.encode([(example.prompt, None) for example in asked[first : first + BATCH]])
        batch = collate(rows * size, pad=stacked.pad)
        out = model(**{name: value.to(model.device) for name, value in batch.items()})["out"][:, 0]
        found.append(out.view(size, -1).double().cpu().numpy())
    answers: Floats = model.scale.restored(np.concatenate(found, axis=1))
    return answers


MEASURES = {"heads": heads, "boosting": boosted}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] not in MEASURES:
        sys.exit(__doc__)
    command(MEASURES[given[0]], given[0], __doc__, given[1:], [*TABLES, *(f"{table}_10000" for table in TABLES)])


if __name__ == "__main__":
    main()
