"""SMMD, Smooth Maximum Mean Discrepancy: a kernel between the predicted and the true value, and a graph that smooths.

With p the softmax over the numeric tokens, r = p - e_t, K the gram and D = diag(K·1):

    mmd     r' K r                      how far p lies from the target, in the kernel's eyes
    smooth  r' (D - K) r                ½ Σ K_ij (r_i - r_j)²: neighbours should err alike
    smmd    mmd + alpha · smooth        alpha = 1 / (2 · mean degree)

Zuo, Yue, Zheng, Wang, Liu: Enhancing Numerical Prediction in LLMs via Smooth MMD Alignment, ICML 2026, arXiv:2606.27731.

The published form has two weaknesses. Tokens at the ends of the number line have fewer neighbours and so a smaller
degree, which makes a far end cheaper than the middle: for label 0, a certain 9 costs less than a certain 6. And with
``squash`` on a thousand tokens the gram is flat near the target: off by 1 and off by 10 cost the same within 2 %.
``form="repaired"`` gives every token the mean degree, and averages sigmas 2, 20, 200, .. up to the range of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from numerate.checks import check_choice, check_number, choices
from numerate.losses.base import Fit, NumericLoss, Outside
from numerate.losses.kernels import GRAMS, Ablation, checked_gram, distances, gram_matrix, random_gram, shuffled_values, squashed
from numerate.losses.rows import Places, residual
from numerate.vocab import NumericVocab

Terms = Literal["smmd", "mmd", "smooth"]
Form = Literal["published", "repaired"]


def smmd_matrix(gram: Tensor, alpha: float, degree: Tensor | None = None, terms: Terms = "smmd") -> Tensor:
    """M ``[N, N]`` of the cost ``r' M r``: ``(1 - alpha) K + alpha D``. ``degree [N]``: the gram's row sums unless given.

    ``terms="smooth"`` is weighed by alpha as well, so that the two terms add up to the whole.
    """
    of_gram, of_degree = {"mmd": (1.0, 0.0), "smooth": (-alpha, alpha), "smmd": (1 - alpha, alpha)}[terms]
    return of_gram * gram + of_degree * torch.diag(gram.sum(-1) if degree is None else degree)


def smmd_loss(logits: Tensor, target: Tensor, matrix: Tensor) -> Tensor:
    """SMMD of each row: logits ``[P, N]``, target index ``[P]``, :func:`smmd_matrix` ``[N, N]`` to ``[P]``."""
    r = residual(logits, target)  # [P, N]
    if torch.compiler.is_compiling():
        return ((r @ matrix) * r).sum(-1)
    return _QuadraticForm.apply(r, matrix)  # type: ignore[no-any-return, no-untyped-call]


class _QuadraticForm(torch.autograd.Function):
    """``r' M r`` of each row, M symmetric: its gradient ``2 M r`` was computed on the way to its value."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, matrix: Tensor) -> Tensor:
        """One product."""
        product = r @ matrix
        ctx.save_for_backward(r, matrix, product)
        return (product * r).sum(-1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """No product, unless second derivatives are asked for."""
        r, matrix, product = ctx.saved_tensors
        if torch.is_grad_enabled():
            product = r @ matrix
        return 2 * upstream[:, None] * product, None


class SMMDLoss(NumericLoss):
    """Smooth Maximum Mean Discrepancy; the formula is at the top of this module.

    Args:
        vocab: the numeric tokens.
        sigma: width of the gram in units of value, or several, averaged. None: 2 for the published form; for the
            repaired one 2, 20, 200, .. up to the range of values.
        alpha: weight of the smoothness term. None: ``1 / (2 · mean degree)``.
        terms: ``"smmd"``, or one of its terms alone: ``"mmd"``, ``"smooth"``.
        gram: ``"gaussian"``, ``"laplacian"``, ``"energy"``, or a matrix ``[N, N]`` of your own.
        squash: rescale distances to 1..squash before the gram; None, 0 or 1: do not. ``"auto"``: 9 for the published form,
            which changes nothing for ten digits, and None for the repaired one.
        form: ``"published"``, or ``"repaired"`` (see the top of this module).
        ablation: ``"random"`` (a gram that knows no values) or ``"shuffled"`` (values dealt out at random), to see
            whether the number line matters. A random gram has negative entries, and its smoothness term may fall below 0.
        seed: of the ablation.
        outside, places, place_sigma, thousands: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> near, far = torch.full((2, 1, 10), -30.0)
        >>> near[0, 4], far[0, 9] = 30.0, 30.0
        >>> loss, label = SMMDLoss(vocab), torch.tensor([5])
        >>> bool(loss(near, label) < loss(far, label))
        True
    """

    name = "smmd"
    strictly_proper = True
    gram: Tensor
    whole: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        sigma: float | Sequence[float] | None = None,
        alpha: float | None = None,
        terms: Terms = "smmd",
        gram: str | Tensor = "gaussian",
        squash: float | Literal["auto"] | None = "auto",
        form: Form = "published",
        ablation: Ablation | None = None,
        seed: int = 42,
        *,
        outside: Outside | None = None,
        places: Places = "uniform",
        place_sigma: float = 0.2,
        thousands: bool = False,
    ) -> None:
        super().__init__(vocab, outside=outside, places=places, place_sigma=place_sigma, thousands=thousands)
        check_choice("terms", terms, choices(Terms))
        check_choice("form", form, choices(Form))
        check_choice("ablation", ablation, (None, *choices(Ablation)))
        self.terms: Terms = terms
        self.clips = False
        self.form: Form = form
        values = vocab.values if ablation != "shuffled" else shuffled_values(vocab.values, seed)
        distance = distances(values)
        if isinstance(squash, str) and squash == "auto":
            squash = 9.0 if form == "published" else None
        if isinstance(squash, str):
            raise ValueError(f"squash={squash!r} is not known: expected a number > 1, None or 'auto'.")
        if squash is not None and check_number("squash", squash) not in (0, 1):
            distance = squashed(distance, squash)
        if sigma is None:
            sigma = 2.0 if form == "published" else decades(float(distance.max()))
        if not isinstance(gram, str | Tensor):
            raise TypeError(
                f"gram is a {type(gram).__name__}: expected one of {', '.join(map(repr, GRAMS))}, or a torch tensor [N, N]; "
                "use torch.as_tensor(gram)."
            )
        if isinstance(gram, Tensor):
            matrix = checked_gram(gram, vocab.size)
        else:
            check_choice("gram", gram, tuple(GRAMS))
            matrix = random_gram(vocab.size, seed) if ablation == "random" else gram_matrix(distance, gram, sigma)
        degree = matrix.sum(-1)
        self.alpha = float(0.5 / degree.mean().clamp_min(1e-12)) if alpha is None else check_number("alpha", alpha, least=0.0)
        if form == "repaired":
            degree = degree.mean().expand_as(degree)
        self._keep("gram", matrix)
        whole = smmd_matrix(matrix, self.alpha, degree, terms)
        self._keep_matrix("whole", whole)
        # Cost of a certain i where j is true: r has a 1 and a -1, so r'Mr is M_ii + M_jj - 2 M_ij.
        self.worst.copy_((whole.diagonal()[:, None] + whole.diagonal() - 2 * whole).max())

    @classmethod
    def released(cls, vocab: NumericVocab, *, max_value: int = 999, **settings: Any) -> Self:
        """What the published code computes: ``0`` .. ``max_value`` without leading zero or space, squash 9, no cost below 0."""
        loss = cls(vocab.restrict(canonical_only=True, max_value=max_value), **{"squash": 9.0, **settings})
        loss.clips = True
        return loss

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """Flat near the target where there are many values."""
        if vocab.size > 100:
            return "fair", "flat near the target: form='repaired' tells 1 from 10"
        return "good", ""

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`smmd_loss`."""
        cost = smmd_loss(z, target, self.matrix("whole", z.dtype))
        return cost.relu() if self.clips else cost


def decades(span: float, first: float = 2.0) -> tuple[float, ...]:
    """2, 20, 200, .. up to ``span``: every scale at which two values of that range can differ."""
    sigmas = [first]
    while sigmas[-1] * 10 <= span:
        sigmas.append(sigmas[-1] * 10)
    return tuple(sigmas)
