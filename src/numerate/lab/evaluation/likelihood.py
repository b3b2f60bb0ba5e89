"""How likely a model finds the gold answer: its numbers, and the rest of its text.

A numeric loss should make numbers better and leave the text as it is. Exact answers show only the first, so evaluation also has
the mean negative log-likelihood per token of an answer's numeric tokens (``number_nll``) and of all its other tokens, the end of
the answer among them (``text_nll``). Numeric tokens are those that the losses read: digits, without signs and points.

Measured for tasks whose answer is more than one number, such as a worked solution. Every example counts alike, however long its
answer is. An answer without tokens of a kind has 0 for it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from numerate.lab.data import Task

NUMBER_NLL: Literal["number_nll"] = "number_nll"
TEXT_NLL: Literal["text_nll"] = "text_nll"
LIKELIHOODS = {
    NUMBER_NLL: "mean negative log-likelihood per numeric token of the gold answer",
    TEXT_NLL: "mean negative log-likelihood per token of the gold answer that is not numeric, its end included",
}

Likelihoods = dict[str, float]


def has_text(task: Task) -> bool:
    """Return whether answers of a task hold more than one number."""
    return task.answer_is != "one number"


def likelihoods(nll: Tensor, numeric: Tensor) -> Likelihoods:
    """Return the metrics of one answer, from the negative log-likelihood ``[A]`` of its tokens and the mask of numeric ones.

    Examples:
        >>> import torch
        >>> likelihoods(torch.tensor([0.5, 1.0, 2.0, 0.0]), torch.tensor([False, True, True, False]))
        {'number_nll': 1.5, 'text_nll': 0.25}
    """
    kinds = {NUMBER_NLL: nll[numeric], TEXT_NLL: nll[~numeric]}
    return {name: float(own.mean()) if len(own) else 0.0 for name, own in kinds.items()}
