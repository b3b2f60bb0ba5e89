"""The fused operator: the numbers of the objective on logits, a few rows of logits at a time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.samples import MARKS, VOCABS, encode_batch
from torch import Tensor

from numerate import LOSSES, NumericObjective, SMMDLoss
from numerate.objective import rows_torch
from numerate.objective.chunks import ChunkedHead, split_rows
from numerate.objective.from_hidden import choose_chunk_rows, rows_in_budget

VOCAB = VOCABS["marks"]
V, H = VOCAB.vocab_size + 3, 8  # a few more rows than the tokenizer has tokens
LABELS = encode_batch(
    ["x -12.5 and", "(-7)3-5 0", "0.98 41x9", "1234567.89"], {**MARKS, "a": MARKS["x"], "n": MARKS["x"], "d": MARKS["x"]}
)
THREE_ROWS = 3 * V * 8 / 2**20  # a budget of three rows of float64 logits


def inputs(dtype: torch.dtype = torch.float64, labels: Tensor = LABELS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((*labels.shape, H), (V, H), (V,))
    hidden, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def by_logits(
    objective: NumericObjective, hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1, cap: float | None = None
):
    logits = (hidden @ weight.T + (0 if bias is None else bias)) * scale
    return objective(logits if cap is None else cap * torch.tanh(logits / cap), LABELS)


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 2, inputs)


@pytest.mark.parametrize(
    ("outside", "settings", "shape"),
    [
        ("ignore", {}, {}),
        ("penalize", {"normalize": "tokens"}, {"softcap": 0.9, "logit_scale": 0.5}),
        ("penalize", {"scale": "match_ce"}, {}),
        ("ignore", {"label_smoothing": 0.1}, {"softcap": 0.9, "logit_scale": 0.5}),
    ],
    ids=["default", "tokens", "match_ce", "smoothed"],
)
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_objective_on_logits(name, outside, settings, shape):
    objective = NumericObjective(LOSSES[name](VOCAB, outside=outside), weight=0.7, **settings)
    tensors = inputs()
    expected = by_logits(objective, *tensors, shape.get("logit_scale", 1), shape.get("softcap"))
    true_gradients = gradients(expected.loss, *tensors)
    for budget in (64.0, THREE_ROWS):  # one chunk, and many
        out = objective.fused(tensors[0], tensors[1], LABELS, tensors[2], max_logits_mib=budget, **shape)
        for part in ("loss", "cross_entropy", "numeric", "num_items", "num_units"):
            assert torch.allclose(getattr(out, part), getattr(expected, part), rtol=1e-10)
        for ours, theirs in zip(gradients(out.loss, *tensors), true_gradients, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's own, on CPUs without bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_grad_dtype", ["float32", "weight"])
def test_no_less_exact_than_the_plain_path(dtype, head_grad_dtype):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, VOCAB.vocab_size, (1, 252), generator=generator)
    hidden, weight = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in ((1, 252, 57), (V, 57)))
    objective = NumericObjective(SMMDLoss(VOCAB))

    def plain(to):
        pair = [tensor.detach().to(to).requires_grad_() for tensor in (hidden, weight)]
        logits = (pair[0] @ pair[1].T).to(torch.promote_types(to, torch.float32))
        loss = F.cross_entropy(logits.view(-1, V), labels.view(-1)) + 0.3 * objective.numeric_loss(logits, labels)
        return loss, *gradients(loss, *pair)

    chunks = 100 * V * dtype.itemsize / 2**20
    out = objective.fused(hidden, weight, labels, max_logits_mib=chunks, head_grad_dtype=head_grad_dtype)
    ours, naive, truth = (out.loss, *gradients(out.loss, hidden, weight)), plain(dtype), plain(torch.float64)
    summed_narrow = head_grad_dtype == "weight" and dtype != torch.float32
    for at, (a, b, true) in enumerate(zip(ours, naive, truth, strict=True)):
        error, naive_error = ((x.double() - true).norm() / true.norm() for x in (a, b))
        slack = 2.0 if summed_narrow and at == 2 else 1.02  # three roundings of the head's gradient instead of one
        chance = torch.finfo(dtype).eps / 64 if at == 0 else 1e-6  # in a mean the roundings of logits cancel by chance
        assert error <= naive_error * slack + chance


def test_rows_without_a_label_cost_nothing_and_may_hold_anything(monkeypatch):
    labels = LABELS.clone()
    labels[:, ::2] = -100
    hidden, weight, _ = inputs()
    objective = NumericObjective(SMMDLoss(VOCAB))
    expected = objective.fused(hidden, weight, labels).loss
    seen = []
    row_pass = rows_torch.cross_entropy_rows_
    monkeypatch.setattr(rows_torch, "cross_entropy_rows_", lambda *at, **of: seen.append(at[0].shape[0]) or row_pass(*at, **of))
    with torch.no_grad():
        hidden[labels == -100] = float("nan")
    loss = objective.fused(hidden, weight, labels).loss
    d_hidden, d_weight = gradients(loss, hidden, weight)
    assert seen == [int((labels != -100).sum())]
    assert torch.equal(loss, expected)
    assert not d_hidden[labels == -100].any()
    assert bool(d_weight.isfinite().all())


def test_nothing_to_learn_from():
    hidden, weight, _ = inputs()
    out = NumericObjective(SMMDLoss(VOCAB)).fused(hidden, weight, torch.full_like(LABELS, -100))
    assert out.loss == 0
    assert not any(grad.any() for grad in gradients(out.loss, hidden, weight))


def test_weights_and_document_borders_reach_the_loss():
    objective = NumericObjective(LOSSES["number"](VOCAB))
    hidden, weight, _ = inputs()
    options = {
        "position_weights": torch.rand(LABELS.shape),
        "position_ids": torch.arange(LABELS.shape[1]).remainder(4).expand_as(LABELS),
    }
    ours, theirs = objective.fused(hidden, weight, LABELS, **options), objective(hidden @ weight.T, LABELS, **options)
    assert torch.allclose(ours.loss, theirs.loss)
    assert not torch.allclose(ours.loss, objective.fused(hidden, weight, LABELS).loss)


def test_a_frozen_head_has_no_gradient_and_takes_no_memory(monkeypatch):
    hidden, weight, _ = inputs()
    frozen = weight.detach()
    monkeypatch.setattr("numerate.objective.chunks.add_mm_", lambda *_: pytest.fail("a product for nobody"))
    objective = NumericObjective(SMMDLoss(VOCAB))
    (d_hidden,) = gradients(objective.fused(hidden, frozen, LABELS, max_logits_mib=THREE_ROWS).loss, hidden)
    assert torch.allclose(d_hidden, gradients(by_logits(objective, hidden, frozen, None).loss, hidden)[0])


def test_tied_embeddings_get_both_gradients():
    objective = NumericObjective(SMMDLoss(VOCAB))
    _, weight, _ = inputs()
    ids = LABELS.clamp_min(0)
    fused = objective.fused(F.embedding(ids, weight), weight, LABELS).loss
    plain = objective(F.embedding(ids, weight) @ weight.T, LABELS).loss
    assert torch.allclose(gradients(fused, weight)[0], gradients(plain, weight)[0])


def test_a_large_upstream_scalar_keeps_half_precision_exact():
    hidden, weight, _ = inputs(torch.float16)
    objective = NumericObjective(SMMDLoss(VOCAB))
    scaled = torch.autograd.grad(objective.fused(hidden, weight, LABELS, num_items=100_000).loss * 65536.0, (hidden, weight))
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    truth = torch.autograd.grad(objective.fused(*wide, LABELS, num_items=100_000).loss * 65536.0, wide)
    for ours, true in zip(scaled, truth, strict=True):
        assert float((ours.double() - true).norm() / true.norm()) < 2e-3


def test_without_grad_no_gradient_is_made(monkeypatch):
    hidden, weight, _ = inputs()
    objective = NumericObjective(SMMDLoss(VOCAB))
    expected = objective.fused(hidden, weight, LABELS).loss.detach()
    for work in ("add_head_gradient", "add_hidden_gradient", "write_numeric_columns"):
        monkeypatch.setattr(ChunkedHead, work, lambda *_: pytest.fail("gradient work without a gradient"))
    with torch.no_grad():
        assert torch.equal(objective.fused(hidden, weight, LABELS).loss, expected)


def test_the_gradients_are_returned_once_and_not_differentiated():
    hidden, weight, _ = inputs()
    loss = NumericObjective(SMMDLoss(VOCAB)).fused(hidden, weight, LABELS).loss
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="returned once"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_autocast_narrows_the_products_as_it_does_a_linear_layer():
    hidden, weight, _ = inputs(torch.float32)
    objective = NumericObjective(SMMDLoss(VOCAB))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = objective.fused(hidden, weight, LABELS).loss
    narrow = objective.fused(hidden.bfloat16(), weight.bfloat16(), LABELS).loss
    assert torch.equal(ours, narrow)
    assert gradients(ours, weight)[0].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, at a graph break
def test_inside_a_compiled_and_checkpointed_model():
    hidden, weight, _ = inputs(torch.float32)
    body = torch.nn.Linear(H, H)
    objective = NumericObjective(SMMDLoss(VOCAB))

    def step(x):
        x = torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)
        return objective.fused(x, weight, LABELS).loss

    eager = gradients(step(hidden), weight, body.weight)
    compiled = gradients(torch.compile(step, backend="aot_eager")(hidden), weight, body.weight)
    for ours, theirs in zip(compiled, eager, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_leaves_the_caller_s_tensors_alone():
    hidden, weight, bias = inputs()
    before = [tensor.detach().clone() for tensor in (hidden, weight, bias)]
    NumericObjective(SMMDLoss(VOCAB)).fused(hidden, weight, LABELS, bias).loss.backward()
    assert all(torch.equal(a, b) for a, b in zip((hidden, weight, bias), before, strict=True))


def test_rows_follow_from_the_budget():
    assert rows_in_budget(128256, 2, 2048) == 8320  # 65 times 128
    assert rows_in_budget(128256, 2, 10) == 40
    assert rows_in_budget(10**9, 4, 1) == 1


def test_chunks_are_few_and_alike():
    assert split_rows(8192, 7424) == [slice(0, 4096), slice(4096, 8192)]  # not 7,424 and 768
    assert split_rows(1000, 300) == [slice(0, 256), slice(256, 512), slice(512, 768), slice(768, 1000)]
    assert split_rows(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert split_rows(0, 3) == []


def test_all_rows_at_once_where_their_logits_fit_twice_the_default(monkeypatch):
    monkeypatch.setattr("numerate.objective.from_hidden.default_logits_mib", lambda device: 1.0)
    hidden = torch.empty(0, dtype=torch.bfloat16)
    assert choose_chunk_rows(1024, hidden, 1000, None, 0.5) == 1000
    assert choose_chunk_rows(1024, hidden, 1025, None, 0.5) == 256  # what the head's wide gradient leaves of the default
    assert choose_chunk_rows(1024, hidden, 1025, None, 99.0) == 128
    assert choose_chunk_rows(1024, hidden, 1000, 1.0, 0.5) == 512  # as asked for


@pytest.mark.parametrize("name", LOSSES)
def test_large_logits_are_as_exact_as_on_the_logits_path(name):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, VOCAB.vocab_size, (1, 300), generator=generator)
    hidden, weight = (torch.randn(shape, generator=generator) for shape in ((1, 300, 64), (V, 64)))
    weight *= 1000 / 24  # 24: about the largest of the products
    for outside, settings in itertools.product(("ignore", "penalize"), ({}, {"scale": "match_ce"})):
        objective = NumericObjective(LOSSES[name](VOCAB, outside=outside), **settings)

        def results(dtype, fused, objective=objective):
            pair = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight)]
            out = objective.fused(*pair, labels) if fused else objective(pair[0] @ pair[1].T, labels)
            return torch.autograd.grad(out.loss, pair)

        truth = results(torch.float64, fused=False)
        for ours, plain, true in zip(results(torch.float32, True), results(torch.float32, False), truth, strict=True):
            error, plain_error = (float((x.double() - true).norm() / true.norm()) for x in (ours, plain))
            assert error <= 1.1 * plain_error + 1e-7


def test_float16_gradients_are_kept_large_until_the_upstream_scalar_is_known():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, VOCAB.vocab_size, (1, 8192), generator=generator)
    hidden, weight = (torch.randn(shape, generator=generator).half() / 4 for shape in ((1, 8192, H), (V, H)))
    objective = NumericObjective(SMMDLoss(VOCAB))

    def gradient_by_hidden(dtype):
        pair = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight)]
        # A token's share of the step is the 17th multiple of the smallest float16: only the loss scaler makes it a number.
        return torch.autograd.grad(objective.fused(*pair, labels, num_items=1_000_000, max_logits_mib=1.0).loss * 65536.0, pair)

    for ours, true in zip(gradient_by_hidden(torch.float16), gradient_by_hidden(torch.float64), strict=True):
        assert float((ours.double() - true).norm() / true.norm()) < 1e-3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden": torch.zeros(4, 3, H)}, ValueError, r"hidden has shape .* expected \[.., T, H\]"),
        ({"hidden": torch.zeros(*LABELS.shape, H).long()}, TypeError, "hidden has dtype torch.int64"),
        ({"head_weight": torch.zeros(V, H + 1, dtype=torch.float64)}, ValueError, "pass lm_head.weight"),
        ({"head_weight": torch.zeros(5, H, dtype=torch.float64)}, ValueError, "head_weight has V=5, but the NumericVocab needs"),
        ({"head_weight": torch.zeros(V, H)}, TypeError, r"use head_weight.to\(hidden.dtype\)"),
        ({"bias": torch.zeros(3)}, ValueError, "one entry per row of head_weight"),
        ({"labels": torch.full_like(LABELS, V)}, ValueError, "expected token ids"),
        ({"impl": "cuda"}, ValueError, "'triton'"),
        ({"head_grad_dtype": "bf16"}, ValueError, "'weight'"),
        ({"max_logits_mib": 0}, ValueError, "max_logits_mib=0"),
        ({"softcap": -1.0}, ValueError, "softcap=-1.0"),
    ],
)
def test_bad_input(change, error, message):
    hidden, weight, _ = inputs()
    with pytest.raises(error, match=message):
        NumericObjective(SMMDLoss(VOCAB)).fused(**{"hidden": hidden, "head_weight": weight, "labels": LABELS, **change})


INTERPRETED = """
import itertools, torch
from numerate.objective import rows_torch, rows_triton
from numerate.objective.head import Head

class Launched:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        assert current[-1] is not None, "launched on the current device instead of that of the tensors"
        return self.kernel[grid]

class DeviceOf(torch.cuda.device_of):
    def __enter__(self):
        current.append(self.idx)

    def __exit__(self, *error):
        current.pop()

current = [None]
torch.cuda.device_of = DeviceOf
for name in ("_cross_entropy_rows", "_write_numeric_columns", "_rescale", "_gradient_of_rows"):
    setattr(rows_triton, name, Launched(getattr(rows_triton, name)))

torch.manual_seed(0)
shapes = ((None, None), (0.7, 5.0))
sizes = ((507, torch.float32), (40, torch.bfloat16))
cases = itertools.product(sizes, (True, False), shapes, (0.0, 0.1), (True, False))
for number, ((size, dtype), with_bias, (scale, cap), smoothing, with_lse) in enumerate(cases):
    head = Head(torch.zeros(size, 2), torch.randn(size) if with_bias else None, scale, cap)
    softmax_share = torch.randn(9) if with_lse else None
    excluded = torch.rand(size) < 0.5 if with_lse else None
    labels, share = torch.randint(0, size, (9,)), torch.rand(9) if number % 3 == 0 else torch.tensor(0.3)
    gold = torch.rand(9) if number % 2 else None
    poisoned = torch.full((9, size + 5), float("nan"), dtype=dtype)  # rows further apart than they are long
    poisoned[:, :size] = torch.randn(9, size)
    ours, theirs = poisoned[:, :size], poisoned[:, :size].clone()
    results = [
        pass_(logits, labels, share, softmax_share, head, smoothing, write=True, gold=gold, excluded=excluded)
        for pass_, logits in ((rows_triton.cross_entropy_rows_, ours), (rows_torch.cross_entropy_rows_, theirs))
    ]
    assert (results[0].log_rest is None) == (excluded is None)
    for a, b in zip(*(filter(lambda part: part is not None, sums) for sums in results)):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-6, rtol=0 if dtype == torch.float32 else 2**-7)
    assert poisoned[:, size:].isnan().all()
    columns, rows = torch.randperm(size)[:21], torch.tensor([1, 4, 8])
    z, dz = torch.randn(3, 21), torch.randn(3, 21)
    for module, logits in ((rows_triton, ours), (rows_torch, theirs)):
        arguments = (z, dz, results[1], labels, share, torch.tensor(0.6), head, smoothing, gold)
        module.write_numeric_columns_(logits, rows, columns, *arguments)
    torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-6, rtol=1e-5 if dtype == torch.float32 else 2**-7)
    assert poisoned[:, size:].isnan().all()
for size, dtype in itertools.product((5, 5000), (torch.float32, torch.bfloat16)):
    rows, factors = torch.randn(4, size + 3).to(dtype)[:, :size], torch.tensor([0.5, 0.0, -2.0, 0.0])
    top, log_total = rows.float().amax(-1), rows.float().logsumexp(-1) - rows.float().amax(-1)
    for uniform in (None, torch.rand(4)):
        expected = rows.float().softmax(-1) * factors[:, None] - (0 if uniform is None else uniform[:, None])
        with_nan = rows.clone()
        with_nan[1, 0], with_nan[3, -1] = float("nan"), float("inf")
        found = rows_triton.gradient_of_rows(with_nan, top, log_total, factors, uniform)
        torch.testing.assert_close(found, expected.to(dtype), atol=1e-6, rtol=1e-5 if dtype == torch.float32 else 2**-7)
for factor in (1.0, 2.5):
    tensor = torch.ones(70_001)
    rows_triton.rescale_(tensor, torch.tensor(factor))
    assert bool((tensor == factor).all())

from numerate import LOSSES, NumericObjective
from numerate.objective import rows_of_logits
from numerate.targets.soft_targets import SoftTargets
from numerate.vocab import NumericVocab

vocab = NumericVocab.from_texts({**{str(digit): digit for digit in range(10)}, ".": 10}, vocab_size=37)
labels = torch.tensor([[20, 4, 2, 30, -100, 7, 10, 5, 31, -100]])
soft = SoftTargets(torch.tensor([[1, 1, 5, 5]]), torch.tensor([[4, 5, 7, 8]]), torch.tensor([[0.5, 0.5, 0.25, 0.75]]))
calls = ({}, {"soft": soft, "token_weights": torch.rand(1, 10)})
for name, outside, smoothing, call in itertools.product(("smmd", "number"), ("ignore", "penalize"), (0.0, 0.1), calls):
    objective = NumericObjective(LOSSES[name](vocab, outside=outside), label_smoothing=smoothing)
    logits = torch.randn(1, 10, 37)
    results = []
    for kernels in (False, True):
        rows_of_logits.has_kernels = lambda rows, kernels=kernels: kernels
        for compute in (lambda x: objective(x, labels, **call).loss, lambda x: objective.per_position(x, labels, **call).sum()):
            x = logits.clone().requires_grad_()
            value = compute(x)
            first, again = (torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2))
            assert torch.equal(first, again)
            results += [value.detach(), first]
    for a, b in zip(results[:4], results[4:]):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
print("done")
"""


@pytest.mark.launch
def test_kernels_in_triton_s_interpreter():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    result = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "done", result.stderr[-2000:]
