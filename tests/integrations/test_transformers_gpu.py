"""attach on a GPU, in float32 and bfloat16: a step is the same fused or from logits, in one micro-batch or four."""

from __future__ import annotations

import pytest
import torch
from tests.integrations.trainers.cases import Case, Collect, arguments, build, trainer_for

from numerate.integrations.transformers import attach

pytestmark = pytest.mark.gpu


def step(folder, accumulation=1, *, fused=True, fields="", **settings):
    model = build("llama", torch.float32)
    if not fused:
        model.lm_head.register_forward_hook(lambda module, inputs, output: None)
    collect = Collect()
    args = arguments(str(folder), accumulation, use_cpu=False, **settings)
    trainer = trainer_for(model, Case(fields=fields).rows, args, callbacks=[collect])
    if fused:
        attach(trainer, Case().objective)
    else:
        with pytest.warns(UserWarning, match="hooks"):
            attach(trainer, Case().objective)
    trainer.train()
    return collect.grads, trainer.state.log_history[0]


def distance(a, b):
    return max(float((a[name] - b[name]).norm() / b[name].norm()) for name in b)


@pytest.mark.parametrize("fields", ["", "both"])
def test_float32(fields, tmp_path):
    logits, logs = step(tmp_path, fused=False, fields=fields)
    for accumulation in (1, 4):
        fused, mine = step(tmp_path, accumulation, fields=fields)
        assert distance(fused, logits) < 1e-4
        for name in ("loss", "loss/cross_entropy", "loss/numeric", "numeric/mass"):
            assert mine[name] == pytest.approx(logs[name], rel=1e-4)


@pytest.mark.parametrize("fields", ["", "both"])
def test_bfloat16(fields, tmp_path):
    exact, _ = step(tmp_path, fused=False, fields=fields)
    logits, _ = step(tmp_path, fused=False, bf16=True, fields=fields)
    fused, _ = step(tmp_path, 4, bf16=True, fields=fields)
    assert distance(fused, exact) < 1.5 * distance(logits, exact)
