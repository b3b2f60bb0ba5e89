"""Check every language model of transformers, and write the table for the docs.

train    `attach` gives the right gradient
decode   `numerate.decode.distribution` is equal to brute force

python scripts/sweep_architectures.py --jobs 2 --json sweep.json --markdown docs/architectures.md
python scripts/sweep_architectures.py --what decode --jobs 2 --markdown docs/architectures_decoding.md
python scripts/sweep_architectures.py --what decode --only 'qwen|mixtral'

Each model is built small from its configuration alone, in a separate process.
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


_TRAINING = """\
Every language model of transformers {version}, built small from its configuration alone, is trained with `attach` for one step of
three micro-batches. *Exact*: the gradient of every parameter equals the one computed by hand from the model's logits, its
cross-entropy, its router loss if it has one, and the numeric term. *Error* is the largest relative difference, for weights 0 and
0.3, in float64 if the model supports it. *Fused*: logits of the whole batch are not built. *Labels*: whether the model's own loss
shifts them. *Not built*: the sweep found no small configuration or no inputs for the model, so `attach` was not tested with it.

    python scripts/sweep_architectures.py --jobs 2 --markdown docs/architectures.md"""

_DECODING = """\
For every language model of transformers {version} with `generate`, built small from its configuration alone, the distribution
over numbers of `numerate.decode.distribution` is compared with brute force: a forward pass over the whole sequence for every
beginning of a number, one prompt at a time, without cache and without padding. *Exact*: the probability of every number is
equal, with the model's cache and with prompts of two lengths in a batch; *error* is the largest relative difference, in float64
if the model supports it (`generate` makes scores float32). *Cache: no*: the model has none that rows can be selected from, so
that every sequence is computed from its beginning, which takes longer. *Padding: no*: for this model a prompt with padding
before it is another prompt; prompts given as texts are put into batches of one length, and a padded batch is refused. *Equal
to*: where `generate` itself computes other scores than a forward pass of the model (it numbers positions differently, or the
model's cache changes them), the search is equal to `generate`. *Not built*: the sweep found no small configuration or no inputs
with which `generate` runs.

    python scripts/sweep_architectures.py --what decode --jobs 2 --markdown docs/architectures_decoding.md"""


def main() -> None:
    """Parse the arguments, run the sweep, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("train", "decode"), default="train", help="what to check")
    parser.add_argument("--only", default="", help="regular expression searched in kind/model_type/class")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    args = parser.parse_args()
    chosen = [architecture for architecture in architectures() if re.search(args.only, str(architecture))]
    if args.what == "decode":
        chosen = [architecture for architecture in chosen if architecture.kind != "masked"]
    module = decoding if args.what == "decode" else training
    verdicts = sweep(chosen, module, args.jobs, args.json)
    console = Console()
    for verdict in verdicts:
        if verdict.status != "exact":
            console.print(f"{verdict.architecture}: {verdict.status}: {verdict.detail}", markup=False, highlight=False)
    console.print(summary(verdicts))
    if args.markdown:
        args.markdown.write_text((decoding_page if args.what == "decode" else training_page)(verdicts))


def sweep(chosen: list[Architecture], module: ModuleType, jobs: int, file: Path | None = None) -> list[Any]:
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
                    if file is not None:
                        file.write_text(json.dumps([dataclasses.asdict(verdicts[key]) for key in sorted(verdicts)], indent=1))
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
        sender.send(module.Verdict(str(architecture), "fails", f"{type(error).__name__}: {error}"))


def summary(verdicts: list[Any]) -> str:
    """Return the number of models of each status."""
    counts = Counter(verdict.status for verdict in verdicts)
    fused = sum(verdict.status == "exact" and getattr(verdict, "path", "") == "fused" for verdict in verdicts)
    parts = [f"{counts[status]} {status}" + (f" ({fused} fused)" if fused and status == "exact" else "") for status in STATUSES]
    return f"{len(verdicts)} architectures: {', '.join(parts)}."


def training_page(verdicts: list[training.Verdict]) -> str:
    """Return the page of the docs about training."""
    rows = []
    for verdict in verdicts:
        error = f"{max(verdict.errors):.0e}" if verdict.errors else ""
        rows.append((verdict, verdict.status, error, verdict.path, verdict.inputs, verdict.labels))
    return _page("Architectures", _TRAINING, "gradient | error | path | inputs | labels", rows)


def decoding_page(verdicts: list[decoding.Verdict]) -> str:
    """Return the page of the docs about decoding."""
    rows = []
    for verdict in verdicts:
        error = "" if verdict.error is None else f"{verdict.error:.0e}"
        padding = ("yes" if verdict.padding else "no") if verdict.reference else ""
        rows.append((verdict, verdict.status, error, verdict.cache, padding, verdict.reference, verdict.inputs))
    return _page("Architectures: decoding", _DECODING, "distribution | error | cache | padding | equal to | inputs", rows)


def _page(title: str, about: str, columns: str, rows: list[tuple[Any, ...]]) -> str:
    heading = f"| model | class | {columns} | why |"
    lines = [f"# {title}", "", summary([verdict for verdict, *_ in rows]), "", about.format(version=transformers.__version__), ""]
    lines += [heading, "|---" * (heading.count("|") - 1) + "|"]
    for verdict, *cells in rows:
        kind, model_type, model_class = verdict.architecture.split("/")
        cells = [f"{model_type} ({kind})", model_class, *cells, verdict.detail.replace("|", "\\|")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
