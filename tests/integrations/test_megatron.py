"""Megatron Core: a model's losses ``[b, s]`` are those of the objective on one device, with shards, cut sequences and counts.

Stand-ins have the documented signatures. Run by `torchrun`, this file is one of two processes, with stand-ins or with a GPTModel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.integrations.trainers.launch import torchrun
from tests.samples import BATCHES, VOCABS
from torch import Tensor, nn

from numerate import LOSSES, NumericObjective
from numerate.integrations.megatron import MegatronLoss, attach
from numerate.objective import CutSequence

VOCAB, SIZE, PADDED = VOCABS["chunks"], VOCABS["chunks"].vocab_size, 40
IDS = torch.nn.functional.pad(BATCHES["chunks"], (0, -BATCHES["chunks"].shape[1] % 4), value=-100)
MASK = (IDS != -100) & (torch.arange(IDS.shape[1]) % 5 != 1)  # also within numbers
LABELS = IDS.clamp_min(0)  # Megatron's labels are tokens everywhere
TRUE = LABELS.masked_fill(~MASK, -100)


class StandIn(nn.Module):
    """A language module: logits ``[s, b, V / tp]`` of a shard of the head, and losses ``[b, s]``."""

    def __init__(self, groups: Any, mtp: int = 0) -> None:
        super().__init__()
        self.pg_collection, self.mtp, self.parallel_output = groups, mtp, True
        generator = torch.Generator().manual_seed(3)
        self.embedding = nn.Parameter(torch.randn(PADDED, 6, generator=generator, dtype=torch.float64))
        head = torch.randn(PADDED, 6, generator=generator, dtype=torch.float64)
        self.head = nn.Parameter(head.chunk(groups.tp.size())[groups.tp.rank()].clone())

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        labels: Tensor,
        packed_seq_params: Any = None,
        *,
        loss_mask: Tensor | None = None,
    ) -> Tensor:
        logits = self.embedding[input_ids].transpose(0, 1) @ self.head.T
        others = [self.compute_language_model_loss(labels.roll(-1, 1), logits) for _ in range(self.mtp)]
        return sum([self.compute_language_model_loss(labels, logits), *others])  # type: ignore[return-value]

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.permute(1, 2, 0), labels, reduction="none")


def loss_func(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """As in ``pretrain_gpt.py``, for ``calculate_per_token_loss``."""
    return (output.reshape(-1) * loss_mask.reshape(-1)).sum(), loss_mask.sum()


def call(model: nn.Module, rows: slice = slice(None), positions: Any = slice(None), **others: Any) -> tuple[Tensor, Tensor]:
    """Return what ``loss_func`` makes of these rows and positions."""
    ids, mask = LABELS[rows][:, positions], MASK[rows][:, positions].double()
    return loss_func(mask, model(ids, None, None, labels=ids, loss_mask=mask, **others))


def batches(rows: slice = slice(None)) -> list[dict[str, Tensor]]:
    return [{"labels": LABELS[[row]], "loss_mask": MASK[[row]]} for row in range(len(LABELS))[rows]]


def one_device(objective: NumericObjective, vocab_size: int | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the objective of the whole batch and the gradients of complete weights."""
    model = StandIn(SimpleNamespace(tp=SimpleNamespace(size=lambda: 1, rank=lambda: 0)))
    logits = (model.embedding[LABELS] @ model.head.T)[..., :vocab_size]
    loss = objective(logits, TRUE).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_the_sample_cuts_numbers_with_the_mask_and_at_the_borders() -> None:
    objective = NumericObjective(LOSSES["number"](VOCAB))
    assert objective.count(TRUE)[1] > 4
    assert objective.count(TRUE)[1] != objective.count(IDS)[1]


@pytest.mark.launch
def test_on_two_processes() -> None:
    torchrun(__file__, "stand-in")


@pytest.mark.launch
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
def test_a_model_of_megatron() -> None:
    torchrun(__file__, "megatron")


@pytest.fixture
def groups() -> Iterator[SimpleNamespace]:
    """Every kind of parallelism over this one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    yield SimpleNamespace(tp=world, cp=world, dp=world)
    dist.destroy_process_group()


def test_a_step_of_micro_batches_is_counted_before_it_begins(groups) -> None:
    objective = NumericObjective(LOSSES["number"](VOCAB), weight=0.7)
    model = StandIn(groups)
    numeric = attach(model, objective)
    with pytest.raises(RuntimeError, match="normalize='numeric' .* call count"):
        call(model)
    for _ in range(2):
        numeric.count(batches())
        sums, counts = zip(*(call(model, slice(row, row + 1)) for row in range(len(LABELS))), strict=True)
        assert torch.isclose(sum(sums) / sum(counts), one_device(objective, None)[0], rtol=1e-12)
    with pytest.raises(RuntimeError, match="this micro-batch was not counted"):
        call(model)
    model.eval()
    total, count = call(model)
    assert torch.isclose(total / count, one_device(objective, None)[0], rtol=1e-12)


def test_other_depths_keep_megatrons_loss(groups) -> None:
    objective = NumericObjective(LOSSES["smmd"](VOCAB), normalize="tokens")
    model, plain = StandIn(groups, mtp=1), StandIn(groups)
    depth = plain.compute_language_model_loss(LABELS.roll(-1, 1), plain.embedding[LABELS].transpose(0, 1) @ plain.head.T)
    attach(model, objective)
    total, count = call(model)
    assert torch.isclose(total / count, one_device(objective, None)[0] + (depth * MASK).sum() / MASK.sum(), rtol=1e-12)


def test_detach_gives_the_loss_back(groups) -> None:
    model = StandIn(groups)
    own = call(model)[0]
    numeric = attach(model, NumericObjective(LOSSES["smmd"](VOCAB), normalize="tokens"))
    assert isinstance(numeric, MegatronLoss)
    with pytest.raises(RuntimeError, match="replaced already"):
        attach(model, numeric.objective)
    assert call(model)[0] > own
    numeric.detach()
    assert torch.equal(call(model)[0], own)


def test_what_is_refused(groups) -> None:
    objective = NumericObjective(LOSSES["smmd"](VOCAB), normalize="tokens")
    with pytest.raises(TypeError, match="before it is wrapped"):
        attach(nn.Linear(2, 2), objective)
    with pytest.raises(TypeError, match="expected a NumericObjective"):
        attach(StandIn(groups), LOSSES["smmd"](VOCAB))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no pg_collection"):
        attach(StandIn(SimpleNamespace(tp=groups.tp)), objective)
    model = StandIn(groups)
    numeric = attach(model, objective)
    with pytest.raises(NotImplementedError, match="without the model's forward"):
        model.compute_language_model_loss(LABELS, torch.zeros(*LABELS.T.shape, PADDED))
    del groups.dp
    with pytest.raises(ValueError, match="expected group="):
        numeric.count(batches())


# One of two processes


def main() -> None:
    dist.init_process_group("gloo")
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    if sys.argv[1] == "megatron":
        check_gpt_model()
    else:
        for vocab_size in (None, SIZE):
            check_shards(SimpleNamespace(tp=dist.group.WORLD, cp=alone, dp=alone), vocab_size)
        check_cut(SimpleNamespace(tp=alone, cp=dist.group.WORLD, dp=alone))
        check_rows(SimpleNamespace(tp=alone, cp=alone, dp=dist.group.WORLD))
    dist.barrier()
    dist.destroy_process_group()


def check_shards(groups: Any, vocab_size: int | None) -> None:
    """Each process has half of the padded vocabulary."""
    gathered = StandIn(groups)
    gathered.parallel_output = False
    with pytest.raises(NotImplementedError, match="expected parallel_output=True"):
        attach(gathered, NumericObjective(LOSSES["smmd"](VOCAB)))
    for name in LOSSES:
        objective = NumericObjective(LOSSES[name](VOCAB), weight=0.7)
        loss, grads = one_device(objective, vocab_size)
        model = StandIn(groups)
        attach(model, objective, vocab_size=vocab_size).count(batches())
        numeric_sum, count = torch.zeros(()), 0
        for row in range(len(LABELS)):
            total, tokens = call(model, slice(row, row + 1))
            (total / TRUE.ne(-100).sum()).backward()
            numeric_sum, count = numeric_sum + total.detach(), count + tokens
        assert torch.isclose(numeric_sum / count, loss, rtol=1e-12), name
        assert model.head.grad is not None
        half = grads["head"].chunk(2)[dist.get_rank()]
        assert torch.allclose(model.head.grad, half, rtol=1e-9, atol=1e-13), name


def check_cut(groups: Any) -> None:
    """Each process has two quarters of each sequence, in zigzag order."""
    positions = CutSequence(dist.group.WORLD, "zigzag").positions(LABELS.shape[1] // 2)[dist.get_rank()]
    for name in LOSSES:
        objective = NumericObjective(LOSSES[name](VOCAB), weight=0.7)
        loss, grads = one_device(objective, None)
        model = StandIn(groups)
        attach(model, objective).count([{"labels": LABELS, "loss_mask": MASK}])
        total, count = call(model, positions=positions)
        total.backward()
        figures = torch.stack([total.detach(), count])
        dist.all_reduce(figures)
        assert torch.isclose(figures[0] / figures[1], loss, rtol=1e-12), name
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            assert torch.allclose(parameter.grad / figures[1], grads[key], rtol=1e-9, atol=1e-13), (name, key)
    model.eval()
    with pytest.raises(NotImplementedError, match="packed_seq_params"):
        call(model, positions=positions, packed_seq_params=object())


def check_rows(groups: Any) -> None:
    """Each process has other rows."""
    objective = NumericObjective(LOSSES["number"](VOCAB), weight=0.7)
    rows = slice(0, 2) if dist.get_rank() else slice(2, None)
    model = StandIn(groups)
    attach(model, objective).count([{"labels": LABELS[rows], "loss_mask": MASK[rows]}])
    figures = torch.stack([value.detach() for value in call(model, rows)])
    dist.all_reduce(figures)
    assert torch.isclose(figures[0] / figures[1], one_device(objective, None)[0], rtol=1e-12)


def check_gpt_model() -> None:
    """A GPTModel with tensor parallelism: Megatron's own loss with weight 0; else the objective of its gathered logits."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    get_cuda_rng_tracker().fork = nullcontext
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        pipeline_dtype=torch.float32,
        calculate_per_token_loss=True,
    )
    torch.manual_seed(0)
    length = LABELS.shape[1]
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=PADDED, max_sequence_length=length)
    inputs = {
        "input_ids": LABELS,
        "position_ids": torch.arange(length).expand_as(LABELS),
        "attention_mask": torch.ones(1, 1, length, length).triu(1).bool(),
    }

    def gradients(output: Tensor, grad: Tensor | None = None) -> dict[str, Tensor]:
        model.zero_grad()
        output.backward(grad)
        return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}

    def compare(found: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
        assert found.keys() == truth.keys()
        largest = max(float(value.abs().max()) for value in truth.values())
        assert largest > 1e-3
        for name, value in truth.items():
            assert (found[name] - value).abs().max() <= 2e-6 * largest, name

    own, count = loss_func(MASK.float(), model(**inputs, labels=LABELS, loss_mask=MASK))
    of_own = gradients(own / count)
    plain = attach(model, NumericObjective(LOSSES["smmd"](VOCAB), weight=0.0, normalize="tokens"))
    found, _ = loss_func(MASK.float(), model(**inputs, labels=LABELS, loss_mask=MASK))
    assert torch.isclose(found, own, rtol=1e-6)
    compare(gradients(found / count), of_own)
    plain.detach()

    for name, vocab_size in (("smmd", None), ("number", SIZE), ("ntil", SIZE)):
        objective = NumericObjective(LOSSES[name](VOCAB), weight=0.7)
        shard = model(**inputs)  # [b, s, V / tp]
        parts = [torch.empty_like(shard) for _ in range(2)]
        dist.all_gather(parts, shard.detach())
        whole = torch.cat(parts, -1).requires_grad_()
        truth = objective(whole[..., :vocab_size], TRUE).loss
        truth.backward()
        assert whole.grad is not None
        expected = gradients(shard, whole.grad.chunk(2, -1)[dist.get_rank()])
        numeric = attach(model, objective, vocab_size=vocab_size)
        numeric.count([{"labels": LABELS, "loss_mask": MASK}])
        found, count = loss_func(MASK.float(), model(**inputs, labels=LABELS, loss_mask=MASK))
        assert torch.isclose(found / count, truth, rtol=1e-6), name
        compare(gradients(found / count), expected)
        numeric.detach()


if __name__ == "__main__":
    main()
