"""Fuzz every loss in every implementation with hostile logits, labels, soft targets, vocabularies and settings.

    python scripts/fuzz.py --cases 1000000 --seed 1 --processes 2      # a long run; the default tests run 10,000 cases
    python scripts/fuzz.py --case 1:4711                               # reproduce a failure

A case is a sequence of labels with its logits; eight cases form one call of a loss, forward and backward. The expected outcome
is defined in docs/reliability.md: a finite value with finite gradients, NaN if the logits contain NaN, or an error that names the
expectation. Many calls are repeated with a second implementation, or with a change that must not matter. Cases are deterministic
given seed and index. Needs only torch and numerate: ``PYTHONPATH=src`` is enough.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import numerate as nm
import numerate.objective  # so that all of its modules are there to be patched
from numerate.losses.logit_rows import reads_freely
from numerate.losses.soft_target import SoftTargetLoss

sys.path.insert(0, str(Path(__file__).parent))

from hostile_cases import IGNORED, TOGETHER, Call, draw

HANG_S = 120.0  # time limit of a call; none takes a tenth of it
FAR = 1e6  # a label this far below the most likely token may cost more than the dtype can represent
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}  # of two implementations
TIED = ("big", "equal", "denormal", "limit")  # logits with which several tokens are equally likely


class Fault(Exception):  # noqa: N818
    """A violation of the contract."""


class Hang(BaseException):
    """A case took longer than HANG_S."""


# The implementations


@lru_cache(maxsize=3000)
def _kept(name: str, settings: tuple[tuple[str, Any], ...], vocab: nm.NumericVocab) -> nm.NumericLoss:
    return nm.LOSSES[name](vocab, **dict(settings))


def loss_of(call: Call) -> nm.NumericLoss:
    """Return the loss of a call; cached, unless it is large."""
    if call.vocab.size > 100:
        return nm.LOSSES[call.name](call.vocab, **call.settings).to(call.logits.device)
    return _kept(call.name, tuple(sorted(call.settings.items())), call.vocab).to(call.logits.device)


def by_loss(call: Call, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the loss: one value, or one per case without reduction."""
    value: Tensor = loss(logits, call.labels, position_weights=call.weights, **call.options)
    return value.reshape(TOGETHER, -1).sum(-1) if call.each else value


def by_masked_rows(call: Call, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Compute the sum of each case with a mask instead of row indices, as on a GPU."""
    loss(logits.detach(), call.labels, position_weights=call.weights)  # checks the labels
    targets = loss.targets(call.labels, position_weights=call.weights, compact=False)
    costs = loss.per_row(*loss.select(logits, targets), targets).reshape(TOGETHER, -1).sum(-1)
    if call.each:
        return costs
    units = float(loss.num_units(targets)) if call.options["reduction"] == "mean" else 0.0
    return costs.sum() / (units or 1.0)


def by_objective(call: Call, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the objective."""
    value: Tensor = nm.NumericObjective(loss, **call.options)(logits, call.labels, **call.given).loss
    return value


def by_fused(call: Call, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the fused objective with the logits as hidden states and the identity as head."""
    head = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    rows = logits.shape[-1] * logits.dtype.itemsize * 5 / 2**20  # five rows at a time
    objective = nm.NumericObjective(loss, **call.options)
    return objective.fused(logits, head, call.labels, **call.given, max_logits_mib=rows).loss


def by_trace(call: Call, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the objective with the formulas that ``torch.compile`` traces, without compiling them."""
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        return by_objective(call, loss, logits)


UNREAD = "unread"  # the objective without reading labels, as on a GPU
PATHS: dict[str, Callable[[Call, nm.NumericLoss, Tensor], Tensor]] = {
    "loss": by_loss,
    "masked": by_masked_rows,
    "objective": by_objective,
    UNREAD: by_objective,
    "fused": by_fused,
    "traced": by_trace,
}
OTHERS = {"loss": "masked", "masked": "loss", "objective": "traced", UNREAD: "objective", "fused": "objective"}
OTHERS |= {"traced": "objective"}


# The contract


@dataclass(frozen=True)
class Promise:
    """The expected outcome of each case ``[8]``."""

    finite: Tensor  # value and gradient must be finite
    nan: Tensor  # the value must not be finite: a number would hide a NaN or +inf in the logits


def promised(call: Call, loss: nm.NumericLoss) -> Promise:
    """Return the outcome that the documentation guarantees for these logits."""
    flat, labels = call.logits.double().reshape(-1, call.logits.shape[-1]).cpu(), call.labels.reshape(-1).cpu()
    objective = call.path not in ("loss", "masked")
    numeric, columns = torch.isin(labels, loss.vocab.token_ids), loss.columns.cpu()
    read = labels != IGNORED if objective else torch.isin(labels, columns)  # [R]
    seen = flat if objective or loss.uses_rest else flat[:, columns]
    soft = isinstance(loss, SoftTargetLoss) or call.soft is not None or bool(call.options.get("label_smoothing"))
    at_label = seen.amin(-1) if soft else flat.gather(1, labels[:, None].clamp_min(0))[:, 0]  # all tokens have weight, or one
    near = seen.amax(-1) - at_label < FAR  # not so for NaN and inf
    if not loss.shift_invariant:
        near = near & (seen.abs().amax(-1) < FAR)  # the cost is one of the logits themselves
    bad = (seen.isnan() | (seen == math.inf)).any(-1)
    hidden = bad & read if objective else ~(flat[:, loss.vocab.token_ids] < math.inf).all(-1) & numeric
    if call.path == "fused":  # 0 · -inf is NaN in the product with the head
        near = near & (seen > -math.inf).all(-1)
    if not objective and (loss.level == "number" or (call.weights is not None) or loss.vocab.size == 1):
        hidden = torch.zeros_like(hidden)  # a weight of 0, a digit far below the leading one, or a single token change nothing
    by_case = (TOGETHER, -1)
    return Promise((near & ~bad | ~read).reshape(by_case).all(-1), hidden.reshape(by_case).any(-1))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in the body after so many seconds."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def without_reading() -> Iterator[None]:
    """Read no tensors, forward or backward, as on a GPU, where each would wait for the device."""
    with ExitStack() as patched:
        for module in [module for module in sys.modules.values() if vars(module).get("reads_freely") is reads_freely]:
            patched.enter_context(mock.patch.object(module, "reads_freely", return_value=False))
        yield


def value_and_grad(call: Call, loss: nm.NumericLoss, path: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value, or the values ``[8]``, and the gradient by one implementation, cases first."""
    leaf = logits.detach().clone().requires_grad_()
    with without_reading() if path == UNREAD else nullcontext():
        value = PATHS[path](call, loss, leaf)
        if not value.requires_grad:
            raise Fault("the value is not connected to the logits")
        (grad,) = torch.autograd.grad(value.sum(), leaf)
    if value.device != leaf.device or grad.device != leaf.device:
        raise Fault(f"value on {value.device}, gradient on {grad.device}")
    wide = torch.float64 if leaf.dtype == torch.float64 else torch.float32
    if value.dtype != wide or grad.dtype != leaf.dtype or grad.shape != leaf.shape:
        raise Fault(f"value of {value.dtype}, gradient of {grad.dtype} {tuple(grad.shape)}")
    return value.detach(), grad.reshape(TOGETHER, -1)


def check(call: Call) -> Counter[str]:
    """Run a call and count the outcomes of its cases; raise Fault for a violation of the contract."""
    try:
        loss = loss_of(call)
        value, grad = value_and_grad(call, loss, call.path, call.logits)
    except (ValueError, TypeError) as error:
        if not (call.may_refuse or call.must_refuse):
            raise Fault(f"refused: {error}") from error
        if "expected" not in str(error):
            raise Fault(f"unclear {type(error).__name__}: {error}") from error
        return Counter(refused=TOGETHER)
    if call.must_refuse:
        raise Fault(f"not refused: {value}")
    promise = promised(call, loss)
    finite, hidden = promise.finite, promise.nan
    if not call.each:
        finite, hidden = finite.all(), hidden.any()
    if bool((hidden & value.isfinite().cpu()).any()):
        raise Fault(f"NaN or inf in the logits gives {value.tolist()}")
    check_finite(call, loss, value, grad, promise.finite, finite)
    if bool(promise.finite.any()):
        check_law(call, loss, value, grad, promise.finite, finite)
    good = int((grad.isfinite().all(-1).cpu() & (value.isfinite().cpu() if call.each else True)).sum())
    return Counter(finite=good, nan=TOGETHER - good)


def check_finite(call: Call, loss: nm.NumericLoss, value: Tensor, grad: Tensor, cases: Tensor, values: Tensor) -> None:
    """Raise unless the gradients of ``cases [8]`` and the values are finite, as far as their dtype can hold them.

    A NaN in one case must not reach the gradient of another, unless the objective scales all by their sum.
    """
    if bool((values & ~value.isfinite().cpu()).any()):
        raise Fault(f"value {value.tolist()}")
    if call.options.get("scale") == "match_ce":
        cases = cases & cases.all()
    wrong = cases & ~grad.isfinite().all(-1).cpu()
    if not bool(wrong.any()):
        return
    if call.dtype == torch.float16:
        wide = value_and_grad(call, loss, call.path, call.logits.float())[1][wrong]
        sums = call.labels.numel() if call.path == "fused" else 1  # it is multiplied by the rows of a batch until the end
        if bool((wide.isfinite().all(-1) & (wide.abs().amax(-1) * sums > torch.finfo(torch.float16).max / 2)).all()):
            return
    raise Fault(f"gradients are NaN or inf in the cases {wrong.nonzero()[:, 0].tolist()}, value {value.tolist()}")


def check_law(call: Call, loss: nm.NumericLoss, value: Tensor, grad: Tensor, cases: Tensor, values: Tensor) -> None:
    """Raise if the law of this call, one that all losses obey, is violated."""
    values_read = loss.vocab.values
    # A number-level loss is a relative error, in which float32 cannot distinguish 1,700,000,001 and 1,700,000,002.
    alike = loss.level == "number" and call.dtype != torch.float64 and bool(values_read.std() < 1e-6 * values_read.abs().max())
    nothing = float(loss.worst) == 0  # the smoothness of two values that are not alike, or two equal rows of a random gram
    if call.each and values_read.unique().shape[0] > 1 and call.weights is None and not alike and not nothing:
        numeric = torch.isin(call.labels.cpu(), loss.vocab.token_ids).reshape(TOGETHER, -1).any(-1)
        ordinary = torch.tensor([logits == "ordinary" for _, logits in call.cases])
        if bool((numeric & ordinary & (value == 0).cpu()).any()):
            raise Fault("a cost of exactly 0")
    if getattr(loss, "noise", 0) or call.options.get("scale") == "match_ce":
        return  # drawn anew in each call; divided by a cost that may be rounding error alone
    logits, path = call.logits, call.path
    if path == "fused" and any(kind == "denormal" for _, kind in call.cases):
        return  # the product with the head may flush such numbers to 0, which changes the most likely token
    match call.law:
        case "implementations":
            path = OTHERS[path]
        case "ignored":
            logits = torch.where((call.labels == IGNORED)[..., None], math.nan, logits)
        case "shifted" if call.dtype == torch.float64 and loss.shift_invariant:
            if any(kind == "denormal" for _, kind in call.cases):
                return  # all equal after the shift, which changes the most likely token
            logits = logits + 3.0
        case "wider" if call.dtype != torch.float64 and not alike:
            if loss.name == "ntl_number" and any(kind in TIED for _, kind in call.cases):
                return  # a mean of tied tokens may be 0 but for rounding, and is then divided by itself
            logits = logits.double()
        case _:
            return
    other, other_grad = value_and_grad(call, loss, path, logits)
    slack = 1e3 if call.law == "shifted" else 1.0  # rounding of large logits
    close = slack * CLOSE[torch.float64 if call.dtype == torch.float64 else torch.float32]
    value, other, g, h = (part.double().cpu() for part in (value, other, grad, other_grad))
    factor = float(call.options.get("weight", 1.0)) * (1.0 if call.weights is None else float(call.weights.max()))
    worst = float(loss.worst)
    least = max(0.01, 0.01 * factor, 0.01 * worst, 1e-3 * factor * worst)  # what is small is a difference of large numbers
    least *= call.labels.shape[-1]  # rows of a case, whose rounding adds up
    scale = torch.maximum(value.abs(), other.abs()).clamp_min(least)
    if bool((values & ~((value - other).abs() <= close * scale)).any()):
        raise Fault(f"{call.law}: value {value.tolist()} against {other.tolist()}")
    cases = cases & g.isfinite().all(-1) & h.isfinite().all(-1)  # float16 may overflow
    if call.law in ("wider", "shifted"):  # a mean of tied tokens may meet the label, where rounding decides the slope of |x|
        cases = cases & torch.tensor([kind not in TIED for _, kind in call.cases])
    least = max(least, float(scale[values].max())) if bool(values.any()) else least
    if call.path not in ("loss", "masked"):  # the gradient of a row is a difference of probabilities, which the dtype rounds
        items = max(1, int((call.labels != IGNORED).sum()))
        least = max(least, max(factor, 1.0) / items) if call.dtype.itemsize == 2 else least
    largest = torch.maximum(g.abs().amax(-1), h.abs().amax(-1)).clamp_min(least)
    gap = (g - h).abs().amax(-1)
    if bool((cases & ~(gap <= slack * CLOSE[call.dtype] * largest)).any()):
        raise Fault(f"{call.law}: gradients differ by {gap[cases].tolist()} of {largest[cases].tolist()}")


# Runs


def attempt(seed: int, number: int, device: str = "cpu") -> tuple[Counter[str], str]:
    """Run a call: return the counts of outcomes, and the description of a fault."""
    call: Call | None = None
    try:
        with time_limit(HANG_S):
            call = draw(seed, number, device)
            return check(call), ""
    except Hang:
        problem = "hangs"
    except Exception as error:  # of any kind: each one is a fault
        kind = "" if isinstance(error, Fault) else f"{type(error).__name__}: "
        problem = kind + " ".join(str(error).split())
    return Counter(fault=TOGETHER), f"{seed}:{number * TOGETHER} {problem} | {call}"


def attempts(job: tuple[int, int, int, str]) -> tuple[Counter[str], list[str]]:
    """Run the calls ``start`` to ``stop`` of a seed on a device: return the counts of outcomes, and the faults."""
    seed, start, stop, device = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    for index in range(start, stop):
        found, text = attempt(seed, index, device)
        outcomes += found
        faults += [text] if text else []
    return outcomes, faults


def main(arguments: list[str] | None = None) -> int:
    """Run the cases given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--case", metavar="SEED:INDEX", help="run only this case, and raise its error")
    options = parser.parse_args(arguments)
    if options.case:
        seed, index = map(int, options.case.split(":"))
        call = draw(seed, index // TOGETHER, options.device)
        print(call)
        print(dict(check(call)))
        return 0
    calls = -(-options.cases // TOGETHER)
    step = max(1, min(250, calls // options.processes))
    jobs = [(options.seed, start, min(start + step, calls), options.device) for start in range(0, calls, step)]
    total: Counter[str] = Counter()
    faults: list[str] = []
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) if options.processes > 1 else nullcontext() as pool:
        for outcomes, found in (pool.imap if pool else map)(attempts, jobs):
            total += outcomes
            faults += found
            for text in found[:20]:
                print(f"scripts/fuzz.py --case {text}", flush=True)
            print(f"{sum(total.values()):,} of {calls * TOGETHER:,} cases, {len(faults)} faults", file=sys.stderr, flush=True)
    print("| cases | seed | processes | device | finite | NaN or inf | refused | faults | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    counts = " | ".join(f"{total[name]:,}" for name in ("finite", "nan", "refused", "fault"))
    seconds = time.monotonic() - began
    print(f"| {calls * TOGETHER:,} | {options.seed} | {options.processes} | {options.device} | {counts} | {seconds:.0f} |")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
