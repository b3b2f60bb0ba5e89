"""Do the runs that the plan still lacks, several at a time on one GPU, the most valuable first, until the time is over.

    python research/schedule.py research/schedule.yaml --minutes 9 --gib 130 --processes 14

``schedule.yaml`` lists comparisons in the order of their worth. Each entry has a ``config`` of research/configs, and may have

    models     names of model folders or GGUF files in the working folder; default: that of the config
    rates      learning rates that are tried with ``ce`` on the tuning seed; the best is kept for every loss
    each       try them with every loss, and keep the best of each
    seeds      how many; default: those of the config
    labels     of the losses that are run; default: all
    seconds    that a run takes, and ``gib`` of GPU memory: to fill the GPU, and to begin nothing that cannot end in time
    set        further settings of its runs
    stack      how many runs of one loss or format are trained as one, for small models; default: each by itself.
               The members of a run are a stack already

With several formats, rates are tried with ``ce`` in each of them, and kept for the other losses in that format. ``--only`` takes
the entries of one part, or of one model of it (``--only 'sizes_*:SmolLM2*'``), in the order of the schedule; ``--plan`` says how
many minutes they take, from ``seconds`` and what fits onto the GPU at a time.

Data and models are read from the working folder. An entry whose model is not there waits for it, and is listed at the end if it
has not come. A model counts as complete once it is there: write it beside its place, and rename it.

Runs lie in ``runs/NAME``, where NAME is that of the config or of the entry, as those of ``numerate compare``. A run that is
finished, or whose scores ``keep.py`` has kept, is not run again, so that another call goes on. Runs that fail are listed with
their error, and tried again by the next call. At the end, ``--pack FILE`` writes what keep.py reads of all finished runs into an
archive (.tar.xz): unpacked in the working folder, it continues on another machine.

A run, or a stack of them, is a process that is forked from this one, which has imported what it needs. This takes Linux.
"""

from __future__ import annotations

import argparse
import atexit
import csv
import gc
import json
import lzma
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from itertools import accumulate
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from keep import READ

from numerate.lab.comparison.cells import TUNING_SEED, cell_folder, is_finished, run_cells, validation_score, write_plan
from numerate.lab.comparison.plan import Experiment, comparison_settings, read_experiment
from numerate.lab.models.names import NAMED
from numerate.lab.training.config import CROSS_ENTROPY, RunConfig, run_name
from numerate.lab.training.stacked import stacks

HERE = Path(__file__).parent
KEPT = ("experiment.json", "config.json", "result.json", "predictions.jsonl", "curve.jsonl")
TRIAL = {"validation": True, "decide": (), "seed": TUNING_SEED, "members": 1}
IMPORTED = (
    "transformers.models.llama.modeling_llama",
    "transformers.models.llava.modeling_llava",
    "transformers.models.qwen2.modeling_qwen2",
    "numerate.lab.training.trainer",
    "peft",
    "gguf",
)
"""What runs import beyond this file."""


@dataclass
class Entry:
    """One comparison of the schedule with one model."""

    config: str
    name: str
    model: str | None
    rates: tuple[float, ...] = ()
    each: bool = False
    seeds: int | None = None
    labels: tuple[str, ...] = ()
    seconds: float = 60.0
    gib: float = 10.0
    stack: int = 1
    set: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the comparison, which its models share."""
        return Path("runs") / self.name

    @property
    def title(self) -> str:
        """The comparison and its model."""
        return f"{self.name} ({self.experiment.models[0]})"

    @property
    def is_there(self) -> bool:
        """Whether the entry's model is: one that is built, or a path in the working folder."""
        return self.model is None or self.model in NAMED or Path(self.model).expanduser().exists()

    def fits(self, pattern: str) -> bool:
        """Return whether the entry is one of ``NAME`` or ``NAME:MODEL``."""
        name, _, model = pattern.partition(":")
        return fnmatchcase(self.name, name) and (not model or fnmatchcase(self.experiment.models[0], model))

    @cached_property
    def experiment(self) -> Experiment:
        """The comparison as its file describes it."""
        given = {"seeds": self.seeds, "models": self.model and [self.model], "name": self.name} | self.set
        given = {name: value for name, value in given.items() if value is not None}
        return read_experiment(comparison_settings(HERE / "configs" / f"{self.config}.yaml", None, settings=given))

    @cached_property
    def trials(self) -> list[RunConfig]:
        """The runs that choose learning rates: for each loss that is tuned, one for each rate that is tried."""
        tuned = [cell for cell in self.experiment.of_one_seed() if self.has(cell) if self.each or cell.name == _plain(cell)]
        todo = [cell for cell in tuned if cell.name not in self._kept_rates]
        return [cell.model_copy(update=TRIAL | {"learning_rate": rate}) for cell in todo for rate in self.rates]

    @cached_property
    def cells(self) -> list[RunConfig]:
        """The runs, with the best learning rates. All trials have to be finished."""
        chosen = dict(self._kept_rates) if self.rates else {}
        for label in dict.fromkeys(trial.name for trial in self.trials):
            mine = [trial for trial in self.trials if trial.name == label]
            best = max(mine, key=lambda trial: validation_score(self.folder, trial)).learning_rate
            assert best is not None
            chosen[label] = best
        runs = [cell for cell in self.experiment.cells() if self.has(cell)]
        rates = [chosen.get(cell.name if self.each else _plain(cell)) for cell in runs]
        return [
            run.model_copy(update={} if rate is None else {"learning_rate": rate}) for run, rate in zip(runs, rates, strict=True)
        ]

    def has(self, cell: RunConfig) -> bool:
        """Return whether a run of the comparison is one of the entry's losses."""
        return not self.labels or cell.name in self.labels

    @property
    def _kept_rates(self) -> dict[str, float]:
        model = self.experiment.models[0]
        return {label: rate for (kept, label, _), rate in kept_runs(self.name).items() if kept == model}

    @property
    def trials_left(self) -> list[RunConfig]:
        """The trials that are not finished."""
        return [trial for trial in self.trials if not is_finished(self.folder, trial)]

    @property
    def left(self) -> list[RunConfig]:
        """What can be run now: the trials, and the runs once these are finished."""
        return self.trials_left or [cell for cell in self.cells if not self.is_done(cell)]

    def grouped(self, cells: list[RunConfig]) -> list[list[RunConfig]]:
        """Return runs in the groups that one process runs."""
        return [[cell] for cell in cells] if self.stack < 2 else stacks(cells, self.stack)

    def is_done(self, cell: RunConfig) -> bool:
        """Return whether a run is finished here, or its scores are kept."""
        return is_finished(self.folder, cell) or self.is_kept(cell)

    def is_kept(self, cell: RunConfig) -> bool:
        """Return whether the scores of a run are kept."""
        return (cell.model, cell.name, cell.seed) in kept_runs(self.name)


def _plain(cell: RunConfig) -> str:
    """Return the name of cross-entropy in the format of a run."""
    return run_name(CROSS_ENTROPY, None, cell.format)


@cache
def kept_runs(name: str) -> dict[tuple[str, str, int], float]:
    """Return model, label and seed of the runs whose scores are kept, with their learning rates."""
    found: dict[tuple[str, str, int], float] = {}
    for kind, opened in (("scores.csv.xz", lzma.open), ("pools.csv", open)):
        file = HERE / "scores" / f"{name}_{kind}"
        if file.is_file():
            with opened(file, "rt", encoding="utf-8", newline="") as lines:
                found |= {
                    (row["model"], row["label"], int(row["seed"])): float(row["learning_rate"]) for row in csv.DictReader(lines)
                }
    return found


def read_schedule(file: Path) -> list[Entry]:
    """Return the entries of a schedule, one for each model, in order."""
    entries = []
    for part in yaml.safe_load(file.read_text(encoding="utf-8")):
        values = dict(part)
        models = values.pop("models", [None])
        settings = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        settings.setdefault("name", settings["config"])
        entries += [Entry(model=model, **settings) for model in models]
    return entries


@dataclass
class Job:
    """Runs in a process of their own: one, or a stack."""

    entry: Entry
    cells: list[RunConfig]
    process: BaseProcess
    begun: float

    @property
    def title(self) -> str:
        """The runs in a line."""
        first = self.cells[0]
        trial = f", trial {first.learning_rate:g}" if first.validation else ""
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        return f"{self.entry.name} {first.model} {first.name} seed {first.seed}{trial}{more}"

    @property
    def finished(self) -> bool:
        """Whether all of its runs are."""
        return all(is_finished(self.entry.folder, cell) for cell in self.cells)

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return _log(self.entry, self.cells[0])


def _log(entry: Entry, first: RunConfig) -> Path:
    """Return the file for the output of a job, beside the folder of its first run."""
    return cell_folder(entry.folder, first).with_suffix(".log")


def import_all() -> None:
    """Import what runs need. CUDA must not be initialised here: a forked process could not use it."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise torch.cuda.is_available() does
    for name in IMPORTED:
        if find_spec(name.partition(".")[0]) is not None:  # a run that lacks peft says so
            import_module(name)
    gc.freeze()  # collections in forked processes would copy what they share
    atexit.register(gc.unfreeze)  # otherwise triton reports what is left at the end as leaked


def forked(function: Callable[..., object], *arguments: object) -> BaseProcess:
    """Return a process that calls a function with all that is imported here."""
    process = get_context("fork").Process(target=function, args=arguments)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a Ctrl-C within a fork would be lost
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def kill(process: BaseProcess) -> None:
    """Kill the process of a job, and those that it has started, such as the workers of its data loader."""
    with suppress(ProcessLookupError):  # forked just now, it has no group of its own yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def begin(entry: Entry, cells: list[RunConfig]) -> Job:
    """Start runs; their output goes into a file."""
    file = _log(entry, cells[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", errors="replace", buffering=1) as log:
        return Job(entry, cells, forked(in_job, cells, entry.folder, log), time.monotonic())


def in_job(cells: list[RunConfig], folder: Path, log: TextIO) -> None:
    """Do runs, in a process that is the first of its own group."""
    os.setpgid(0, 0)
    sys.stdout = sys.stderr = log
    for descriptor in (1, 2):  # of libraries that are not Python
        os.dup2(log.fileno(), descriptor)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_cells(cells, folder)


def _end_with_parent() -> None:
    """End the group of this process when the schedule was killed: signals to the group of the schedule do not reach it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def work(entries: list[Entry], *, seconds: float, gib: float, processes: int, poll: float = 0.5) -> list[str]:
    """Run what is left until the time is over; return a line for each run that failed, and for each entry without its model."""
    end, running, failed, failures = time.monotonic() + seconds, list[Job](), list[Job](), list[str]()
    known = dict[int, list[list[RunConfig]]]()

    def todo(entry: Entry) -> list[list[RunConfig]]:
        """Return what is left to begin, found anew when a job of the entry has ended: to look at every run takes long."""
        if id(entry) not in known:
            begun = {cell.hash for job in (*running, *failed) if job.entry is entry for cell in job.cells}
            known[id(entry)] = entry.grouped([cell for cell in entry.left if cell.hash not in begun])
        return known[id(entry)]

    def in_time(entry: Entry) -> bool:
        return entry.gib <= gib and time.monotonic() + entry.seconds <= end

    def has_room(entry: Entry) -> bool:
        return len(running) < processes and entry.gib <= gib - sum(job.entry.gib for job in running)

    def waiting() -> list[Entry]:
        return [entry for entry in entries if not entry.is_there and todo(entry)]

    if absent := dict.fromkeys(str(entry.model) for entry in entries if not entry.is_there):
        print(f"models that are not there yet: {', '.join(absent)}", flush=True)
    try:
        while True:
            for entry in entries:
                while has_room(entry) and in_time(entry) and todo(entry) and entry.is_there:
                    running.append(begin(entry, todo(entry).pop(0)))
            if not running and not any(map(in_time, waiting())):
                break
            time.sleep(poll)
            for job in [job for job in running if job.process.exitcode is not None]:
                running.remove(job)
                known.pop(id(job.entry), None)
                took = f"{time.monotonic() - job.begun:.0f} s"
                if job.finished:
                    print(f"{job.title}: {took}", flush=True)
                    continue
                failed.append(job)
                log = job.log.read_text(encoding="utf-8", errors="replace")
                failures.append(f"{job.title}: failed after {took}: {(log.strip().splitlines() or ['no output'])[-1][:300]}")
                print(failures[-1], flush=True)
            if time.monotonic() > end:
                for job in running:
                    print(f"{job.title}: given up, out of time", flush=True)
                break
    finally:
        for process in active_children():  # with one that Ctrl-C kept out of the list
            kill(process)
    return failures + [f"{entry.title}: not run, its model is not there" for entry in waiting()]


def planned(entry: Entry, *, gib: float, processes: int) -> tuple[float, str]:
    """Return minutes, and in a line how many trials and runs an entry has left, of which losses; no trial has to be finished."""
    runs = [cell for cell in entry.experiment.cells() if entry.has(cell) and not entry.is_kept(cell)]
    trials, steps = entry.trials_left, ", ".join(sorted({f"{run.steps:,}" for run in runs}))
    jobs = len(entry.grouped(trials)) + len(entry.grouped(runs))
    minutes = jobs * entry.seconds / 60 / max(1, min(processes, int(gib / entry.gib)))
    labels = ", ".join(dict.fromkeys(run.name for run in runs))
    tried = f"{len(trials)} trials, " if trials else ""
    left = f"{tried}{len(runs)} runs of {steps} steps: {labels}" if runs else "nothing left"
    return minutes, f"{entry.title}: {left}"


def finish(entries: list[Entry]) -> None:
    """List the runs of complete seeds of each comparison in its ``experiment.json``, for keep.py and the report."""
    for name in dict.fromkeys(entry.name for entry in entries):
        mine = [entry for entry in entries if entry.name == name]
        ready = [(entry, cell) for entry in mine if not entry.trials_left for cell in entry.cells]
        lacking = {(cell.model, cell.seed) for entry, cell in ready if not entry.is_done(cell)}
        done = [cell for entry, cell in ready if is_finished(entry.folder, cell) and (cell.model, cell.seed) not in lacking]
        if done:
            write_plan(mine[0].experiment, done, mine[0].folder)
        finished, trials = sum(entry.is_done(cell) for entry, cell in ready), sum(len(entry.trials_left) for entry in mine)
        print(f"{name}: {finished} of {len(ready)} runs finished, {len(done)} of them here; {trials} trials left", flush=True)


def pack(entries: list[Entry], file: Path) -> None:
    """Write what keep.py reads of the finished runs into an archive."""
    folders = dict.fromkeys(entry.folder for entry in entries)
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.name in KEPT and _is_finished(path)]
    with tarfile.open(file, "w:xz", preset=1) as archive, get_context("fork").Pool() as pool:
        for path, content in zip(paths, pool.imap(_read_by_keep, paths, chunksize=8), strict=True):
            about = archive.gettarinfo(path)
            about.size = len(content)
            archive.addfile(about, BytesIO(content))


def _is_finished(path: Path) -> bool:
    return path.parent.parent.name != "cells" or (path.parent / "result.json").is_file()


def _read_by_keep(path: Path) -> bytes:
    """Return a file; of predictions without prompts, texts and distributions, which are most of it."""
    if path.name != "predictions.jsonl":
        return path.read_bytes()
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return "".join(json.dumps({name: record[name] for name in READ if name in record}) + "\n" for record in records).encode()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedule", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--gib", type=float, default=130.0, help="GPU memory that runs may share")
    parser.add_argument("--processes", type=int, default=14, help="the most runs at a time")
    parser.add_argument("--pack", type=Path, help="archive of the finished runs, written at the end")
    named = "entries of this name, such as pools_*, or of one model of them, such as sizes_*:SmolLM2*; may be repeated"
    parser.add_argument("--only", action="append", metavar="NAME[:MODEL]", help=named)
    parser.add_argument("--plan", action="store_true", help="list what is left, and run nothing")
    given = parser.parse_args(arguments)
    entries = read_schedule(given.schedule)
    if given.only:
        entries = [entry for entry in entries if any(map(entry.fits, given.only))]
        if not entries:
            parser.error(f"--only {' '.join(given.only)} fits no entry of {given.schedule}.")
    if given.plan:
        lines = [planned(entry, gib=given.gib, processes=given.processes) for entry in entries]
        print(
            "\n".join(
                f"{minutes:5.1f} min, {end:5.1f} in all: {line}"
                for (minutes, line), end in zip(lines, accumulate(minutes for minutes, _ in lines), strict=True)
            )
        )
        return
    if sys.platform != "linux":
        sys.exit(f"schedule.py forks its runs, which takes Linux, and this is {sys.platform}: expected numerate compare instead.")
    import_all()
    failures = work(entries, seconds=60 * given.minutes, gib=given.gib, processes=given.processes)
    listing = forked(finish, entries)  # it asks for the GPU's name, which initialises CUDA
    listing.join()
    if listing.exitcode:
        failures.append("The finished runs could not be listed: see above.")
    if given.pack is not None:
        pack(entries, given.pack)
    if failures:
        sys.exit("\n".join([f"{len(failures)} failed or not run:", *failures]))


if __name__ == "__main__":
    main()
