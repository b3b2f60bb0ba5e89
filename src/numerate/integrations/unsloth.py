"""Unsloth: ``attach(trainer, "smmd")`` for the ``SFTTrainer`` of its models.

Unsloth's models compute their cross-entropy in the forward pass, from hidden states, and return no logits with it. The trainer
therefore passes them no labels: they return logits, from which the objective is computed in the same forward pass. Logits of the
batch are built, which Unsloth otherwise avoids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from numerate.checks import public_dir
from numerate.integrations.asked import Asked
from numerate.integrations.of_logits import LogitsAttachment
from numerate.integrations.transformers import refuse_router

if TYPE_CHECKING:
    from numerate.integrations.attachment import Attachment

__all__ = ["attach"]
__dir__ = public_dir(globals())


def attach(trainer: Any, loss: Any = None, **options: Any) -> Attachment:
    """Train with a numeric loss, soft labels, or both from now on; for :func:`numerate.attach`, with Unsloth's trainers.

    Args:
        trainer: an ``SFTTrainer`` or ``Trainer`` with a model of ``FastLanguageModel``.
        loss: as for :func:`numerate.attach`.
        **options: as for :func:`numerate.attach`: ``soft``, ``weight``, ``numbers``, ``tokenizer``, ``seed``, ``path``, ``check``
            and ``format``.
    """
    return _UnslothAttachment(trainer, Asked(loss, **options))


class _UnslothAttachment(LogitsAttachment):
    def _loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None, **_: Any) -> Tensor:
        refuse_router(outputs)
        return super()._loss(outputs, labels, num_items_in_batch)
