"""A Trainer's step on several processes and machines equals that of one process: gradients, logs, evaluation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import TOLERANCE, VOCAB, Case, Outcome
from tests.integrations.trainers.launch import ROOT, launch

from numerate import NTILLoss, NumericObjective
from numerate.integrations.transformers import attach

SCRIPT = "tests/integrations/trainers/cases.py"
PARTS = {"loss", "loss/cross_entropy", "loss/numeric", "numeric/share", "numeric/mass", "numeric/overrun"}
EVAL_PARTS = {f"eval_{name}" for name in PARTS} | {"eval_label_logit"}

# Every two settings of the first six meet.
TWO_PROCESSES = [
    Case("llama", "ntil", "numeric"),
    Case("llama", "smmd", "tokens", padded=False),
    Case("qwen2_vl", "ntil", "tokens"),
    Case("qwen2_vl", "smmd", "numeric", padded=False),
    Case("t5", "ntil", "numeric", padded=False),
    Case("t5", "smmd", "tokens"),
    Case("mixtral", "ntil", "numeric"),
    *([Case("switch", "smmd", "tokens")] if "switch" in cases.MODELS else []),
    Case("llama", "ntil", "numeric", fields="both"),
    Case("qwen2_vl", "smmd", "tokens", padded=False, fields="both"),
    Case("t5", "none", "numeric", fields="both"),
]

FSDP2 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
use_cpu: true
mixed_precision: 'no'
num_machines: 1
num_processes: 2
main_process_port: 0
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_cpu_ram_efficient_loading: false
"""
WHOLE_HEAD = [Case(), Case("llama_tied", "smmd"), Case("qwen2_vl", "ntil", "tokens"), Case(units="model"), Case("mixtral")]
WHOLE_HEAD += [Case(fields="both")]
HEAD_APART = Case(units="LlamaDecoderLayer,Linear")  # gathered for its own forward, and freed after it
MIXED = Case(loss="smmd", dtype="bfloat16")


def outcomes(results: dict[tuple[str, int], Any], of: list[Case]) -> dict[tuple[str, int], Outcome]:
    found = {key: Outcome(**outcome) for key, outcome in results.items()}
    assert len(found) == 2 * len(of)
    return found


def assert_same_gradients(found: dict[tuple[str, int], Outcome], tolerance: float) -> None:
    """Compare with one batch in one process."""
    expected = {case: cases.reference(Case.parse(case)) for case, _ in found}
    errors = {(case, k): cases.difference(outcome.grads, expected[case]) for (case, k), outcome in found.items()}
    assert all(error < tolerance for error in errors.values()), errors


def assert_same_logs(found: dict[tuple[str, int], Outcome]) -> None:
    """Compare with one process and one micro-batch."""
    for case in {case for case, _ in found}:
        alone = cases.run(Case.parse(case))
        without = {"numeric/mass", "eval_numeric/mass"} if Case.parse(case).loss == "none" else set()
        expected = {name: alone.logs[name] for name in PARTS - without}
        expected |= {name: alone.evaluation[name] for name in EVAL_PARTS - without}
        for k in (1, 2):
            logs = found[case, k].logs | found[case, k].evaluation
            assert {name: logs[name] for name in expected} == pytest.approx(expected, rel=TOLERANCE), (case, k)


def on_two_processes() -> dict[tuple[str, int], Any]:
    return {(str(case), k): vars(cases.run(case, k)) for case in TWO_PROCESSES for k in (1, 2)}


def check_two_processes(results: dict[tuple[str, int], Any]) -> None:
    found = outcomes(results, TWO_PROCESSES)
    assert_same_gradients(found, TOLERANCE)
    assert_same_logs(found)
    for (case, k), outcome in found.items():
        assert (outcome.fused_calls, outcome.plain_calls, outcome.late_logits) == (k, 0, 0), (case, k)


@pytest.mark.launch
def test_fsdp2(tmp_path: Path) -> None:
    config, of = tmp_path / "fsdp2.yaml", [*WHOLE_HEAD, HEAD_APART, MIXED]
    config.write_text(FSDP2)
    launch("accelerate.commands.launch", "--config_file", config, SCRIPT, *of, "--out", tmp_path / "found.pt")
    found = outcomes(torch.load(tmp_path / "found.pt"), of)
    assert all(outcome.sharded for outcome in found.values())
    mixed = {key: found.pop(key) for key in list(found) if key[0] == str(MIXED)}

    assert_same_gradients(found, TOLERANCE)
    assert_same_logs(found)
    for (case, k), outcome in found.items():
        calls = (0, k, k) if case == str(HEAD_APART) else (k, 0, 0)
        assert (outcome.fused_calls, outcome.plain_calls, outcome.late_logits) == calls, (case, k)

    assert_same_gradients(mixed, 0.03)
    for (_, k), outcome in mixed.items():
        assert (outcome.fused_calls, outcome.plain_calls, outcome.late_logits) == (k, 0, 0)
        # The model returns its loss in bfloat16; the logged one is not rounded.
        logs = outcome.logs
        assert logs["loss"] == pytest.approx(logs["loss/cross_entropy"] + 0.7 * logs["loss/numeric"], rel=TOLERANCE)


def namespaces() -> str:
    """Return why network namespaces cannot be used here; empty if they can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    name = f"numerate-probe-{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return f"`ip netns add` is not permitted: {added.stderr.strip()}" if added.returncode else ""


@pytest.mark.launch
def test_two_machines() -> None:
    if why_not := namespaces():
        pytest.skip(f"two machines are two network namespaces, and {why_not}")
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    # `timeout` sends SIGTERM, so that the script removes its namespaces.
    command = ["timeout", "300", ROOT / "scripts/two_machines.sh"]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference from the gradient of one process: " in done.stdout.splitlines()[-1]
    name = done.stdout.split()[2]
    assert name.startswith("numerate-")
    assert name not in before + subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(("sizes", "soft"), [("get_cp_size", False), ("get_sp_size", False), ("get_sp_size", True)])
def test_a_trainer_that_splits_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str, soft: bool) -> None:
    model = cases.build("llama")
    trainer = cases.trainer_for(model, cases.dataset("llama", padded=True), cases.arguments(str(tmp_path)))
    monkeypatch.setattr(trainer, sizes, lambda: 2)
    before = set(vars(trainer)), set(vars(model)), set(vars(model.lm_head))
    objective = NumericObjective(NTILLoss(VOCAB), scale="fixed" if soft else "match_ce")
    asked = {"soft": 0.05, "tokenizer": cases.tokenizer(), "numbers": "all"} if soft else {}
    with pytest.raises(NotImplementedError, match="by position" if soft else "'match_ce' is not supported with cut="):
        attach(trainer, objective, **asked)
    assert (set(vars(trainer)), set(vars(model)), set(vars(model.lm_head))) == before
    attach(trainer, NumericObjective(NTILLoss(VOCAB)))
