"""Measure what else could predict the numbers of a comparison: a constant, gradient boosting, and heads on the same backbone.

    pip install scikit-learn                              # for boosting
    python research/baselines.py research/configs/diamonds_soft.yaml --tune 5 --out rivals.csv
    python research/baselines.py research/configs/diamonds_soft.yaml --rivals scalar,hl_gauss --set steps=2400 --out heads.csv

constant    the median of the training rows
boosting    scikit-learn's histogram gradient boosting on the columns
scalar      a scalar output of the model, with squared error
hl_gauss    a histogram of the number, with Gaussian targets (HL-Gauss): its mean and its median

Training and test rows, prompts, batches, steps and schedule are those of the comparison's runs, and so are the tuning seed, the
validation rows and the measure that settings are chosen by. The losses of the comparison are not run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from numerate.checks import check_choice
from numerate.cli.settings import experiment_types, parse_settings
from numerate.lab.baselines import RIVALS, NotApplicable, rival_rows, write_rows
from numerate.lab.comparison.cells import tuning_trials
from numerate.lab.comparison.plan import Experiment, comparison_settings, read_experiment
from numerate.lab.data.settings import make_task


def plan(config: Path, settings: list[str], seeds: int | None) -> Experiment:
    """Return the comparison with cross-entropy alone; ``settings`` are those of ``--set``."""
    tasks = comparison_settings(config, None).get("tasks", ("arithmetic",))
    values = comparison_settings(config, None, settings=parse_settings(settings, experiment_types(tasks)))
    values |= {"losses": ["ce"], "baseline": "ce"} | ({} if seeds is None else {"seeds": seeds})
    values = _hard(values) | {"tasks": [_hard(task) if isinstance(task, dict) else task for task in values.get("tasks", tasks)]}
    experiment = read_experiment(values, str(config))
    if len(experiment.tasks) > 1 or len(experiment.models) > 1:
        counts = f"{len(experiment.tasks)} tasks and {len(experiment.models)} models"
        raise ValueError(f"{config} has {counts}: expected one of each.")
    return experiment


def _hard(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without soft labels and without decisions, which only a model that writes numbers has."""
    return {name: value for name, value in settings.items() if name not in ("soft", "decide", "samples")}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="YAML file of a comparison with one task and one model")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as in numerate compare")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write: a row for each rival, seed and split")
    parser.add_argument("--rivals", help=f"names with commas between them. Default: those of {','.join(RIVALS)} that apply")
    parser.add_argument("--seeds", type=int, help="number of seeds. Default: that of the file")
    parser.add_argument("--tune", type=int, default=0, choices=range(10), help="tuning trials, as in numerate compare")
    given = parser.parse_args(arguments)
    rivals = [name.strip() for name in given.rivals.split(",")] if given.rivals else list(RIVALS)
    for rival in rivals:
        check_choice("--rivals", rival, RIVALS)
    experiment = plan(given.config, given.set, given.seeds)
    runs = experiment.cells()
    (trials,) = tuning_trials(experiment, max(1, given.tune)).values()
    task = make_task(runs[0])
    rows: list[dict[str, Any]] = []
    for rival in rivals:
        try:
            found = rival_rows(rival, task, runs, trials)
        except (NotApplicable, ModuleNotFoundError) as error:
            if given.rivals:
                raise
            print(f"{rival}: left out. {error}")
            continue
        rows += found
        write_rows(given.out, rows)
        for name, split in dict.fromkeys((row["rival"], row["split"]) for row in found):
            mine = [row for row in found if (row["rival"], row["split"]) == (name, split)]
            mae, relative, rmse = (mean(row[key] for row in mine) for key in ("mae", "mean_relative_error", "rmse"))
            print(f"{name:16} {split:12} MAE {mae:.5g}, relative {relative:.4f}, RMSE {rmse:.5g} ({len(mine)} seeds)")


if __name__ == "__main__":
    main()
