"""Check on every language model of transformers that `attach` trains with the right gradient, and write the table for the docs.

python scripts/sweep_architectures.py --jobs 2 --json sweep.json --markdown docs/architectures.md
python scripts/sweep_architectures.py --only 'qwen|mixtral'

Each model is built small from its configuration alone, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import io
import json
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
from typing import Any

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from tests.integrations.trainers.architectures import Architecture, architectures
from tests.integrations.trainers.sweep import Verdict, check

SECONDS, GIBIBYTES = 30, 8  # of processor time and memory for a model; ten times as long by the clock
STATUSES = ("exact", "differs", "refused", "fails", "nothing to compare", "not built")


_ABOUT = """\
Every language model of transformers {version}, built small from its configuration alone, is trained for one step of three
micro-batches with `attach`. *Exact*: the gradient of every parameter is the one made by hand from the model's own logits, its
cross-entropy, its router loss if it has one, and the numeric term; *error* is the largest relative difference, with weights 0
and 0.3, in float64 where the model runs in it. *Fused*: no logits of the whole batch are built. *Labels* tells whether the
model's own loss shifts them. *Not built* says nothing of `attach`: the sweep found no small configuration, or no inputs, that
the model takes.

    python scripts/sweep_architectures.py --jobs 2 --markdown docs/architectures.md"""


def main() -> None:
    """Parse, sweep, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression, looked for in kind/model_type/class")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    args = parser.parse_args()
    chosen = [architecture for architecture in architectures() if re.search(args.only, str(architecture))]
    verdicts = sweep(chosen, args.jobs, args.json)
    console = Console()
    for verdict in verdicts:
        if verdict.status != "exact":
            console.print(f"{verdict.architecture}: {verdict.status}: {verdict.detail}", markup=False, highlight=False)
    console.print(summary(verdicts))
    if args.markdown:
        args.markdown.write_text(markdown(verdicts))


def sweep(chosen: list[Architecture], jobs: int, file: Path | None = None) -> list[Verdict]:
    """A verdict on each, in their order; one that takes too long or dies does not stop the others."""
    _warm_up()
    waiting, verdicts = list(enumerate(chosen)), dict[int, Verdict]()
    running: dict[Any, tuple[int, Any, float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("architectures", total=len(chosen))
        while waiting or running:
            while waiting and len(running) < jobs:
                at, architecture = waiting.pop(0)
                receiver, sender = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.get_context("fork").Process(target=_work, args=(architecture, sender))
                process.start()
                sender.close()
                running[receiver] = (at, process, time.monotonic())
            ready = multiprocessing.connection.wait(list(running), timeout=0.2)
            for receiver, (at, process, begin) in list(running.items()):
                verdict = None
                if receiver in ready:
                    try:
                        verdict = receiver.recv()
                    except EOFError:
                        process.join()
                        verdict = Verdict(str(chosen[at]), "not built", f"the process died with exit code {process.exitcode}")
                elif time.monotonic() - begin > 10 * SECONDS:
                    process.kill()
                    verdict = Verdict(str(chosen[at]), "not built", f"not done in {10 * SECONDS} seconds")
                if verdict is not None:
                    process.join()
                    verdict.seconds = time.monotonic() - begin
                    verdicts[at] = verdict
                    del running[receiver]
                    progress.advance(bar)
                    if file is not None:
                        file.write_text(json.dumps([dataclasses.asdict(verdicts[at]) for at in sorted(verdicts)], indent=1))
    return [verdicts[at] for at in sorted(verdicts)]


def _warm_up() -> None:
    """Import here what every model needs, so that the processes forked later have it."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        check(next(architecture for architecture in architectures() if architecture.model_class == "LlamaForCausalLM"))
    gc.freeze()  # the trainer collects garbage after training, and would look through all that was imported


def _work(architecture: Architecture, sender: Any) -> None:
    memory = GIBIBYTES << 30
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # What models print is no part of the report.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        sender.send(check(architecture))
    except Exception as error:
        sender.send(Verdict(str(architecture), "fails", f"{type(error).__name__}: {error}"))


def summary(verdicts: list[Verdict]) -> str:
    """How many there are of each status."""
    counts = Counter(verdict.status for verdict in verdicts)
    fused = sum(verdict.status == "exact" and verdict.path == "fused" for verdict in verdicts)
    parts = [f"{counts[status]} {status}" + (f" ({fused} fused)" if status == "exact" else "") for status in STATUSES]
    return f"{len(verdicts)} architectures: {', '.join(parts)}."


def markdown(verdicts: list[Verdict]) -> str:
    """The page for the docs."""
    lines = ["# Architectures", "", summary(verdicts), "", _ABOUT.format(version=transformers.__version__), ""]
    lines += ["| model | class | gradient | error | path | inputs | labels | why |", "|---|---|---|---|---|---|---|---|"]
    for verdict in verdicts:
        kind, model_type, model_class = verdict.architecture.split("/")
        error = f"{max(verdict.errors):.0e}" if verdict.errors else ""
        why = verdict.detail.replace("|", "\\|")
        cells = (f"{model_type} ({kind})", model_class, verdict.status, error, verdict.path, verdict.inputs, verdict.labels, why)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
