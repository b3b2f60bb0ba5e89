"""Break the library at random, one line at a time, and see whether the tests of the module notice.

    python scripts/mutate.py --count 200 --seed 0 --json mutants.json [--jobs 2] [--only 'losses/*']

Each mutant is a copy of ``src`` with one change: an operator, a constant, a condition, a branch, a statement. The tests of its
module (``TESTS``) run on the copy; a failure or a time-out kills the mutant. The results are written as they come, and a second
call goes on where the first stopped; ``--again`` runs the survivors once more. In the end the tests that killed run on the
unchanged code, and must pass. Modules that need a GPU (rows_triton, replay, device) are left out.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import fnmatch
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "numerate"
HEAVY = "torch torch._dynamo scipy.stats pytest hypothesis transformers peft accelerate lightning trl"  # imported once
LIMIT = 300  # seconds for a round of tests: several times what the slowest takes
QUICK = "not compile and not process and not interpreter"  # deselects the tests that compile, launch processes or emulate a GPU

Rounds = list[list[str]]  # of pytest's arguments: the quickest and most telling first


def _tests(*files: str, k: str = "") -> list[str]:
    paths = [next((ROOT / "tests").rglob(f"test_{file}.py")).relative_to(ROOT) for file in files]
    return [*map(str, paths), "-k", f"({k}) and {QUICK}" if k else QUICK]


def _loss(names: str) -> Rounds:
    """Tests of the losses with these names, and the laws that speak of no loss by name."""
    return [_tests("losses", "extremes", "released", "arguments", k=f"{names} or four_names or no_class or bad_sett or certain")]


NO_LOSS_BY_NAME = [
    _tests("losses", k="(smmd or ntil or ntl_was) and (marks or bad or count or reduction)"),
    _tests("losses", "extremes", "arguments", k="not settings or written_out"),
]
FUSED = [_tests("from_hidden"), _tests("arguments", "objective")]
STATISTICS = [_tests("stats", k="by_hand or scipy or law or broken"), _tests("stats")]
READING = _tests("spans", k="not random")
TRAINERS = "gradient or evaluat or detach or refus or step or shift or stand or model or lazy"
RUN = "promises or same_seed or resum or logged or again or goes_on or fit or order or answer or validation or bounds or hash"
GRID = "leaves_report or finished or failing or plans or tun or score or table or ray_replaces or stored"
# The first pattern that a module fits gives its tests.
LIBRARY: dict[str, Rounds] = {
    "losses/smmd.py": [_tests("smmd"), *_loss("smmd")],
    "losses/number.py": [_tests("number"), *_loss("number")],
    "losses/ntil.py": [*_loss("ntil"), _tests("spans", k="ntil")],
    "losses/soft_target.py": _loss("soft_label or gaussian or dist2"),
    **{
        f"losses/{name}.py": _loss(name)
        for name in ("ntl", "emd", "crps", "dist2", "gaussian_ce", "squared_emd", "soft_label", "raft", "digit_entropy")
    },
    "losses/*.py": NO_LOSS_BY_NAME,
    "objective/objective.py": [_tests("objective"), _tests("from_hidden", "arguments")],
    "objective/from_logits.py": [
        _tests("soft"),
        _tests("objective", "deterministic_ops", "overrun"),
        _tests("arguments", "hostile_values"),
    ],
    "objective/[fho]*.py": FUSED,
    "objective/rows_torch.py": FUSED,
    "spans.py": [READING, _tests("spans", "numbers", k="random or numbers")],
    "lexer.py": [READING, _tests("spans", "numbers", "vocab", k="random or numbers or From")],
    "marks.py": [READING, _tests("vocab", "numbers", "number")],
    "distribution/*.py": [_tests("distribution", k="not each_rule and not time_grows"), _tests("distribution")],
    "calibration/*.py": [_tests("calibration", k="not mean_coverage and not few_rows"), _tests("calibration")],
    "decode/search.py": [_tests("search"), _tests("decided", "model")],
    "decode/grammar.py": [_tests("grammar", k="not any_settings"), _tests("grammar", "processor")],
    "decode/tokens.py": [_tests("tokens"), _tests("decided"), _tests("model", "served", "processor")],
    "decode/rows.py": [_tests("rows", k="Llama or T5 or BartForC"), _tests("rows"), _tests("model", "decided")],
    "decode/decided.py": [_tests("decided")],
    "decode/model.py": [_tests("model")],
    "decode/processor.py": [_tests("processor")],
    "decode/serve*.py": [_tests("served")],
    "targets/drawn.py": [_tests("drawn")],
    "targets/collator.py": [_tests("soft_collator")],
    "targets/token_trie.py": [_tests("token_trie"), _tests("soft_numbers", k="not real_tok")],
    "targets/*.py": [_tests("soft_numbers", k="not real_tok"), _tests("answer_distribution", "circular", "width")],
    "vocab.py": [_tests("vocab"), _tests("tokenizers", "spans", "arguments", k="not real_tok")],
    "integrations/loop.py": [_tests("loop")],
    "integrations/lightning.py": [_tests("lightning")],
    "integrations/trl.py": [_tests("trl")],
    "integrations/alignment.py": [_tests("attach_models"), _tests("transformers", "trl", k=TRAINERS)],
    "integrations/lazy_logits.py": [
        _tests("transformers", "attach_trainers", k="lazy or in_place or views"),
        _tests("transformers", "attach_trainers"),
    ],
    "integrations/*.py": [_tests("transformers"), _tests("attach_trainers", "attach_models")],
}
ELSEWHERE: dict[str, Rounds] = {
    "lab/stats/*.py": STATISTICS,
    "lab/models/config.py": [_tests("run", "cli_contract", k="config or bounds or hash or check or set or fit")],
    "lab/files/records.py": [_tests("run", k="files or resum or promises"), _tests("compare", k="disk or table")],
    "lab/training/run.py": [_tests("run", k=RUN), _tests("cli_contract", k="three or fit or eval")],
    **{f"lab/comparison/{name}.py": [_tests("compare", k=GRID)] for name in ("compare", "executors", "cells", "plan")},
}


def plan(module: str) -> tuple[str, Rounds]:
    """A module's group and tests; no tests: it is not mutated."""
    both = [("library", *each) for each in LIBRARY.items()] + [("elsewhere", *each) for each in ELSEWHERE.items()]
    return next(((group, rounds) for group, pattern, rounds in both if fnmatch.fnmatch(module, pattern)), ("", []))


SWAPS: dict[type[ast.AST], type[ast.AST]] = dict(
    pair
    for one, other in [
        *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
        *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr)),
    ]
    for pair in [(one, other), (other, one)]
)
SWAPS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitXor: ast.BitOr}
NAMES = {"min": "max", "minimum": "maximum", "amin": "amax", "clamp_min": "clamp_max", "argmin": "argmax"}
NAMES |= {"any": "all", "floor": "ceil", "zeros": "ones", "zeros_like": "ones_like", "new_zeros": "new_ones", "sum": "mean"}
NAMES |= {new: old for old, new in NAMES.items()}
NUMBERS = {"Tensor", "float", "int", "Array"}  # what a function returns where its sign can be changed


@dataclass(frozen=True)
class Mutant:
    """A change of one node's text, found again by its position."""

    module: str
    line: int
    start: int  # in bytes of the file
    end: int
    old: str
    new: str

    def apply(self, source: bytes) -> bytes:
        """Source with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def key(self) -> str:
        """Name of the mutant in the results."""
        return f"{self.module}:{self.line}: {' '.join(self.old.split())} -> {self.new}"


def _variants(node: ast.AST, returns: str) -> Iterator[ast.AST]:
    """What may stand in a node's place."""

    def changed(**fields: object) -> ast.AST:
        new = copy.deepcopy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield changed(ops=[*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        texts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
        if not any(isinstance(each, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple) for each in texts):
            yield changed(op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield changed(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield from (changed(value=node.value + by) for by in (1, -1))
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield changed(attr=NAMES[node.attr])
    elif isinstance(node, ast.Name) and node.id in ("min", "max", "any", "all"):
        yield changed(id=NAMES[node.id])
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where" and len(node.args) == 3
    ):
        yield changed(args=[node.args[0], node.args[2], node.args[1]])
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return) and node.value is not None and returns in NUMBERS:
        yield ast.Return(ast.UnaryOp(ast.USub(), node.value))
    elif _can_be_left_out(node):
        yield ast.Pass()
    elif isinstance(node, ast.Break | ast.Continue):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _can_be_left_out(node: ast.AST) -> bool:
    """``x += ..``, a call, an entry or an attribute set, or ``x = f(x)``: nothing but the tests would miss it."""
    if not isinstance(node, ast.Assign):
        return isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    name, read = node.targets[0], {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return not isinstance(name, ast.Name) or (name.id in read and isinstance(node.value, ast.Call))


def _nodes(node: ast.AST, returns: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All nodes that count, each with what its function returns: no messages, assertions, types, imports or overloads."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.AnnAssign):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _nodes(node.value, returns)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "cast", "TypeVar"):
        return
    if isinstance(node, ast.FunctionDef):
        returns = ast.unparse(node.returns) if node.returns else ""
    yield node, returns
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases") or (field == "test" and _types_only(value)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, returns)


def _types_only(test: object) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def mutants_of(file: Path) -> list[Mutant]:
    """Every change of a module that this script can make."""
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for node, returns in _nodes(ast.parse(source)):
        for new in _variants(node, returns):
            place = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else node
            start, end = starts[place.lineno - 1] + place.col_offset, starts[place.end_lineno - 1] + place.end_col_offset
            text = ast.unparse(ast.fix_missing_locations(new))
            text = text if isinstance(new, ast.stmt | ast.Attribute | ast.Name | ast.Constant) else f"({text})"
            mutant = Mutant(str(file.relative_to(PACKAGE)), place.lineno, start, end, source[start:end].decode(), text)
            found[mutant.key] = mutant
    return list(found.values())


def _child(folder: Path, arguments: list[str], log: Path) -> None:
    """Run pytest on a copy in this forked process, which has imported everything but the package. Does not return."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1), os.dup2(out, 2)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder.parent / "tmp")}
    (folder.parent / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    code = 1
    try:
        import pytest

        code = int(
            pytest.main(
                [
                    "-xqpno:cacheprovider",
                    "-n0",
                    "--tb=line",
                    "--keep-duplicates",
                    "-W",
                    "ignore:Module already imported",
                    *arguments,
                ]
            )
        )
        used = sys.modules["numerate"].__file__ or ""
        code = code if used.startswith(str(folder)) else 99
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _test(why: str) -> str:
    return why.partition(" ")[2]


class Runner:
    """Run the rounds of tests of one mutant after another, ``jobs`` at a time, each in a copy of its own."""

    def __init__(self, jobs: int, scratch: Path) -> None:
        self.free = [scratch / f"copy{i}" / "src" for i in range(jobs)]
        self.killers: list[str] = []  # tests that killed another mutant: tried first
        for folder in self.free:
            shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
            compileall.compile_dir(folder, quiet=1)
        self.running: dict[int, tuple[Mutant | None, int, Path, float]] = {}

    def start(self, mutant: Mutant | None, folder: Path, arguments: list[str], number: int = 0) -> None:
        """Fork the tests of one round."""
        if mutant is not None:
            file = folder / "numerate" / mutant.module
            file.write_bytes(mutant.apply((PACKAGE / mutant.module).read_bytes()))
            for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                compiled.unlink()
        files = [each for each in arguments if each.startswith("tests/")]
        first = [test for test in self.killers[-20:] if test.split("::")[0] in files]
        pid = os.fork()
        if pid == 0:
            _child(folder, first + arguments, folder.parent / "log.txt")
        self.running[pid] = mutant, number, folder, time.monotonic()

    def finished(self) -> tuple[Mutant | None, int, Path, float, str]:
        """Wait for the next round that ends: its mutant, number, copy, seconds, and why it died ("" if it did not)."""
        while True:
            for pid, (mutant, number, folder, begin) in self.running.items():
                seconds = time.monotonic() - begin
                done, status = os.waitpid(pid, os.WNOHANG)
                late = not done and seconds > LIMIT
                if done or late:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                    if late:
                        os.waitpid(pid, 0)
                    del self.running[pid]
                    if mutant is not None:
                        shutil.copy(PACKAGE / mutant.module, folder / "numerate" / mutant.module)
                    shutil.rmtree(folder.parent / "tmp", ignore_errors=True)
                    return mutant, number, folder, seconds, "time-out" if late else self._verdict(status, folder)
            time.sleep(0.05)

    def stop(self) -> None:
        """End all that runs."""
        for pid in self.running:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _verdict(self, status: int, folder: Path) -> str:
        code = os.waitstatus_to_exitcode(status)
        log = (folder.parent / "log.txt").read_text(errors="replace")
        if code == 4 and "while loading conftest" in log:
            return "the fixtures cannot be built"
        if code in (4, 5, 99):
            raise SystemExit(f"No test ran on the copy (status {code}):\n{log[-2000:]}")
        failed = [line for line in log.splitlines() if line.startswith(("FAILED", "ERROR"))]
        # A line is "FAILED test[parameters] - message", and parameters may hold " - " too.
        named = [re.split(r"(?<=\]) - | - (?![^\[]*\])", line)[0] for line in failed]
        return "" if code == 0 else (named[0] if named else f"exit status {code}: {log[-1500:]}")


def run(mutants: list[Mutant], jobs: int, file: Path, results: dict[str, dict[str, Any]], console: Console) -> None:
    """Run all mutants, and write the result of each at once."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as scratch,
        Progress(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as bar,
        ExitStack() as stack,
    ):
        runner, todo = Runner(jobs, Path(scratch)), mutants[::-1]
        stack.callback(runner.stop)
        task = bar.add_task("mutants", total=len(todo))
        while todo or runner.running:
            while todo and runner.free:
                mutant, folder = todo.pop(), runner.free.pop()
                runner.start(mutant, folder, plan(mutant.module)[1][0])
            done, number, folder, seconds, why = runner.finished()
            assert done is not None
            group, rounds = plan(done.module)
            if not why and number + 1 < len(rounds):
                runner.start(done, folder, rounds[number + 1], number + 1)
                continue
            runner.free.append(folder)
            runner.killers = [test for test in runner.killers if test != _test(why)] + [_test(why)] * ("::" in why)
            results[done.key] = {"group": group, **asdict(done), "killed": bool(why), "why": why, "seconds": round(seconds, 1)}
            file.write_text(json.dumps(results, indent=1), encoding="utf-8")
            bar.console.print(f"{'killed  ' if why else 'SURVIVED'} {done.key}", markup=False, highlight=False)
            bar.update(task, advance=1, refresh=True)


def check(results: dict[str, dict[str, Any]]) -> None:
    """Run the tests that killed a mutant on the unchanged code."""
    killers = {_test(found["why"]) for found in results.values() if "::" in found["why"]}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        runner = Runner(1, Path(scratch))
        runner.start(None, runner.free[0], sorted(killers))
        *_, why = runner.finished()
    if why:
        raise SystemExit(f"A test fails on the unchanged code too, so that its kills do not count: {why}")


def main() -> None:
    """Draw mutants, run those without a result, print the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="*", help="pattern of modules, as in losses/*.py")
    parser.add_argument("--json", type=Path, default=Path("mutants.json"))
    parser.add_argument("--again", action="store_true", help="run the survivors once more")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    for name in HEAVY.split():
        with suppress(ImportError):
            importlib.import_module(name)
    modules = [
        name
        for name in sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))
        if plan(name)[1] and fnmatch.fnmatch(name, options.only)
    ]
    drawn = [mutant for module in modules for mutant in mutants_of(PACKAGE / module)]
    console = Console(width=160)
    console.print(f"{len(drawn)} possible mutants of {len(modules)} modules")
    drawn = random.Random(options.seed).sample(drawn, min(options.count, len(drawn)))
    results = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    todo = [m for m in drawn if m.key not in results or (options.again and not results[m.key]["killed"])]
    run(todo, options.jobs, options.json, results, console)
    check(results)
    counts = Counter((found["group"], found["killed"], found["why"] == "time-out") for found in results.values())
    for group in sorted({group for group, *_ in counts}):
        late, killed, alive = (counts[group, *end] for end in ((True, True), (True, False), (False, False)))
        score = (killed + late) / (killed + late + alive)
        console.print(f"{group:10} {killed} killed, {late} timed out, {alive} survived: {score:.1%}")


if __name__ == "__main__":
    main()
