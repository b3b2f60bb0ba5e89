"""The objective on shards of the vocabulary against one device: cases for threads that stand in for processes, and for gloo.

A case is a loss with options, from logits or hidden states, in one of the kinds of shards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import torch
from tests.samples import BATCHES, VOCABS
from torch import Tensor

from numerate import LOSSES, NumericObjective
from numerate.losses.logit_rows import wide
from numerate.objective.cut_sequence import CutSequence, Order
from numerate.objective.head import Head
from numerate.objective.rows_torch import RowSums, cross_entropy_rows_
from numerate.objective.shards import VocabShard
from numerate.targets.soft_targets import SoftTargets

VOCAB, LABELS = VOCABS["chunks"], BATCHES["chunks"]
SIZE, H = VOCAB.vocab_size + 1, 6  # 33 columns: 17 and 16, or 9, 9, 9 and 6
HELD = {"even": {2: 16, 4: 8}, "uneven": {2: 17, 4: 9}, "padded": {2: 20, 4: 10}}  # of each process but the last
KINDS = tuple(HELD)
PADDING = 50.0  # in padded columns, which would be seen
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6}


class Options(NamedTuple):
    """Settings of the objective, arguments of the call, and of the head."""

    of_loss: dict[str, Any]
    settings: dict[str, Any]
    call: dict[str, Any]
    head: dict[str, Any]


def soft_targets() -> SoftTargets:
    """Soft targets at two positions of each row, whose tokens are in several shards."""
    positions = torch.tensor([[0, 0, 0, 2, 2, -1]]).expand(LABELS.shape[0], -1).clone()
    tokens = torch.tensor([[3, 24, 31, 1, 20, 0]]).expand(LABELS.shape[0], -1).clone()
    tokens[:, 0], tokens[:, 3] = LABELS[:, 0], LABELS[:, 2]
    return SoftTargets(positions, tokens, torch.tensor([[0.5, 0.3, 0.2, 0.4, 0.6, 0.0]]).expand(LABELS.shape[0], -1))


def options() -> dict[str, Options]:
    generator = torch.Generator().manual_seed(5)
    weights = {name: torch.rand(LABELS.shape, generator=generator) for name in ("position_weights", "token_weights")}
    documents = {"position_ids": torch.arange(LABELS.shape[1]).remainder(7).expand_as(LABELS)}
    return {
        "plain": Options({}, {}, {}, {}),
        "soft": Options({}, {"label_smoothing": 0.1}, {"soft": soft_targets()} | weights, {"softcap": 3.0, "logit_scale": 0.7}),
        "outside": Options({"outside": "penalize"}, {"normalize": "tokens", "label_smoothing": 0.1}, documents, {"bias": True}),
        "matched": Options({}, {"scale": "match_ce"}, {"soft": soft_targets(), "shift": True}, {"bias": True, "softcap": 2.0}),
    }


class Case(NamedTuple):
    """One comparison."""

    loss: str | None
    options: str
    way: str  # logits, fused, or chunks: fused in chunks of three rows
    kind: str
    dtype: torch.dtype


def cases(names: Iterable[str | None], kinds: Iterable[str], *, every: bool) -> Iterator[Case]:
    """Soft targets, weights and smoothing in all kinds of shards; with ``every``, what else there is in uneven ones."""
    for name, kind, option in product(names, kinds, options()):
        rest = every and kind == "uneven"
        if option == "soft" or (rest and not (name is None and option == "outside")):
            yield from (Case(name, option, way, kind, torch.float64) for way in ("logits", "fused"))
        if option == "soft" and rest:
            yield Case(name, option, "chunks", kind, torch.float64)
            yield from (Case(name, option, way, kind, torch.float32) for way in ("logits", "fused"))


def tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the logits, hidden states, head and bias of one device; the same on every process."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"logits": (*LABELS.shape, SIZE), "hidden": (*LABELS.shape, H), "weight": (SIZE, H), "bias": (SIZE,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


class Shards(NamedTuple):
    """How a process cuts what it holds, and what it passes besides."""

    cut: Callable[[Tensor, int], Tensor]  # tensor, vocabulary dimension
    arguments: dict[str, Any]
    wrap: Callable[[str, Tensor, Tensor], Tensor] = lambda name, whole, own: own  # what is passed for what was cut
    unwrap: Callable[[str, Tensor], Tensor] = lambda name, grad: grad


def plain_shards(kind: str, rank: int, count: int, group: Any) -> Shards:
    """Return the shards of Megatron: ranges of equal size or of torch.chunk's; what is padding holds large numbers."""
    held = HELD[kind][count]
    size = None if kind == "even" else SIZE

    def cut(whole: Tensor, dimension: int) -> Tensor:
        stop = count * held if kind == "padded" else SIZE
        padded = torch.cat(
            [whole, torch.full_like(whole.narrow(dimension, 0, 1), PADDING).repeat_interleave(9, dimension)], dimension
        )
        start = rank * held
        return padded.narrow(dimension, start, min(held, stop - start)).clone()

    return Shards(cut, {"group": group, "vocab_size": size})


def run(case: Case, given: dict[str, Tensor], extra: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the parts of the objective, and the gradients of what it was given."""
    of_loss, settings, call, head = options()[case.options]
    loss = None if case.loss is None else LOSSES[case.loss](VOCAB, **of_loss)
    objective = NumericObjective(loss, weight=0.7, **settings)
    figures = {"with_mass": case.loss is not None, "with_overrun": case.loss is not None}
    given = {name: value.detach().requires_grad_() for name, value in given.items()}
    if case.way == "logits":
        given = {"logits": given["logits"]}
        out = objective(given["logits"], LABELS, **call, **figures, **extra)
    else:
        given = {name: value for name, value in given.items() if name != "logits" and (name != "bias" or "bias" in head)}
        shape = {name: value for name, value in head.items() if name != "bias"}
        if case.way == "chunks":
            shape["max_logits_mib"] = 3 * HELD["padded"][2] * case.dtype.itemsize / 2**20
        out = objective.fused(given["hidden"], given["weight"], LABELS, given.get("bias"), **shape, **call, **figures, **extra)
    (out.loss * 2).backward()
    parts = (out.loss, out.cross_entropy, out.numeric, out.num_items, out.num_units, out.mass, out.overrun)
    values = torch.stack([part.detach().double() for part in parts if part is not None])
    return values, {name: value.grad for name, value in given.items() if value.grad is not None}


def whole_tensors(case: Case, count: int) -> dict[str, Tensor]:
    """Return the tensors of one device; for even shards without the columns beyond the last multiple."""
    whole = tensors(case.dtype)
    size = SIZE // count * count if case.kind == "even" else SIZE
    cut = {"logits": whole["logits"][..., :size], "weight": whole["weight"][:size], "bias": whole["bias"][:size]}
    return {**whole, **cut}


class Expected(NamedTuple):
    """One device's values and gradients, in float64 and in the case's dtype."""

    truth: tuple[Tensor, dict[str, Tensor]]
    plain: tuple[Tensor, dict[str, Tensor]]


@lru_cache(maxsize=8)
def _expected(case: Case, count: int) -> Expected:
    whole = whole_tensors(case, count)
    plain = run(case, whole, {})
    if case.dtype == torch.float64:
        return Expected(plain, plain)
    return Expected(run(case, {name: value.double() for name, value in whole.items()}, {}), plain)


def expected(case: Case, count: int) -> Expected:
    """Return what one device computes."""
    return _expected(case if case.kind == "even" else case._replace(kind="uneven"), count if case.kind == "even" else 0)


def check(case: Case, shards: Shards, count: int, of_one: Expected) -> None:
    """Compare values and gradients of this process with one device, which may be as far from float64 as float32 is."""
    dimensions = {"logits": 2, "weight": 0, "bias": 0}
    whole = whole_tensors(case, count)
    own = {name: value if name == "hidden" else shards.cut(value, dimensions[name]) for name, value in whole.items()}
    passed = {name: shards.wrap(name, whole[name], value) for name, value in own.items()}
    values, grads = run(case, passed, shards.arguments)
    close = CLOSE[case.dtype]
    size = of_one.truth[0].abs().clamp_min(1e-3)
    error, plain_error = ((found - of_one.truth[0]).abs() / size for found in (values, of_one.plain[0]))
    assert bool((error <= plain_error + close).all()), (case, error)
    assert grads.keys() == of_one.truth[1].keys()
    for name, true in of_one.truth[1].items():
        plain, ours = of_one.plain[1][name], shards.unwrap(name, grads[name])
        if name != "hidden":
            true, plain = shards.cut(true, dimensions[name]), shards.cut(plain.to(true.dtype), dimensions[name])
            true, plain = (torch.where(grad == PADDING, 0.0, grad) for grad in (true, plain))  # padding gets no gradient
        assert ours.shape == true.shape, (case, name)
        largest = of_one.truth[1][name].abs().max()
        error, plain_error = (float((found - true).abs().max() / largest) for found in (ours, plain))
        assert error <= plain_error + close, (case, name, error)


def kernels_in_torch() -> ModuleType:
    """Return what the row kernels of a GPU compute for logits, in any dtype."""

    def log_sum_exp_of_rows(rows: Tensor, columns: Tensor, left_out: Tensor | None) -> RowSums:
        assert bool(((columns >= 0) & (columns < rows.shape[1])).all())
        excluded = None if left_out is None else torch.zeros(rows.shape[1], dtype=torch.bool).index_fill(0, left_out, True)
        share = torch.ones((), dtype=wide(rows.dtype))
        return cross_entropy_rows_(rows, columns, share, None, Head(rows), 0.0, write=False, excluded=excluded)

    def gradient_of_rows(rows: Tensor, top: Tensor, log_total: Tensor, factors: Tensor, uniform: Tensor | None) -> Tensor:
        softmax = (rows.to(top.dtype) - top[:, None] - log_total[:, None]).exp() * factors[:, None]
        grad = torch.where(factors[:, None] == 0, 0.0, softmax)
        return (grad if uniform is None else grad - uniform[:, None]).to(rows.dtype)

    module = ModuleType("numerate.objective.rows_triton")
    vars(module).update(log_sum_exp_of_rows=log_sum_exp_of_rows, gradient_of_rows=gradient_of_rows)
    return module


class Threads:
    """A group of threads that exchange tensors as processes do, and count the bytes that each sends to be reduced."""

    def __init__(self, count: int) -> None:
        self.count, self.barrier = count, threading.Barrier(count, timeout=60)
        self.slots: list[Tensor | None] = [None] * count
        self.sent: list[list[tuple[str, int]]] = [[] for _ in range(count)]

    def reduce(self, rank: int, values: Tensor, how: str) -> Tensor:
        self.sent[rank].append((how, values.numel() * values.itemsize))
        self.slots[rank] = values.clone()
        self.barrier.wait()
        stacked = torch.stack([slot for slot in self.slots if slot is not None])
        self.barrier.wait()
        return stacked.sum(0) if how == "sum" else stacked.amax(0)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function on every thread with its rank; raise the first error."""
        results: list[Any] = [None] * self.count
        errors: list[BaseException] = []

        def call(rank: int) -> None:
            try:
                results[rank] = function(rank)
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class OneOfThreads(NamedTuple):
    """What a thread passes as its group."""

    threads: Threads
    rank: int


class ThreadShard(VocabShard):
    """A shard whose process is a thread."""

    def sum(self, values: Tensor) -> Tensor:
        result: Tensor = self.group.threads.reduce(self.rank, values, "sum")
        return result

    def max(self, values: Tensor) -> Tensor:
        result: Tensor = self.group.threads.reduce(self.rank, values, "max")
        return result


def thread_shard_of(held: int, group: OneOfThreads, vocab_size: int | None, *, whole: int | None = None) -> ThreadShard:
    """In place of ``shard_of``."""
    return ThreadShard(held, group, vocab_size, group.rank, group.threads.count)


class ThreadCut(CutSequence):
    """A cut sequence whose process is a thread."""

    def __init__(self, threads: Threads, rank: int, order: Order) -> None:
        self.threads, self.rank, self.count, self.order = threads, rank, threads.count, order

    def sum(self, values: Tensor) -> Tensor:
        return self.threads.reduce(self.rank, values, "sum")


def padded_labels(offset: int, length: int = 16) -> Tensor:
    """Return the labels after so many ignored ones: borders between processes move through every number."""
    after = length - offset - LABELS.shape[1]
    return torch.nn.functional.pad(LABELS, (offset, max(0, after)), value=-100)[:, :length]


def compare_cut(
    objective: NumericObjective, cut: CutSequence, labels: Tensor, group: dict[str, Any], call: dict[str, Any]
) -> None:
    """Compare the parts of a cut batch, and the gradient of this process, with the whole batch on one device."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn((*labels.shape, SIZE), generator=generator, dtype=torch.float64)
    whole = logits.clone().requires_grad_()
    expected_out = objective(whole, labels, **call)
    (truth,) = torch.autograd.grad(expected_out.loss, whole)
    positions = cut.positions(labels.shape[1] // cut.count)[cut.rank]
    own = {name: value[:, positions] for name, value in call.items() if isinstance(value, Tensor)}
    if "soft" in call:
        own["soft"] = soft_at(call["soft"], positions, labels.shape[1])
    columns = slice(*group.get("columns", (0, SIZE)))
    part = logits[:, positions, columns].clone().requires_grad_()
    arguments = {name: value for name, value in group.items() if name != "columns"}
    out = objective(part, labels[:, positions], cut=cut, **own, **arguments)
    (grad,) = torch.autograd.grad(out.loss, part)
    shares = torch.stack([out.loss.detach(), out.cross_entropy, out.numeric.to(out.loss.dtype)]).double()
    found = cut.sum(shares)
    parts = torch.stack([expected_out.loss.detach(), expected_out.cross_entropy, expected_out.numeric]).double()
    assert torch.allclose(found, parts, rtol=1e-12), (objective.numeric_loss, cut.order, found, parts)
    assert (out.num_items, out.num_units) == (expected_out.num_items, expected_out.num_units)
    mine = truth[:, positions, columns]
    assert float((grad - mine).abs().max() / truth.abs().max()) <= 1e-12, (objective.numeric_loss, cut.order)


def soft_at(soft: SoftTargets, positions: Tensor, length: int) -> SoftTargets:
    """Return the soft targets of some positions of the sequence."""
    local = torch.full((length + 1,), -1).index_copy(0, positions, torch.arange(len(positions)))
    return SoftTargets(local[soft.positions], soft.token_ids, soft.probabilities)


def moved(call: dict[str, Any], offset: int, length: int = 16) -> dict[str, Any]:
    """Return what belongs to labels, for labels after so many ignored ones."""
    result: dict[str, Any] = {}
    for name, value in call.items():
        if isinstance(value, SoftTargets):
            inside = (value.positions >= 0) & (value.positions + offset < length)
            result[name] = SoftTargets(torch.where(inside, value.positions + offset, -1), value.token_ids, value.probabilities)
        else:
            result[name] = torch.nn.functional.pad(value, (offset, length), value=0)[:, :length]
    return result


def compare_fused(objective: NumericObjective, cut: CutSequence, labels: Tensor, call: dict[str, Any]) -> None:
    """The same from hidden states."""
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn((*labels.shape, H), generator=generator, dtype=torch.float64)
    weight = torch.randn((SIZE, H), generator=generator, dtype=torch.float64).requires_grad_()
    whole = hidden.clone().requires_grad_()
    expected_out = objective.fused(whole, weight, labels, **call)
    truth, d_weight = torch.autograd.grad(expected_out.loss, (whole, weight))
    positions = cut.positions(labels.shape[1] // cut.count)[cut.rank]
    own = {name: value[:, positions] for name, value in call.items() if isinstance(value, Tensor)}
    if "soft" in call:
        own["soft"] = soft_at(call["soft"], positions, labels.shape[1])
    for budget in (64.0, 3 * SIZE * 8 / 2**20):
        part = hidden[:, positions].clone().requires_grad_()
        out = objective.fused(part, weight, labels[:, positions], cut=cut, max_logits_mib=budget, with_mass=True, **own)
        grad, own_weight = torch.autograd.grad(out.loss, (part, weight))
        shares = torch.stack([out.loss.detach(), out.cross_entropy, out.numeric])
        parts = torch.stack([expected_out.loss.detach(), expected_out.cross_entropy, expected_out.numeric])
        assert torch.allclose(cut.sum(shares), parts, rtol=1e-11)
        assert float((grad - truth[:, positions]).abs().max() / truth.abs().max()) <= 1e-11
        assert float((cut.sum(own_weight) - d_weight).abs().max() / d_weight.abs().max()) <= 1e-11
