"""The fused operator on a GPU: exact at odd shapes, bounded in memory, the same bits twice."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from benchmarks.losses import bench_labels, bench_vocab

from numerate import LOSSES, NumericObjective
from numerate.objective import operator
from numerate.objective.overrun import number_ends
from numerate.objective.replay import Recording, recordings

pytestmark = pytest.mark.gpu
T, H = 252, 507


def poison(mib: int = 256) -> None:
    """Fill memory that will be handed out next with NaN: what a kernel does not write will show."""
    torch.full((mib << 18,), float("nan"), device="cuda")


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("numeric_tokens", [10, 1110])
@pytest.mark.parametrize("name", ["smmd", "ntil", "number", "gaussian_ce"])
def test_no_less_exact_than_the_plain_path(name, numeric_tokens, dtype, impl):
    vocab_size = 1234
    vocab = bench_vocab(numeric_tokens, vocab_size)
    labels = bench_labels(vocab, T).cuda()
    labels[0, :17] = -100
    generator = torch.Generator("cuda").manual_seed(0)
    hidden, weight, bias = (
        (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)
        for shape, scale in (((1, T, H), 1.0), ((vocab_size, H), H**-0.5), ((vocab_size,), 1.0))
    )
    shapes = ({}, {"logit_scale": 0.7, "softcap": 8.0})
    settings = ({}, {"scale": "match_ce", "label_smoothing": 0.1})
    for options, setting, with_bias, rows in itertools.product(shapes, settings, (False, True), (T, 100)):
        objective = NumericObjective(LOSSES[name](vocab), **setting).cuda()

        def plain(to, options=options, objective=objective, with_bias=with_bias):
            tensors = [tensor.to(to).requires_grad_() for tensor in ((hidden, weight, bias) if with_bias else (hidden, weight))]
            logits = tensors[0] @ tensors[1].T
            logits = logits.to(torch.promote_types(to, torch.float32)) + (tensors[2] if with_bias else 0)
            logits = logits * options.get("logit_scale", 1)
            if cap := options.get("softcap"):
                logits = cap * torch.tanh(logits / cap)
            ce = F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1), label_smoothing=objective.label_smoothing)
            numeric = objective.numeric_loss(logits, labels)
            loss = ce + objective.weighting.factor(ce, numeric) * numeric
            return loss, *torch.autograd.grad(loss, tensors)

        ours = [tensor.clone().requires_grad_() for tensor in ((hidden, weight, bias) if with_bias else (hidden, weight))]
        poison()
        out = objective.fused(
            *ours[:2],
            labels,
            ours[2] if with_bias else None,
            impl=impl,
            max_logits_mib=rows * vocab_size * dtype.itemsize / 2**20,
            **options,
        )
        results = out.loss, *torch.autograd.grad(out.loss, ours)
        for at, (a, b, true) in enumerate(zip(results, plain(dtype), plain(torch.float64), strict=True)):
            error, plain_error = (float((x.detach().double() - true.detach()).norm() / true.detach().norm()) for x in (a, b))
            chance = max(1e-6, torch.finfo(dtype).eps / 64 if at == 0 else 0)  # in a mean roundings cancel by chance
            assert error <= plain_error * 1.02 + chance, (options, setting, with_bias, rows)


def test_memory_does_not_grow_with_tokens():
    vocab_size, hidden_size = 128256, 1024
    objective = NumericObjective(LOSSES["smmd"](bench_vocab(10, vocab_size))).cuda()
    weight = torch.randn(vocab_size, hidden_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    peaks = []
    for tokens in (4096, 32768):
        hidden = torch.randn(1, tokens, hidden_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        labels = bench_labels(bench_vocab(10, vocab_size), tokens).cuda()
        weight.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        objective.fused(hidden, weight, labels, max_logits_mib=512).loss.backward()
        peaks.append(torch.cuda.max_memory_allocated() - before - hidden.numel() * 2)  # less the gradient of hidden
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("name", ["smmd", "ntil", "number"])
def test_the_same_bits_twice(name):
    vocab = bench_vocab(1110, 4096)
    objective, labels = NumericObjective(LOSSES[name](vocab)).cuda(), bench_labels(vocab, 2048).cuda()
    hidden, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in ((1, 2048, 256), (4096, 256))
    )
    runs = [
        torch.autograd.grad(objective.fused(hidden, weight, labels, max_logits_mib=4).loss, (hidden, weight)) for _ in range(3)
    ]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_the_upstream_scalar_is_applied():
    vocab = bench_vocab(10, 2048)
    objective, labels = NumericObjective(LOSSES["smmd"](vocab)).cuda(), bench_labels(vocab, 256).cuda()
    hidden, weight = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((1, 256, 64), (2048, 64)))
    one, three = (torch.autograd.grad(objective.fused(hidden, weight, labels).loss * k, (hidden, weight)) for k in (1, 3))
    for a, b in zip(one, three, strict=True):
        torch.testing.assert_close(3 * a, b)


def test_labels_need_not_be_contiguous():
    vocab = bench_vocab(10, 2048)
    objective, labels = NumericObjective(LOSSES["smmd"](vocab)).cuda(), bench_labels(vocab, 256).cuda()
    hidden, weight = (torch.randn(shape, device="cuda") for shape in ((1, 256, 64), (2048, 64)))
    strided = labels.repeat_interleave(2, 1)[:, ::2]
    assert torch.equal(objective.fused(hidden, weight, strided).loss, objective.fused(hidden, weight, labels).loss)


def test_every_loss_on_the_gpu_equals_the_cpu():
    vocab = bench_vocab(1110, 2048)
    labels = bench_labels(vocab, 300)
    logits = torch.randn(1, 300, 2048, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name, loss in LOSSES.items():
        here = NumericObjective(loss(vocab))(logits, labels).loss
        there = NumericObjective(loss(vocab)).cuda()(logits.cuda(), labels.cuda()).loss
        torch.testing.assert_close(there.cpu(), here, msg=name)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("numeric_tokens", [10, 1110])
@pytest.mark.parametrize("name", ["ntil", "ntl_number", "number"])
def test_a_replayed_gradient_is_the_gradient(name, numeric_tokens, weighted, monkeypatch):
    vocab_size = 4096
    vocab = bench_vocab(numeric_tokens, vocab_size)
    objective = NumericObjective(LOSSES[name](vocab)).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn((vocab_size, 64), generator=generator, device="cuda", dtype=torch.float32, requires_grad=True)
    replays = []
    replay = Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda *arguments: replays.append(1) or replay(*arguments))
    for round_ in range(12):
        tokens = 300 - 7 * (round_ % 3)  # padded to the same size
        labels = bench_labels(vocab, tokens).cuda()
        labels[0, : 5 * round_] = -100
        hidden = torch.randn((1, tokens, 64), generator=generator, device="cuda", requires_grad=True)
        weights = torch.rand(labels.shape, generator=generator, device="cuda") if weighted else None
        if round_ == 9 and name == "ntil":
            objective.numeric_loss.alpha = 0.9  # a setting that is changed on the way
        results = []
        for below in (1e12, 0):
            monkeypatch.setattr(operator, "REPLAYED_BELOW", below)
            out = objective.fused(hidden, weight, labels, position_weights=weights, with_mass=True)
            results.append((out.loss, out.mass, *torch.autograd.grad(out.loss, (hidden, weight))))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-7)
    assert len(replays) >= (3 if name == "ntil" else 6)


@pytest.mark.parametrize("impl", ["triton", "torch", "logits"])
@pytest.mark.parametrize("numeric_tokens", [10, 1110])
@pytest.mark.parametrize("name", [None, "smmd", "number", "gaussian_ce"])
def test_overrun(name, numeric_tokens, impl):
    vocab = bench_vocab(numeric_tokens, 1234)
    objective = (NumericObjective(None, vocab=vocab) if name is None else NumericObjective(LOSSES[name](vocab))).cuda()
    labels = bench_labels(vocab, T).cuda()
    labels[0, :17] = -100
    positions = (torch.arange(T) % 50)[None].cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    hidden, weight = (
        torch.randn(shape, generator=generator, device="cuda", requires_grad=True) for shape in ((1, T, H), (1234, H))
    )
    hidden, weight = hidden * 0.2, weight * 0.2
    logits = hidden @ weight.T
    ends = number_ends(labels.cpu(), vocab, positions.cpu())
    assert 5 < ends.sum() < T / 2
    expected = logits.detach().double().cpu().softmax(-1)[..., vocab.token_ids].sum(-1)[ends].mean()
    if impl == "logits":
        out = objective(logits, labels, position_ids=positions, with_overrun=True)
    else:
        options = {"impl": impl, "max_logits_mib": 100 * 1234 * 4 / 2**20}
        out = objective.fused(hidden, weight, labels, position_ids=positions, with_overrun=True, **options)
    assert out.overrun.item() == pytest.approx(expected.item(), rel=1e-3)  # products may be rounded to TF32
    assert out.num_ends == ends.sum()
    out.loss.backward()


def testrecordings_go_with_their_loss():
    vocab = bench_vocab(10, 2048)
    objective, labels = NumericObjective(LOSSES["number"](vocab)).cuda(), bench_labels(vocab, 256).cuda()
    hidden, weight = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((1, 256, 64), (2048, 64)))
    before = len(recordings)
    for _ in range(5):
        objective.fused(hidden, weight, labels).loss.backward()
    assert len(recordings) == before + 1
    del objective
    gc.collect()
    assert len(recordings) == before
