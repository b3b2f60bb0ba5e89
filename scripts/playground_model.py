"""Train the model that comes with the playground, and write it into the package.

    OMP_NUM_THREADS=1 python scripts/playground_model.py

The model is `tiny` (78,768 parameters), trained on the packaged table of diamonds with soft labels and a fixed seed, so that the
same package versions give the same weights. Takes about five minutes on one core. Prints the errors on the test rows, which are
also in the model card.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from numerate.lab.prediction.train import train
from numerate.playground.models import SHIPPED

SETTINGS = {
    "model": "tiny",
    "task": "regression",
    "data": "diamonds",
    "task_settings": {"target": "price", "wording": "bare"},
    "loss": "soft",
    "soft": {"relative": 0.05, "lowest": 0},
    "batch_size": 64,
    "learning_rate": 3e-3,
    "weight_decay": 0.0,  # decay keeps some probability on numbers that no label has, such as one digit alone
    "seed": 18,
    "eval_examples": 1000,
    "eval_splits": ["interpolate"],
    "decide": ["median", "mean", "relative"],
}
"""All training rows of the table; decisions are measured on 1,000 test rows."""


def main() -> None:
    """Train, and write the folder of the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the model")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        trained = train(**SETTINGS, steps=options.steps, out=Path(folder) / "run")
        shutil.rmtree(options.out, ignore_errors=True)
        shutil.copytree(trained.model, options.out, copy_function=shutil.copyfile)  # readable by all
    card = (options.out / "README.md").read_text(encoding="utf-8")
    print(card[card.index("## How good it is") : card.index("## How it is asked")])
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{size / 1024:,.0f} KiB in {options.out}")


if __name__ == "__main__":
    main()
