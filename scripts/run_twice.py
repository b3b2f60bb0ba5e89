"""Train the same run twice, with each loss and with soft labels, and tell what differs: what docs/reliability.md says of a GPU.

    python scripts/run_twice.py                       # on the GPU if there is one, as numerate train does
    python scripts/run_twice.py --loss ce --loss soft --steps 5

Weights, predictions and learning curves of the two are compared bit by bit: first as a run is by itself, then in torch's
deterministic mode. Runs are those of ``tiny`` on sums; ``stack`` has one run with each loss, trained as one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from numerate.checks import check_choice
from numerate.lab.files.records import read_jsonl
from numerate.lab.training.config import SOFT, RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack
from numerate.losses import LOSSES

KINDS = ("ce", *LOSSES, *SOFT)
STACK = "stack"
MODES = {"as it is": False, "deterministic mode": True}
PARTS = {"model.safetensors": "weights", "predictions.jsonl": "predictions", "curve.jsonl": "curve"}


def config(kind: str, steps: int) -> RunConfig:
    """Return a run with a loss, or with soft labels."""
    task = {"difficulty": 1, "longest": 2, "operations": "+-", "signed": False, "wording": "bare"}
    loss = {"loss": "ce", "soft": {"width": 2.0, "path": SOFT[kind]}} if kind in SOFT else {"loss": kind}
    few = {"train_examples": 640, "eval_examples": 20, "eval_splits": ("interpolate",), "log_every": 1}
    return RunConfig(task_settings=task, steps=steps, keep_model=True, **few, **loss)


def train(kind: str, kinds: Sequence[str], steps: int, folder: Path) -> list[Path]:
    """Train a run, or one of each kind as a stack; return the folders."""
    if kind != STACK:
        run(config(kind, steps), folder)
        return [folder]
    folders = [folder / name for name in kinds]
    run_stack([config(name, steps) for name in kinds], folders)
    return folders


def content(folder: Path, name: str) -> object:
    """Return what a run wrote to a file, without times."""
    if name == "curve.jsonl":
        return [{key: value for key, value in point.items() if key != "seconds"} for point in read_jsonl(folder / name)]
    return (folder / "model" / name if name.endswith(".safetensors") else folder / name).read_bytes()


def differing(first: Sequence[Path], second: Sequence[Path]) -> list[str]:
    """Return which parts of runs differ."""
    pairs = list(zip(first, second, strict=True))
    return [part for name, part in PARTS.items() if any(content(one, name) != content(other, name) for one, other in pairs)]


def table(kinds: Sequence[str], steps: int) -> Iterator[str]:
    """Yield a line of Markdown for each kind of run, as it is done."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    yield f"`tiny`, {steps} steps of 64 sums, {where}, torch {torch.__version__}; what differs between two runs:\n"
    yield f"| | {' | '.join(MODES)} |\n|{'---|' * (1 + len(MODES))}"
    for kind in (*kinds, STACK):
        cells = []
        for deterministic in MODES.values():
            torch.use_deterministic_algorithms(deterministic)
            with tempfile.TemporaryDirectory() as folder:
                runs = [train(kind, kinds, steps, Path(folder) / name) for name in ("first", "second")]
                cells.append(", ".join(differing(*runs)) or "nothing")
        yield f"| `{kind}` | {' | '.join(cells)} |"
    torch.use_deterministic_algorithms(False)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", action="append", help="a loss, ce, or soft labels; may be repeated. Default: all of them")
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args(arguments)
    kinds = given.loss or [*KINDS]
    for kind in kinds:
        check_choice("--loss", kind, KINDS)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS needs in deterministic mode; read at its start
    for line in table(kinds, given.steps):
        print(line, flush=True)


if __name__ == "__main__":
    main()
