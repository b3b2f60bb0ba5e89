"""ms-swift: a numeric loss from the YAML or the command line of a run.

Add a section to the YAML of ``swift sft`` or ``swift pt``::

    numerate:
      loss: smmd
      weight: 0.3

and train with ``python -m numerate.integrations.swift sft config.yaml`` in place of ``swift sft config.yaml``. Without a YAML
the section is an argument: ``python -m numerate.integrations.swift sft --numerate '{"loss": "smmd"}' --model ...``.
``NPROC_PER_NODE`` starts processes as before.

A loss type of ms-swift's registry gets no settings, and does not see the numbers of a step. So the objective is attached to the
trainer that ms-swift's pipeline builds. ``swift`` is imported by the call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor

from numerate.checks import public_dir
from numerate.integrations.asked import Asked
from numerate.integrations.lazy_logits import override
from numerate.integrations.of_logits import LogitsAttachment
from numerate.integrations.section import Section
from numerate.integrations.step import reads_complete_numbers

if TYPE_CHECKING:
    from numerate.integrations.attachment import Attachment

__all__ = ["attach", "main", "train"]
__dir__ = public_dir(globals())

_PIPELINES = {"sft": "swift.pipelines.train.sft.SwiftSft", "pt": "swift.pipelines.train.pretrain.SwiftPretrain"}
_USAGE = "expected: python -m numerate.integrations.swift sft config.yaml, or pt in place of sft"


def attach(trainer: Any, loss: Any = None, **options: Any) -> Attachment:
    """Train with a numeric loss from now on; for :func:`numerate.attach`, with ms-swift's ``Seq2SeqTrainer``.

    Logits are built: ms-swift passes no labels to a model whose trainer has a loss of its own.

    Args:
        trainer: the trainer of a causal model.
        loss: as for :func:`numerate.attach`.
        **options: as for :func:`numerate.attach`, without ``soft`` and ``numbers``.
    """
    return _SwiftAttachment(trainer, Asked(loss, **options))


class _SwiftAttachment(LogitsAttachment):
    def _refuse(self, trainer: Any) -> None:
        if not any(kind.__module__.startswith("swift.") and kind.__name__ == "Seq2SeqTrainer" for kind in type(trainer).__mro__):
            raise TypeError(
                f"trainer is a {type(trainer).__name__}: expected ms-swift's Seq2SeqTrainer, for task_type causal_lm."
            )
        if (size := trainer.template.sequence_parallel_size) > 1:
            raise NotImplementedError(f"sequence_parallel_size={size} cuts sequences, and the numbers in them: expected 1.")
        if trainer.args.enable_dft_loss:
            raise ValueError("enable_dft_loss weighs each token by its probability, and the objective does not: leave it out.")
        super()._refuse(trainer)

    def _change_trainer(self, trainer: Any) -> None:
        if self.soft is not None:
            raise ValueError("soft and numbers change rows, which ms-swift's templates encode: leave them out.")
        super()._change_trainer(trainer)
        if reads_complete_numbers(self.objective.numeric_loss):
            # ms-swift leaves out rows without a label before the head, which would join the numbers on either side.
            self._undo.append(override(trainer.args, "use_logits_to_keep", False))

    def _loss(self, outputs: Any, labels: Any, num_items_in_batch: Any = None, **options: Any) -> Tensor:
        if options.get("loss_scale") is not None:
            raise NotImplementedError("loss_scale gives tokens weights, which is not supported: expected --loss_scale default.")
        return super()._loss(outputs, labels, num_items_in_batch)

    def _will_be_multiplied(self, num_items_in_batch: Any) -> bool:
        return super()._will_be_multiplied(num_items_in_batch) and bool(self.trainer.model_accepts_loss_kwargs)


def train(method: str, argv: Sequence[str]) -> Any:
    """Run a pipeline of ms-swift with the arguments of its command line, ``--numerate`` and the section as JSON among them.

    Args:
        method: ``"sft"`` or ``"pt"``.
        argv: the arguments after it.
    """
    section, argv = _section(argv)
    module, _, name = _PIPELINES[method].rpartition(".")
    pipeline: Any = getattr(import_module(module), name)

    class Numeric(pipeline):  # type: ignore[misc]
        def train(self, trainer: Any) -> Any:
            if self.args.use_ray:
                raise NotImplementedError("use_ray trains in other processes, without the numeric term: leave it out.")
            section.attach(trainer, by=attach)
            return super().train(trainer)

    return Numeric(argv).main()


def _section(argv: Sequence[str]) -> tuple[Section, list[str]]:
    """Take the section out of the arguments."""
    argv = list(argv)
    if argv.count("--numerate") != 1 or argv[-1] == "--numerate":
        raise ValueError('the arguments have no section `numerate`: expected it in the YAML, or --numerate \'{"loss": "smmd"}\'.')
    at = argv.index("--numerate")
    try:
        given = json.loads(argv[at + 1])
    except json.JSONDecodeError:
        given = argv[at + 1]
    section = Section.of(given)
    section.refuse_soft("ms-swift")
    return section, argv[:at] + argv[at + 2 :]


def main() -> None:
    """Run ``python -m numerate.integrations.swift sft config.yaml``."""
    method, *argv = sys.argv[1:] or [""]
    if method not in _PIPELINES:
        raise SystemExit(_USAGE)
    cli: Any = import_module("swift.cli.main")
    cli.parse_yaml_args(argv)
    _section(argv)  # wrong ones are found before processes start
    launched = cli.get_torchrun_args()
    if launched is None or "LOCAL_RANK" in os.environ:
        train(method, argv)
        return
    command = [sys.executable, "-m", "torch.distributed.run", *launched, "-m", "numerate.integrations.swift", method, *argv]
    raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
