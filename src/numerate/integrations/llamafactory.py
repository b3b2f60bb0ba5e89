"""LLaMA-Factory: a numeric loss, soft labels or both, from the YAML of a run.

Add a section to the YAML of a ``pt`` or ``sft`` stage::

    numerate:
      loss: smmd
      weight: 0.3

and train with ``python -m numerate.integrations.llamafactory train config.yaml`` in place of ``llamafactory-cli train``; with
several GPUs, ``torchrun --nproc-per-node 8 -m numerate.integrations.llamafactory train config.yaml``.

LLaMA-Factory has no place for a loss or a plugin in its configuration. So the trainer class that its workflow builds is replaced
by a subclass that calls :func:`numerate.attach`. ``llamafactory`` is imported by the call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from numerate.checks import check_choice, public_dir
from numerate.integrations.section import Section

__all__ = ["main", "train"]
__dir__ = public_dir(globals())

_TRAINERS = {"sft": "CustomSeq2SeqTrainer", "pt": "CustomTrainer"}
_REFUSED = {
    "enable_liger_kernel": "computes the loss inside the model, without the numeric term; numerate fuses head and loss",
    "use_unsloth": "computes the loss inside the model, without the numeric term; use numerate.integrations.unsloth",
}


def train(args: Mapping[str, Any]) -> None:
    """Train with the arguments of a YAML, ``numerate`` among them.

    Args:
        args: what ``llamafactory.train.tuner.run_exp`` takes, and the section ``numerate``.
    """
    args = dict(args)
    section, stage = Section.of(args.pop("numerate", None)), args.get("stage", "sft")
    check_choice("stage", stage, tuple(_TRAINERS))
    for name, reason in _REFUSED.items():
        if args.get(name):
            raise ValueError(f"{name} {reason}: expected no {name}; leave it out.")
    workflow = import_module(f"llamafactory.train.{stage}.workflow")
    plain: Any = getattr(workflow, _TRAINERS[stage])
    callback: Any = _callback()

    class NumericTrainer(plain):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            section.attach(self)
            callback.attached = True

    setattr(workflow, _TRAINERS[stage], NumericTrainer)
    try:
        import_module("llamafactory.train.tuner").run_exp(args, callbacks=[callback])
    finally:
        setattr(workflow, _TRAINERS[stage], plain)


def _callback() -> Any:
    """Return a callback that stops a training without the objective: other engines have trainers of their own."""
    from transformers import TrainerCallback

    class Attached(TrainerCallback):  # type: ignore[misc]
        attached = False

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            if not self.attached:
                raise NotImplementedError(
                    "LLaMA-Factory trains with another trainer than that of its sft or pt stage, without the numeric term: "
                    "expected neither use_mca, use_hyper_parallel nor Ray (USE_MCA, USE_RAY); leave them out."
                )

    return Attached()


def main() -> None:
    """Run ``python -m numerate.integrations.llamafactory train config.yaml``, with overrides such as ``learning_rate=1e-5``."""
    if sys.argv[1:2] != ["train"]:
        raise SystemExit("expected: python -m numerate.integrations.llamafactory train config.yaml")
    sys.argv.pop(1)  # LLaMA-Factory reads the file from there
    args = import_module("llamafactory.hparams").read_args()
    if not isinstance(args, Mapping):
        raise SystemExit(
            f"arguments are {' '.join(sys.argv[1:])!r:.80}: expected a .yaml or .json file with a section `numerate`, and "
            "overrides, as in: python -m numerate.integrations.llamafactory train config.yaml learning_rate=1e-5"
        )
    train(args)


if __name__ == "__main__":
    main()
