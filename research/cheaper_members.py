"""Members for the cost of one run, and one model that is trained on what a pool says: part 15d of the plan.

    python research/cheaper_members.py --minutes 9 --processes 14      # research/scores/cheaper_pools.csv

For each draw of a table, beside the members of pool_members.py:

    snapshots    a run of as many steps as one member, in eight cycles of a cosine schedule; the weights at the end of each
    dropout      a run with dropout behind every layer, asked eight times with dropout left on
    student      one model trained for twice the steps on the distributions of the pool as soft targets, instead of the labels,
                 of the training rows alone, and of 5,000 rows without labels too
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

from pool_members import Members, Row, about, command, figures, sizes, stacked_members, trained

from numerate.distribution import NumberDistribution, pool
from numerate.lab.data import Example
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out, training_examples
from numerate.lab.models.encoding import AnswerTries, SoftAnswers, training_data
from numerate.lab.models.loading import LoadedModel
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import check_run, load_run_model, run_data, run_encoder, run_examples, training_arguments
from numerate.lab.training.stacked.fit import fit, loader_workers
from numerate.lab.training.stacked.model import stack, unstack
from numerate.lab.training.stacked.objective import StackedObjective
from numerate.targets import AnswerDistribution

TABLES = ("diamonds", "births", "flights")
CYCLES = PASSES = 8
DROPOUT = 0.1
LONGER = 2  # times the steps, for a student
UNLABELLED = 5000


def measured(table: str, config: RunConfig, folder: Path, *, rows: int = 500, unlabelled: int = UNLABELLED) -> list[Row]:
    """Return a line for each way and size of the pool, and for each student."""
    single = config.model_copy(update={"members": 1})
    members = trained(config, folder)
    seconds = {"members": members.seconds}
    asked = held_out(members.task, ("interpolate",), rows)["interpolate"]
    ways = {"members": members}
    for label, train in (("snapshots", snapshots), ("dropout", with_dropout)):
        begin = time.perf_counter()
        ways[label] = train(single)
        seconds[label] = time.perf_counter() - begin
    found = []
    for label, way in ways.items():
        answers = way.answers(asked)
        for size in sizes(len(way.owners)):
            # The last snapshots are the best trained, and the last alone is a run that has used all of its steps.
            pools = [pool(row[-size:] if label == "snapshots" else row[:size]) for row in answers]
            found.append(about(table, config, label, size) | figures(members.task, asked, pools) | {"seconds": seconds[label]})
    begin = time.perf_counter()
    taught = students(single, members, unlabelled)
    seconds["student"] = time.perf_counter() - begin
    for owner, count in enumerate((0, unlabelled)):
        pools = [row[0] for row in replace(taught, owners=(owner,)).answers(asked)]
        label = f"student, {count:,} rows without labels"
        found.append(about(table, config, label, 1) | figures(members.task, asked, pools) | {"seconds": seconds["student"]})
    return found


def snapshots(config: RunConfig) -> Members:
    """Return the weights at the end of each cycle, of about equal steps, of one run; each cycle begins with a warm-up."""
    loaded, data = fresh(config)
    stacked, models, first = stack([loaded]), [], 0
    for cycle in range(CYCLES):
        last = config.steps * (cycle + 1) // CYCLES
        part = torch.utils.data.Subset(data, range(first * config.batch_size, last * config.batch_size))
        train(config, stacked, [part], last - first)
        models.append(unstack(stacked, 0, fresh_model(config)))
        first = last
    return stacked_members(config, models)


def with_dropout(config: RunConfig) -> Members:
    """Return a run with dropout behind the attention and the MLP of every layer, that answers several times with it."""
    loaded, data = fresh(config)
    stacked = stack([loaded])
    for name, module in stacked.model.named_modules():
        if name.endswith((".o_proj", ".down_proj")):
            module.register_forward_hook(lambda module, inputs, output: F.dropout(output, DROPOUT))
    train(config, stacked, [data], config.steps)
    return Members(stacked, config, (0,) * PASSES)


def students(config: RunConfig, members: Members, unlabelled: int) -> Members:
    """Return two models that are trained on the pool's distributions: of the training rows, and of more rows without labels."""
    config = config.model_copy(update={"steps": LONGER * config.steps})
    task, count = members.task, len(run_examples(config, members.task))
    examples = list(training_examples(task, count + unlabelled, config.seed))  # those of the run come first
    pools = [pool(row) for row in members.answers(examples)]
    like = max((example.answer for example in examples[:count]), key=lambda answer: len(answer.partition(".")[2]))
    models = [fresh_model(config), fresh_model(config)]
    data = [taught(config, models[0], examples[:count], pools[:count], like), taught(config, models[1], examples, pools, like)]
    stacked = stack(models)
    train(config, stacked, data, config.steps)
    return Members(stacked, config, (0, 1))


def taught(
    config: RunConfig, loaded: LoadedModel, examples: Sequence[Example], pools: Sequence[NumberDistribution], like: str
) -> Any:
    """Return rows in training order whose answers are drawn from the pool, with its distribution as soft targets."""
    answers = {str(number): AnswerDistribution.of_numbers(one, like) for number, one in enumerate(pools)}
    # The distribution of a row is found by its number, which takes the place of its label.
    numbered = [Example(example.prompt, str(number)) for number, example in enumerate(examples)]
    tries = AnswerTries(loaded, lambda example: answers[example.answer])
    if workers := loader_workers():
        tries.expect(numbered)
        tries.make_expected(workers)
    rows, _ = training_data(
        loaded,
        numbered,
        batch_size=config.batch_size,
        batches=config.steps,
        seed=config.seed,
        max_length=config.max_length,
        soft=SoftAnswers(tries, "drawn", config.seed).row,
    )
    return rows


def fresh_model(config: RunConfig) -> LoadedModel:
    """Return the model that a run begins with."""
    return load_run_model(config, run_encoder(config, make_task(config)))


def fresh(config: RunConfig) -> tuple[LoadedModel, Any]:
    """Return the model that a run begins with, and its rows in training order."""
    loaded = fresh_model(config)
    return loaded, run_data(config, make_task(config), loaded)[0]


def train(config: RunConfig, stacked: LoadedModel, data: Sequence[Any], steps: int) -> None:
    """Train a stack in place for some steps, with a cosine schedule of its own."""
    task = make_task(config)
    objective = check_run(config, task, run_encoder(config, task))
    arguments = training_arguments(config.model_copy(update={"steps": steps, "save_every": None}), bf16=config.bf16)
    with tempfile.TemporaryDirectory() as folder:
        curves = [Path(folder) / f"{number}.jsonl" for number in range(len(data))]
        rates = [float(config.learning_rate or 0)] * len(data)
        fit(stacked, data, StackedObjective([objective] * len(data), ["soft"] * len(data)), arguments, rates, curves)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    command(measured, "cheaper", __doc__, arguments, TABLES)


if __name__ == "__main__":
    main()
