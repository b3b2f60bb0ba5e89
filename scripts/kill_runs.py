"""Kill train, compare and predict with SIGKILL at random moments, and check that the same command goes on to the same result.

    python scripts/kill_runs.py                              # 100 kills, seed 0
    python scripts/kill_runs.py --kills 20 --seed 7 --only train predict
    python scripts/kill_runs.py --moments operations         # only between operations on files, where most is at stake

Each command is first run undisturbed. Then it is started again and again in a new folder, and killed a few times before it may
finish. Half of the kills come after a random time; the other half just before a random operation on a file of the run (open to
write, rename, remove, make a folder), which a random time hits rarely. Of commands with several processes, either the first one
is killed, or all of them. What is checked:

    after each kill     whatever is marked as finished is complete, and what was finished before still is
    at the end          the same files as undisturbed, none of them temporary; the same content, except for times

Processes are forked from one that has imported everything, so that a start takes no time; ``--processes 2`` of compare starts
its own. The exit status is 1 if anything differs; the folder is then kept.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMPORTED = (
    *(
        "numerate.cli",
        "numerate.lab.comparison.compare",
        "numerate.lab.report",
        "numerate.lab.prediction.predict",
        "numerate.lab.training.trainer",
    ),
    *("transformers.models.llama.modeling_llama", "transformers.trainer", "matplotlib.pyplot", "scipy.stats"),
)
MOMENTS = ("times", "operations")
RESULT = "result.json"
MOST_KILLS = 5  # before a command may finish
# Times, what follows from them, and the size of a stack, which is smaller if some of its runs are finished.
VARYING = {
    *("seconds", "train_seconds", "eval_seconds", "ms_per_step", "tokens_per_second", "created", "environment", "command"),
    *("costs", "figures", "stacked", "time_ratio"),
}
HANG_SECONDS = 600.0
NEVER = 10**9

QUICK = ("steps=6", "batch_size=8", "train_examples=48", "eval_examples=6", "log_every=1")
TABLE = ("--data", "table.csv", "--target", "price", "--without", "name")


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Attributes:
        name: in the table.
        share: of all kills.
        arguments: of ``numerate``, but for ``--out``.
        out: what it writes, in a folder of its own.
        several: whether it starts processes.
        tolerance: relative difference of numbers. Runs that continue in a smaller stack are the same up to rounding, and so
            are decisions: some CPUs round sums differently depending on where the memory of a tensor begins.
    """

    name: str
    share: float
    arguments: Sequence[str]
    out: str = "out"
    several: bool = False
    tolerance: float = 0.0


def sets(*settings: str) -> list[str]:
    """Return options of the command line."""
    return [part for setting in settings for part in ("--set", setting)]


GRID = ["compare", "--task", "arithmetic", "--loss", "ce", "--loss", "smmd", "--seeds", "2", *sets(*QUICK)]
BEST = sets("save_every=2", "validate_every=2", "keep_best=true")

SCENARIOS = [
    Scenario("train", 0.34, ["train", *TABLE, "--loss", "soft", "--resume", *sets(*QUICK), *BEST], tolerance=1e-6),
    Scenario("compare", 0.2, [*GRID, "--processes", "1", *BEST, *sets("keep_model=true")]),
    Scenario("compare, 2 processes", 0.06, [*GRID, "--processes", "2"], several=True),
    Scenario("compare, stacked", 0.2, [*GRID, "--processes", "1", "--executor", "stacked", *BEST], tolerance=1e-3),
    Scenario("predict", 0.2, ["predict", "model", "--data", "table.csv", "--batch-size", "4"], "out/predictions.csv"),
]


# Processes


def start(arguments: Sequence[str], folder: Path, log: Path, operation: int | None = None) -> int:
    """Fork a process that runs ``numerate`` in a folder, and kills itself before the given operation on a file of ``out``."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        with log.open("w", encoding="utf-8") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        sys.argv = ["numerate", *arguments]
        left = kill_before(operation or NEVER, folder / "out")
        from numerate.cli import app

        app(prog_name="numerate")
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 1
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            log.with_suffix(".count").write_text(str(NEVER - left[0]), encoding="utf-8")
        os._exit(code)


def kill_before(operation: int, folder: Path) -> list[int]:
    """Kill this process before the n-th operation that changes a file in a folder; return how many there are left."""
    left, owner = [operation], os.getpid()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if not (flags if isinstance(flags, int) else 0) & (os.O_WRONLY | os.O_RDWR) and not set(str(mode)) & set("wax+"):
                return
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            path = arguments[0]
        else:
            return
        if os.getpid() != owner or not isinstance(path, str | os.PathLike):
            return
        if str(folder) in os.path.abspath(path):  # noqa: PTH100 -- an object of pathlib would be a new event
            left[0] -= 1
            if left[0] <= 0:
                os.kill(owner, signal.SIGKILL)

    sys.addaudithook(watch)
    return left


def wait_for(pid: int, seconds: float) -> int | None:
    """Return the exit code of a process, negative for a signal; None if it still runs after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def wait_for_group(pid: int) -> None:
    """Wait until no process of a group is left; kill those that hang."""
    end = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(pid, 0)
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        raise TimeoutError(f"processes of {pid} are left")


# Results


def content(folder: Path) -> dict[str, Any]:
    """Return what each file of a folder holds, without times: JSON as values, tables and weights as bytes, pages as None."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _content(path: Path) -> Any:
    if path.name == "environment.json" or path.suffix in (".html", ".lock", ".png", ".md") or path.name == ".lock":
        return None
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.name.startswith("report") and path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: _number(cell) for name, cell in row.items()} for row in without_times([*csv.DictReader(file)])]
    return path.read_bytes()


def _number(cell: str | None) -> Any:
    try:
        return float(cell or "")
    except ValueError:
        return cell


def without_times(value: Any) -> Any:
    """Return a value without what differs from run to run."""
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in VARYING}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def differences(expected: Any, found: Any, tolerance: float, place: str = "") -> Iterator[str]:
    """Yield where two contents differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            where = f"{place}/{name}"
            if name not in found or name not in expected:
                yield f"{where} is {'missing' if name in expected else 'left over'}"
            else:
                yield from differences(expected[name], found[name], tolerance, where)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, tolerance, f"{place}[{index}]")
    elif tolerance and isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance / 10):
            yield f"{place}: {expected!r} became {found!r}"
    elif expected != found:
        yield f"{place}: {expected!r:.80} became {found!r:.80}"


def finished(scenario: Scenario, folder: Path, whole: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Return what is marked as finished, and what is wrong with it: anything but what the undisturbed command made."""
    out = folder / scenario.out
    marks = [out] if scenario.name == "predict" else [*folder.glob(f"out/**/{RESULT}")]
    found, wrong = set[str](), list[str]()
    for mark in (mark for mark in marks if mark.exists()):
        own = str(mark.parent.relative_to(folder))
        names = [out.name] if scenario.name == "predict" else [RESULT, "predictions.jsonl", "curve.jsonl", "config.json"]
        found.add(own)
        for name in names:
            path = mark.parent / name
            if not path.is_file():
                wrong.append(f"{own} has {mark.name} and no {name}")
            else:
                wrong += differences(whole[f"{own}/{name}"], _content(path), scenario.tolerance, f"{own}/{name}")
    return found, wrong


# Kills


@dataclass
class Tally:
    """What happened to a scenario."""

    kills: Counter[str] = field(default_factory=Counter)
    results: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def killed(self) -> int:
        """Kills of all kinds."""
        return sum(self.kills.values())


def harass(
    scenario: Scenario, folder: Path, kills: int, rng: random.Random, moments: Sequence[str], say: Callable[[str], object]
) -> Tally:
    """Kill a command so many times, in several series that each end with a result."""
    tally, begin = Tally(), time.monotonic()
    arguments = [*scenario.arguments, "--out", scenario.out]
    log = folder / "log.txt"

    def run_through(where: Path) -> None:
        code = wait_for(start(arguments, where, log), HANG_SECONDS)
        if code:
            text = " ".join(log.read_text(encoding="utf-8").split())[-300:]
            raise RuntimeError(f"{scenario.name} {'hangs' if code is None else f'ends with {code}'}: {text}")

    whole = folder / "whole"
    prepare(whole, folder)
    first = time.monotonic()
    run_through(whole)
    expected, seconds = content(whole), time.monotonic() - first
    operations = int(log.with_suffix(".count").read_text(encoding="utf-8"))
    say(f"{scenario.name}: undisturbed {seconds:.1f} s, {operations} operations on files")
    series = 0
    while tally.killed < kills:
        series += 1
        where = folder / f"series{series}"
        prepare(where, folder)
        before: set[str] = set()
        try:
            for _ in range(min(rng.randint(1, MOST_KILLS), kills - tally.killed)):
                moment = rng.choice(moments)
                at = rng.randint(1, operations) if moment == "operations" else None
                pid, began = start(arguments, where, log, at), time.monotonic()
                code = wait_for(pid, HANG_SECONDS if at else rng.random() * seconds)
                if code is None:
                    everyone = scenario.several and rng.random() < 0.5
                    (os.killpg if everyone else os.kill)(pid, signal.SIGKILL)
                    code = wait_for(pid, HANG_SECONDS)
                if code != -signal.SIGKILL:
                    if code:
                        raise RuntimeError(f"ends with {code}: {' '.join(log.read_text(encoding='utf-8').split())[-300:]}")
                    seconds = min(seconds, time.monotonic() - began)  # it was faster
                    break
                tally.kills[moment] += 1
                now, wrong = finished(scenario, where, expected)
                lost = [] if scenario.name == "predict" else [f"{name} was finished, and is not" for name in before - now]
                if wrong or lost:
                    raise RuntimeError("; ".join([*wrong, *lost][:5]))
                before = now
            run_through(where)
            wait_for_group(pid)
            tally.results += 1
            if wrong := list(differences(expected, content(where), scenario.tolerance)):
                raise RuntimeError(f"{len(wrong)} differences: {'; '.join(wrong[:5])}")
            shutil.rmtree(where)
        except (RuntimeError, ValueError, TimeoutError) as error:
            tally.wrong.append(f"{where}: {error}")
            say(f"{scenario.name}: WRONG: {tally.wrong[-1]}")
        say(f"{scenario.name}: {tally.killed} of {kills} kills, {tally.results} results, {len(tally.wrong)} wrong")
    tally.seconds = time.monotonic() - begin
    return tally


def prepare(where: Path, folder: Path) -> None:
    """Make the folder in which a command runs, with the table and the model that it reads."""
    where.mkdir()
    shutil.copy(folder.parent / "table.csv", where)
    if (model := folder.parent / "model").is_dir():
        (where / "model").symlink_to(model)


def prepare_all(folder: Path, *, model: bool) -> None:
    """Write the table, and train the model that predicts."""
    rng = random.Random(0)
    rows = [f"{name},{rng.randint(20, 99)},{rng.randint(1, 5)},{rng.randint(100, 999)}" for name in range(80)]
    (folder / "table.csv").write_text("\n".join(["name,area,rooms,price", *rows]) + "\n", encoding="utf-8")
    arguments = ["train", *TABLE, "--out", "model", *sets(*QUICK)]
    if model and (code := wait_for(start(arguments, folder, folder / "log.txt"), HANG_SECONDS)):
        raise RuntimeError(f"training ends with {code}: {(folder / 'log.txt').read_text(encoding='utf-8')}")


def table(tallies: dict[str, Tally]) -> str:
    """Return a row per scenario, as Markdown."""
    lines = [
        "| command | kills after a time | kills before an operation | results compared | wrong | seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, tally in tallies.items():
        cells = [tally.kills["times"], tally.kills["operations"], tally.results, len(tally.wrong), round(tally.seconds)]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill all scenarios, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in SCENARIOS], help="names of commands")
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=MOMENTS, help="when to kill (default: both)")
    options = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for module in IMPORTED:
        importlib.import_module(module)
    chosen = [one for one in SCENARIOS if options.only is None or one.name in options.only]
    shares = [one.share / sum(one.share for one in chosen) for one in chosen]
    folder = Path(tempfile.mkdtemp(prefix="kill_runs_")).resolve()
    prepare_all(folder, model="predict" in [one.name for one in chosen])
    tallies: dict[str, Tally] = {}
    for index, (scenario, share) in enumerate(zip(chosen, shares, strict=True)):
        own = folder / str(index)
        own.mkdir()
        rng = random.Random(f"{options.seed} {scenario.name}")
        kills = max(1, round(options.kills * share))
        tallies[scenario.name] = harass(scenario, own, kills, rng, options.moments, lambda text: print(text, flush=True))
    print(table(tallies))
    wrong = any(tally.wrong for tally in tallies.values())
    if wrong:
        print(f"kept {folder}")
    else:
        shutil.rmtree(folder)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
