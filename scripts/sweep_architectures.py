"""Check every language model of transformers, and write one line per model to a CSV file.

train    `attach` gives the correct gradient, also with soft labels
decode   `numerate.decode.distribution` equals brute force

python scripts/sweep_architectures.py --jobs 2 --csv research/scores/architectures_training.csv
python scripts/sweep_architectures.py --what decode --jobs 2 --csv research/scores/architectures_decoding.csv
python scripts/sweep_architectures.py --what decode --only 'qwen|mixtral'

Each model is built in a small version from its configuration, in a separate process. research/README.md explains the columns.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import io
import multiprocessing
import multiprocessing.connection
import os
import re
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from tests.decode import sweep as decoding
from tests.integrations.trainers import sweep as training
from tests.integrations.trainers.architectures import Architecture, architectures

SECONDS, GIBIBYTES = 60, 8  # CPU time and memory per model; the wall-clock limit is ten times as long
STATUSES = ("exact", "differs", "refused", "fails", "nothing to compare", "not built")
COLUMNS = {"train": ("path", "inputs", "labels", "soft"), "decode": ("cache", "padding", "reference", "inputs")}


def main() -> None:
    """Parse the arguments, run the sweep, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("train", "decode"), default="train", help="what to check")
    parser.add_argument("--only", default="", help="regular expression searched in kind/model_type/class")
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes")
    parser.add_argument("--csv", type=Path, help="write every verdict here")
    args = parser.parse_args()
    chosen = [architecture for architecture in architectures() if re.search(args.only, str(architecture))]
    if args.what == "decode":
        chosen = [architecture for architecture in chosen if architecture.kind != "masked"]
    module = decoding if args.what == "decode" else training
    verdicts = sweep(chosen, module, args.jobs)
    console = Console()
    for verdict in verdicts:
        if verdict.status != "exact":
            console.print(f"{verdict.architecture}: {verdict.status}: {verdict.detail}", markup=False, highlight=False)
    console.print(summary(verdicts))
    if args.csv:
        write(args.csv, verdicts, COLUMNS[args.what])


def sweep(chosen: list[Architecture], module: ModuleType, jobs: int) -> list[Any]:
    """Return the verdict of ``module.check`` on each model, in order; one that takes too long does not stop the others."""
    _warm_up(module)
    waiting, verdicts = list(enumerate(chosen)), dict[int, Any]()
    running: dict[Any, tuple[int, Any, float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("architectures", total=len(chosen))
        while waiting or running:
            while waiting and len(running) < jobs:
                number, architecture = waiting.pop(0)
                receiver, sender = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.get_context("fork").Process(target=_work, args=(module, architecture, sender))
                process.start()
                sender.close()
                running[receiver] = (number, process, time.monotonic())
            ready = multiprocessing.connection.wait(list(running), timeout=0.2)
            for receiver, (number, process, begin) in list(running.items()):
                verdict = None
                if receiver in ready:
                    try:
                        verdict = receiver.recv()
                    except EOFError:
                        process.join()
                        why = f"the process died with exit code {process.exitcode}"
                        verdict = module.Verdict(str(chosen[number]), "not built", why)
                elif time.monotonic() - begin > 10 * SECONDS:
                    process.kill()
                    verdict = module.Verdict(str(chosen[number]), "not built", f"not done in {10 * SECONDS} seconds")
                if verdict is not None:
                    process.join()
                    verdict.seconds = time.monotonic() - begin
                    verdicts[number] = verdict
                    del running[receiver]
                    progress.advance(bar)
    return [verdicts[key] for key in sorted(verdicts)]


def _warm_up(module: ModuleType) -> None:
    """Import what every model needs before forking."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        module.check(next(architecture for architecture in architectures() if architecture.model_class == "LlamaForCausalLM"))
    gc.freeze()  # the trainer runs a garbage collection, which would scan everything imported


def _work(module: ModuleType, architecture: Architecture, sender: Any) -> None:
    memory = GIBIBYTES << 30
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # Discard what models print.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        sender.send(module.check(architecture))
    except Exception as error:
        status = "not built" if "can't allocate memory" in str(error) else "fails"  # the limit is the sweep's
        sender.send(module.Verdict(str(architecture), status, f"{type(error).__name__}: {error}"))


def summary(verdicts: list[Any]) -> str:
    """Return the number of models of each status."""
    counts = Counter(verdict.status for verdict in verdicts)
    fused = sum(verdict.status == "exact" and getattr(verdict, "path", "") == "fused" for verdict in verdicts)
    parts = [f"{counts[status]} {status}" + (f" ({fused} fused)" if fused and status == "exact" else "") for status in STATUSES]
    return f"{len(verdicts)} architectures: {', '.join(parts)}."


def write(file: Path, verdicts: list[Any], columns: tuple[str, ...]) -> None:
    """Write a line for each model."""
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("kind", "model", "class", "status", "error", *columns, "why"))
        for verdict in verdicts:
            errors = verdict.errors if isinstance(verdict, training.Verdict) else [*filter(None, [verdict.error])]
            values = {name: getattr(verdict, name) for name in columns}
            if "padding" in values:
                values["padding"] = ("yes" if verdict.padding else "no") if verdict.reference else ""
            error = f"{max(errors):.0e}" if errors else ""
            writer.writerow((*verdict.architecture.split("/"), verdict.status, error, *values.values(), verdict.detail))


if __name__ == "__main__":
    main()
