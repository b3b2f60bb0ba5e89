"""attach: one line that gives a trainer of the Hugging Face family a numeric loss, soft labels, or both."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from numerate.formats import NumberFormat
from numerate.integrations.asked import Asked
from numerate.losses import NumericLoss
from numerate.objective import NumericObjective
from numerate.targets import SoftNumbers, Target
from numerate.targets.soft_numbers import PathKind, Where

if TYPE_CHECKING:
    from numerate.integrations.attachment import Attachment


def attach(
    trainer: Any,
    loss: str | NumericLoss | NumericObjective | None = None,
    *,
    soft: float | bool | Target | SoftNumbers | None = None,
    weight: float | None = None,
    numbers: Where | re.Pattern[str] | None = None,
    tokenizer: Any = None,
    seed: int | None = None,
    path: PathKind = "drawn",
    check: bool = True,
    format: NumberFormat | str | None = None,
) -> Attachment:
    """Train with a numeric loss, soft labels, or both from now on. ``.detach()`` of the result restores the trainer.

    For ``Trainer``, ``Seq2SeqTrainer`` and TRL's ``SFTTrainer``, with or without PEFT. One line is logged that says what is
    trained, and how many of the first rows have a number; none is an error.

    **Loss.** The numeric term is divided by the numbers of the whole optimizer step, over all its micro-batches and processes.
    The logs gain ``loss/cross_entropy``, ``loss/numeric``, ``numeric/share`` (of label tokens that are numeric), ``numeric/mass``
    (probability on numeric tokens where the label is one) and ``numeric/overrun`` (the same at the first label after a number, in
    the logged step alone: near 1, numbers do not end). The first batch of a ``Trainer`` is used to compare the model's own
    loss with the cross-entropy of its logits: this shows how the model aligns its labels; a model whose loss is something else
    is refused.

    **Soft labels.** The trainer's training rows become a :class:`~numerate.targets.DrawnDataset`, and its collator a
    :class:`~numerate.targets.SoftCollator`: numbers are drawn anew in each epoch. Labels of evaluations stay as they are. Rows
    that become tokens in the collator, such as messages with pictures or pairs of texts, are drawn after it.

    Batches may also carry soft targets (:class:`~numerate.targets.SoftTargets`), ``token_weights`` and ``position_weights`` of
    their own. The objective gets them, and the model does not.

    Args:
        trainer: with its model and data.
        loss: a name of :data:`numerate.LOSSES`, a numeric loss, or a :class:`~numerate.NumericObjective`; None for cross-entropy.
        soft: how uncertain labels are: a share, such as 0.05 for 5 % off; True to choose it by the labels with
            :func:`~numerate.targets.suitable_width`; a target such as ``nm.Bell(width=3)`` or ``nm.Ratings("column")``; or
            :class:`~numerate.targets.SoftNumbers`.
        weight: λ of a loss that is no objective.
        numbers: the numbers that are meant, as ``where`` of :class:`~numerate.targets.SoftNumbers`: ``"answer"``, ``"all"``,
            ``"marked"`` or a pattern. Soft labels and numeric loss then apply to these alone. Default: soft labels apply to
            the last number of each answer, and a loss to all numeric tokens.
        tokenizer: that made the rows. Default: ``processing_class`` of the trainer, else the tokenizer of its collator.
        seed: of the draws. Default: ``data_seed`` of the training arguments, else ``seed``.
        path: as in :class:`~numerate.targets.DrawnDataset`.
        check: whether to look for numbers in the first rows.
        format: how the numbers of the rows are written, if not as usual: a :class:`~numerate.formats.NumberFormat`, or a kind
            such as ``"spaced"``. Soft labels are drawn in it, and losses read the places of digits from it.

    Example::

        attach(trainer, soft=0.05)  # labels may be off by 5 %
        attach(trainer, soft=nm.Ratings("ratings"))  # several people's ratings, from a column
        attach(trainer, "smmd", weight=0.3)  # a published loss
        attach(trainer, nm.NumericObjective(nm.SMMDLoss(vocab, sigma=1), normalize="tokens"))
    """
    _check_trainer(trainer)
    asked = Asked(loss, soft, weight, numbers, tokenizer, seed, path, check, format)
    home, name = ("trl", "SFTAttachment") if _builds_no_logits(type(trainer)) else ("transformers", "TrainerAttachment")
    attachment: Attachment = getattr(import_module(f"numerate.integrations.{home}"), name)(trainer, asked)
    return attachment


def of_trl(kind: type) -> str | None:
    """Return the name of the trainer of TRL that a class is, or is derived from."""
    names = (cls.__name__ for cls in kind.__mro__ if cls.__module__.split(".")[0] == "trl")
    return next((name for name in names if name != "_BaseTrainer"), None)


def _builds_no_logits(kind: type) -> bool:
    """Return whether this is TRL's SFTTrainer as it is since 1.15; before that, its loss is that of a transformers Trainer."""
    if of_trl(kind) != "SFTTrainer":
        return False
    from packaging.version import Version

    return Version(version("trl")) >= Version("1.15")


def _check_trainer(trainer: Any) -> None:
    """Raise unless it is a transformers Trainer; none exists before transformers is imported."""
    loaded = sys.modules.get("transformers")
    if loaded is not None and isinstance(trainer, loaded.Trainer):
        return
    import torch

    remedy = "call attach(Trainer(model, args, train_dataset=dataset), ...)"
    if isinstance(trainer, torch.utils.data.DataLoader):
        remedy = "for a loop of your own, use numerate.integrations.loop.attach"
    elif any(cls.__module__.startswith(("lightning.", "pytorch_lightning.")) for cls in type(trainer).__mro__):
        remedy = "for Lightning, use numerate.integrations.lightning.attach"
    elif not isinstance(trainer, torch.nn.Module):
        remedy = "call attach(trainer, ...)"
    raise TypeError(f"trainer is a {type(trainer).__name__}: expected a transformers Trainer; {remedy}.")
