"""NumericObjective: parts, normalisation, one gradient, and what it costs."""

import copy
from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import distribute_tensor

from numerate import LOSSES, NumericObjective, NumericVocab, SMMDLoss
from numerate.objective import logit_columns, rows_of_logits
from numerate.targets.soft_targets import SoftTargets

TEXTS = [*"0123456789", ".", "-", ",", ")", "x", " "]
VOCAB = NumericVocab.from_texts({text: i for i, text in enumerate(TEXTS)}, vocab_size=16)


def batch(rows: int = 4, length: int = 12, dtype: torch.dtype = torch.float64, vocab_size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn(rows, length, vocab_size, generator=generator, dtype=torch.float64) * 2).to(dtype)
    labels = torch.randint(0, 16, (rows, length), generator=generator)
    labels[0, :5] = -100
    return logits, labels


def plain(objective: NumericObjective, logits: Tensor, labels: Tensor) -> Tensor:
    """The objective as its formula, by autograd alone."""
    ce = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=objective.label_smoothing)
    loss = objective.numeric_loss
    numeric = loss(logits, labels, reduction="sum")
    numeric = numeric / (loss.count(labels) if objective.normalize == "numeric" else (labels != -100).sum())
    factor = objective.weight if objective.scale == "fixed" else objective.weight * (ce / (numeric + 1e-10)).detach()
    return ce + factor * numeric


@pytest.mark.parametrize(
    ("outside", "settings"),
    [
        ("ignore", {}),
        ("penalize", {"normalize": "tokens"}),
        ("penalize", {"scale": "match_ce"}),
        ("penalize", {"label_smoothing": 0.1}),
    ],
    ids=["default", "tokens", "match_ce", "smoothed"],
)
@pytest.mark.parametrize("name", LOSSES)
def test_one_buffer_equals_autograd(name: str, settings: dict[str, object], outside: str) -> None:
    objective = NumericObjective(LOSSES[name](VOCAB, outside=outside), weight=0.7, **settings)  # type: ignore[arg-type]
    logits, labels = batch()
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    out = objective(ours, labels)
    (out.loss * 3).backward()
    expected = plain(objective, theirs, labels)
    (expected * 3).backward()
    assert torch.allclose(out.loss, expected, rtol=1e-10, atol=0)
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    assert not out.cross_entropy.requires_grad
    assert not out.numeric.requires_grad


@pytest.mark.parametrize("normalize", ["numeric", "tokens"])
@pytest.mark.parametrize("name", ["smmd", "number"])
def test_any_split_gives_the_same_gradient(name: str, normalize: str) -> None:
    objective = NumericObjective(LOSSES[name](VOCAB), normalize=normalize)  # type: ignore[arg-type]
    logits, labels = batch(rows=6)
    whole = logits.clone().requires_grad_()
    objective(whole, labels).loss.backward()
    num_items, num_units = objective.count(labels)
    parts = logits.clone().requires_grad_()
    for rows in ((0,), (1, 2, 3), (4, 5)):
        out = objective(parts[list(rows)], labels[list(rows)], num_items=num_items, num_units=num_units)
        out.loss.backward()
    assert torch.allclose(whole.grad, parts.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["smmd", "number", "gaussian_ce"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_less_exact_than_the_plain_path(name: str, dtype: torch.dtype) -> None:
    objective = NumericObjective(LOSSES[name](VOCAB))
    logits, labels = batch(dtype=dtype)
    truth, ours, naive = (logits.to(to).requires_grad_() for to in (torch.float64, dtype, dtype))
    true_value = plain(objective, truth, labels)
    our_value = objective(ours, labels).loss
    # What a training script would write: cross-entropy and softmax at the dtype of the logits.
    naive_value = plain(objective, naive, labels)
    for value in (true_value, our_value, naive_value):
        value.backward()
    slack = torch.finfo(torch.float32).eps * 16
    assert abs(our_value.double() - true_value) <= abs(naive_value.double() - true_value) + slack
    error, naive_error = ((x.grad.double() - truth.grad).norm() for x in (ours, naive))
    assert error <= naive_error * 1.05 + slack


def test_a_few_rows_at_a_time_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ignored rows and without, with a gradient and without, at the dtype of the sums and below it."""
    for first, dtype, smoothing in product((-100, 3), (torch.float64, torch.bfloat16), (0.0, 0.1)):
        logits, labels = batch(dtype=dtype)
        labels = torch.where(labels < 0, first, labels)
        objective = NumericObjective(SMMDLoss(VOCAB), label_smoothing=smoothing)
        found = []
        for step in (1000, 5):
            for module in (logit_columns, rows_of_logits):
                monkeypatch.setattr(module, "rows_at_a_time", lambda _, step=step: step)
            ours = logits.clone().requires_grad_()
            out = objective(ours, labels)
            found.append((out.loss, *torch.autograd.grad(out.loss, ours), objective(logits, labels).loss))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_gradcheck() -> None:
    objective = NumericObjective(SMMDLoss(VOCAB, outside="penalize"), label_smoothing=0.05)
    logits, labels = batch(rows=2, length=5)
    assert torch.autograd.gradcheck(lambda x: objective(x, labels).loss, logits.requires_grad_())


def test_counts_and_parts() -> None:
    logits, labels = batch()
    objective = NumericObjective(SMMDLoss(VOCAB), weight=0.4)
    out = objective(logits, labels)
    assert int(out.num_items) == int((labels != -100).sum())
    assert int(out.num_units) == int(((labels >= 0) & (labels < 10)).sum())
    assert torch.allclose(out.loss, out.cross_entropy + 0.4 * out.numeric)
    assert torch.allclose(out.numeric, objective.numeric_loss(logits, labels))


def test_nothing_to_learn_from() -> None:
    logits, labels = batch()
    logits.requires_grad_()
    for token in (-100, 14):
        labels = torch.full_like(labels, token)
        logits.grad = None
        out = NumericObjective(SMMDLoss(VOCAB))(logits, labels)
        out.loss.backward()
        assert out.numeric == 0
        assert logits.grad is not None
        assert bool(logits.grad.isfinite().all())
        assert (labels[0, 0] == 14) == bool(logits.grad.any())


@pytest.mark.parametrize("name", [*LOSSES, None])
def test_a_batch_without_positions(name: str | None) -> None:
    """A zero that autograd knows, for logits and for hidden states, with all that may belong to the labels."""
    losses = [LOSSES[name](VOCAB), LOSSES[name](VOCAB, outside="penalize")] if name else [None]
    settings = [{"normalize": "tokens", "label_smoothing": 0.1}, {"scale": "match_ce"}]
    for loss, setting, shape, shift in product(losses, settings, [(0, 5), (3, 0)], [False, True]):
        objective = NumericObjective(loss, vocab=None if name else VOCAB, **setting)  # type: ignore[arg-type]
        labels, none = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape[0], 1, dtype=torch.int64)
        fields = {"token_weights": torch.ones(shape), "position_weights": torch.ones(shape), "position_ids": labels}
        options = {"shift": shift, "with_mass": True, "with_overrun": True} | (
            fields | {"soft": SoftTargets(none - 1, none, none.double())} if shift else {}
        )
        sizes = ((*shape, 16), (*shape, 3), (16, 3), (16,))
        logits, hidden, weight, bias = tensors = [torch.ones(size, requires_grad=True) for size in sizes]
        fused = objective.fused(hidden, weight, labels, bias, impl="torch", **options)
        for out in (objective(logits, labels, **options), fused):
            assert [float(part.detach()) for part in (out.loss, out.cross_entropy, out.numeric)] == [0, 0, 0]
            out.loss.backward()
        for tensor in tensors:
            assert tensor.grad is not None
            assert bool((tensor.grad == 0).all())


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators may not:UserWarning")  # of torch 2.6 on a CPU
def test_tensors_that_are_spread_over_processes(mesh: DeviceMesh) -> None:
    """Each argument is refused by its name, with what to do."""
    logits, labels = batch()
    objective = NumericObjective(SMMDLoss(VOCAB))
    of_labels = {"labels": labels, "position_weights": torch.ones(labels.shape), "position_ids": labels.clamp_min(0)}
    of_labels |= {"token_weights": torch.ones(labels.shape)}
    of_head = {"head_weight": torch.zeros(16, 3), "bias": torch.zeros(16)}
    calls = [
        (objective, of_labels | {"logits": logits}),
        (objective.fused, of_labels | of_head | {"hidden": torch.zeros(*labels.shape, 3)}),
        (objective.count, of_labels),
        (
            objective.numeric_loss,
            {name: value for name, value in of_labels.items() if name != "token_weights"} | {"logits": logits},
        ),
    ]
    for call, arguments in calls:
        call(**arguments)
        for name, value in arguments.items():
            if call is objective and name == "logits":  # every process has all of them
                assert torch.equal(call(**arguments | {name: distribute_tensor(value, mesh)}).loss, call(**arguments).loss)
                continue
            remedy = r"lm_head\.unshard\(\)" if name in of_head else rf"use {name}\.full_tensor\(\)"
            with pytest.raises(TypeError, match=f"{name} is a DTensor, .*{remedy}"):
                call(**arguments | {name: distribute_tensor(value, mesh)})


def test_nan_is_never_hidden() -> None:
    for bad in (float("nan"), float("inf")):
        logits, labels = batch()
        labels[1, 1] = 3
        logits[1, 1, 5] = bad
        assert NumericObjective(SMMDLoss(VOCAB))(logits, labels).loss.isnan()


def test_another_ignore_index() -> None:
    logits, labels = batch()
    renamed = torch.where(labels == -100, 15, torch.where(labels == 15, 14, labels))
    plain_labels = torch.where(renamed == 15, -100, renamed)
    ours = NumericObjective(SMMDLoss(VOCAB, ignore_index=15))(logits, renamed)
    assert torch.equal(ours.loss, NumericObjective(SMMDLoss(VOCAB))(logits, plain_labels).loss)


def test_without_grad_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = batch()
    with_grad = NumericObjective(SMMDLoss(VOCAB))(logits.clone().requires_grad_(), labels).loss
    softmax = rows_of_logits._softmax
    kept: list[bool] = []
    monkeypatch.setattr(rows_of_logits, "_softmax", lambda *at, keep: kept.append(keep) or softmax(*at, keep=keep))
    with torch.no_grad():
        out = NumericObjective(SMMDLoss(VOCAB))(logits.clone().requires_grad_(), labels)
    assert kept == [False]
    assert not out.loss.requires_grad
    assert torch.allclose(out.loss, with_grad, rtol=1e-12)


def test_a_retained_graph_gives_the_same_gradient_again() -> None:
    logits, labels = batch()
    out = NumericObjective(SMMDLoss(VOCAB))(logits.requires_grad_(), labels)
    (first,) = torch.autograd.grad(out.loss, logits, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(out.loss * 2, logits)
    assert torch.equal(first, kept)
    assert torch.allclose(second, 2 * first, rtol=1e-12)


def test_second_derivatives_are_refused() -> None:
    logits, labels = batch()
    out = NumericObjective(SMMDLoss(VOCAB))(logits.requires_grad_(), labels)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(out.loss, logits, create_graph=True)


@pytest.mark.parametrize(("name", "backend"), [("smmd", "aot_eager"), ("number", "eager")])
def test_compiles_to_one_graph(name: str, backend: str) -> None:
    objective = NumericObjective(LOSSES[name](VOCAB), label_smoothing=0.1)
    logits, labels = batch(dtype=torch.float32)
    eager, compiled = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    objective(eager, labels).loss.backward()
    torch.compile(objective, fullgraph=True, backend=backend)(compiled, labels).loss.backward()
    assert torch.allclose(eager.grad, compiled.grad, rtol=1e-4, atol=1e-7)


def test_autocast_stays_wide() -> None:
    logits, labels = batch(dtype=torch.float32)
    objective = NumericObjective(SMMDLoss(VOCAB))
    expected = objective(logits, labels).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(objective(logits, labels).loss, expected)


def test_moves_copies_and_saves_nothing() -> None:
    objective = copy.deepcopy(NumericObjective(SMMDLoss(VOCAB))).to(torch.bfloat16)
    assert objective.state_dict() == {}
    assert objective.numeric_loss.gram.dtype == torch.float64
    assert "weight=0.3" in repr(objective)
    assert "10 numeric tokens" in repr(objective)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"weight": -1}, "weight=-1"),
        ({"normalize": "token"}, "Did you mean 'tokens'"),
        ({"scale": "auto"}, "'match_ce'"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
    ],
)
def test_bad_settings(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        NumericObjective(SMMDLoss(VOCAB), **settings)  # type: ignore[arg-type]


def test_not_a_loss() -> None:
    with pytest.raises(TypeError, match=r"SMMDLoss\(vocab\)"):
        NumericObjective("smmd")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["smmd", "number", "gaussian_ce"])
def test_mass_is_the_softmax_on_numeric_tokens(name):
    objective, labels = NumericObjective(LOSSES[name](VOCAB)), batch()[1]
    generator = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(*labels.shape, 9, generator=generator), torch.randn(VOCAB.vocab_size, 9, generator=generator)
    logits = hidden @ weight.T
    numeric = VOCAB.index_of(labels) >= 0
    expected = logits.softmax(-1)[..., VOCAB.token_ids].sum(-1)[numeric].mean()
    assert objective(logits, labels).mass is None
    for out in (
        objective(logits, labels, with_mass=True),
        objective.fused(hidden, weight, labels, with_mass=True),
        objective.fused(hidden, weight, labels, with_mass=True, max_logits_mib=3 * VOCAB.vocab_size * 4 / 2**20),
    ):
        assert out.mass is not None
        assert not out.mass.requires_grad
        assert torch.allclose(out.mass, expected)
    nothing = torch.full_like(labels, -100)
    assert objective(logits, nothing, with_mass=True).mass == objective.fused(hidden, weight, nothing, with_mass=True).mass == 0


class TestShift:
    """Raw labels of a causal model: the same as labels that the caller has shifted."""

    @staticmethod
    def aligned(x: Tensor | None, fill: float) -> Tensor | None:
        return None if x is None else torch.cat([x[:, 1:], torch.full_like(x[:, :1], fill)], 1)

    @pytest.mark.parametrize("extra", [(), ("position_weights", "position_ids")], ids="-".join)
    @pytest.mark.parametrize("name", ["smmd", "number"])
    def test_equals_the_aligned_call(self, name: str, extra: tuple[str, ...]) -> None:
        objective, (_, labels) = NumericObjective(LOSSES[name](VOCAB)), batch()
        generator = torch.Generator().manual_seed(3)
        hidden = torch.randn(*labels.shape, 9, generator=generator, dtype=torch.float64)
        weight = torch.randn(VOCAB.vocab_size, 9, generator=generator, dtype=torch.float64)
        every = {
            "position_weights": torch.rand(labels.shape, generator=generator),
            "position_ids": torch.arange(labels.shape[1]).remainder(5).expand_as(labels),  # documents of five tokens
        }
        raw = {key: value for key, value in every.items() if key in extra}
        shifted = {key: self.aligned(value, 0) for key, value in raw.items()}
        targets = self.aligned(labels, -100)
        assert objective.count(labels, shift=True, **raw) == objective.count(targets, **shifted)

        def results(call, first: Tensor, *arguments: object, **options: object) -> tuple[Tensor, ...]:
            leaf = first.clone().requires_grad_()
            out = call(leaf, *arguments, **options)
            return out.loss, out.num_items, out.num_units, *torch.autograd.grad(out.loss, leaf)

        logits = hidden @ weight.T
        for ours, theirs in (
            (results(objective, logits, labels, shift=True, **raw), results(objective, logits, targets, **shifted)),
            (
                results(objective.fused, hidden, weight, labels, shift=True, **raw),
                results(objective.fused, hidden, weight, targets, **shifted),
            ),
        ):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert not torch.equal(objective(logits, labels, **raw).loss, objective(logits, labels, shift=True, **raw).loss)

    def test_compiles_to_one_graph(self) -> None:
        objective, (logits, labels) = NumericObjective(LOSSES["number"](VOCAB)), batch(dtype=torch.float32)
        compiled = torch.compile(objective, fullgraph=True, backend="eager")
        positions = torch.arange(labels.shape[1]).remainder(5).expand_as(labels).contiguous()
        ours = compiled(logits, labels, position_ids=positions, shift=True)
        assert torch.allclose(ours.loss, objective(logits, labels, position_ids=positions, shift=True).loss)

    def test_a_list_of_positions_is_refused(self) -> None:
        objective, (logits, labels) = NumericObjective(SMMDLoss(VOCAB)), batch()
        with pytest.raises(TypeError, match="position_ids is a list"):
            objective(logits, labels, position_ids=[0, 1], shift=True)
