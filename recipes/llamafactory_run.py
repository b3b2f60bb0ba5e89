"""LLaMA-Factory: a numeric term in the loss of a YAML run.

Add a section to the YAML of a ``pt`` or ``sft`` stage, and run this file in place of ``llamafactory-cli train``::

    numerate:
      loss: smmd            # a name of numerate.LOSSES
      weight: 0.3
      normalize: numeric    # or tokens
      settings:             # of the loss
        sigma: 2.0
      soft: 0.05            # labels may be off by 5 %: soft labels

    python llamafactory_run.py config.yaml
    torchrun --nproc-per-node 8 llamafactory_run.py config.yaml

A callback of ``run_exp`` gets the model but not the trainer. So the trainer class that a workflow imports is replaced by a
subclass that attaches the objective. numerate fuses head and loss: ``enable_liger_kernel``, which computes the loss inside
the model, is refused.

Written against llamafactory 0.9.5 (transformers 5.6.0). Run with it on a CPU: the ``sft`` stage, full training (one micro-batch
and four gave the same losses and gradient norms), and LoRA. Not run: a GPU, several processes, the ``pt`` stage, QLoRA,
vision-language models.
"""

from typing import Any

from llamafactory.hparams import read_args
from llamafactory.train.pt import workflow as pt
from llamafactory.train.sft import workflow as sft
from llamafactory.train.tuner import run_exp

import numerate as nm

TRAINERS = {"pt": (pt, "CustomTrainer"), "sft": (sft, "CustomSeq2SeqTrainer")}


def numeric(
    trainer: type,
    *,
    loss: str = "smmd",
    weight: float = 0.3,
    normalize: str = "numeric",
    settings: dict[str, Any] | None = None,
    soft: float | bool = False,
) -> type:
    """Return a subclass of a trainer that attaches a numeric objective."""

    class NumericTrainer(trainer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            vocab = nm.NumericVocab.from_tokenizer(self.processing_class)
            numeric_loss = nm.LOSSES[loss](vocab, **(settings or {}))
            nm.attach(self, nm.NumericObjective(numeric_loss, weight=weight, normalize=normalize), soft=soft)

    return NumericTrainer


def run(args: dict[str, Any]) -> None:
    """Train with the arguments of the YAML."""
    args = dict(args)
    settings, stage = args.pop("numerate", None) or {}, args.get("stage", "sft")
    if stage not in TRAINERS:
        raise ValueError(f"stage={stage!r} is not supported: expected one of {', '.join(TRAINERS)}.")
    if args.get("enable_liger_kernel"):
        raise ValueError("enable_liger_kernel computes the loss inside the model: leave it out, numerate fuses head and loss.")
    module, name = TRAINERS[stage]
    plain = getattr(module, name)
    setattr(module, name, numeric(plain, **settings))
    try:
        run_exp(args)
    finally:
        setattr(module, name, plain)


if __name__ == "__main__":
    yaml_args = read_args()
    if not isinstance(yaml_args, dict):
        raise SystemExit("expected a YAML file: python llamafactory_run.py config.yaml")
    run(yaml_args)
