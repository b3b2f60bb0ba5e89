"""SMMD, Smooth Maximum Mean Discrepancy: a kernel distance between prediction and label, plus a graph smoothness term.

With p the softmax over the numeric tokens, r = p - e_t, K the gram and D = diag(K·1):

    mmd     r' K r                      distance of p from the target under the kernel
    smooth  r' (D - K) r                ½ Σ K_ij (r_i - r_j)²: similar values should have similar errors
    smmd    mmd + alpha · smooth        alpha = 1 / (2 · mean degree)

Zuo, Yue, Zheng, Wang, Liu: Enhancing Numerical Prediction in LLMs via Smooth MMD Alignment, ICML 2026, arXiv:2606.27731.

Known weaknesses: tokens at the ends of the number line have fewer neighbours and thus a smaller degree, so that for the label 0,
predicting 9 costs less than predicting 6. With ``squash`` on a thousand tokens, the gram is flat near the target: errors of 1
and 10 cost the same within 2 %. ``variant="repaired"`` fixes both: it gives every token the mean degree, and averages the sigmas
2, 20, 200, .. up to the range of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_number, choices
from numerate.losses.base import MOST_FACTOR, NumericLoss, Suitability, TokenSettings, check_vocab
from numerate.losses.kernels import (
    KERNELS,
    Ablation,
    Kernel,
    check_gram,
    distances,
    gram_matrix,
    random_gram,
    shuffled_values,
    squashed,
)
from numerate.losses.logit_rows import residual
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Terms = Literal["smmd", "mmd", "smooth"]
SMMDVariant = Literal["paper", "released", "repaired"]


def smmd_matrix(gram: Tensor, alpha: float, degree: Tensor | None = None, terms: Terms = "smmd") -> Tensor:
    """Return M ``[N, N]`` of the cost ``r' M r``: ``(1 - alpha) K + alpha D``. ``degree [N]`` defaults to the gram's row sums.

    ``terms="smooth"`` includes the factor alpha, so that the two terms add up to ``"smmd"``.
    """
    of_gram, of_degree = {"mmd": (1.0, 0.0), "smooth": (-alpha, alpha), "smmd": (1 - alpha, alpha)}[terms]
    matrix = of_gram * gram
    matrix.diagonal().add_(gram.sum(-1) if degree is None else degree, alpha=of_degree)
    return matrix


def smmd_loss(logits: Tensor, target: Tensor, matrix: Tensor) -> Tensor:
    """Return SMMD ``[P]`` of logits ``[P, N]``, target index ``[P]`` and :func:`smmd_matrix` ``[N, N]``."""
    r = residual(logits, target)  # [P, N]
    if torch.compiler.is_compiling():
        return ((r @ matrix) * r).sum(-1)
    return _QuadraticForm.apply(r, matrix)  # type: ignore[no-any-return, no-untyped-call]


class _QuadraticForm(torch.autograd.Function):
    """``r' M r`` of each row, M symmetric. The backward pass reuses the product ``M r`` of the forward pass."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, matrix: Tensor) -> Tensor:
        """Compute ``M r`` once."""
        product = r @ matrix
        ctx.save_for_backward(r, matrix, product)
        return (product * r).sum(-1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Return ``2 M r``; recomputed only for second derivatives."""
        r, matrix, product = ctx.saved_tensors
        if torch.is_grad_enabled():
            product = r @ matrix
        return 2 * upstream[:, None] * product, None


class SMMDLoss(NumericLoss):
    """Smooth Maximum Mean Discrepancy; the formula is at the top of this module.

    Args:
        vocab: the numeric tokens.
        sigma: width of the kernel in units of value, or several to average over. None: 2, or for ``variant="repaired"`` 2,
            20, 200, .. up to the range of values.
        alpha: weight of the smoothness term. None: ``1 / (2 · mean degree)``.
        terms: ``"smmd"``, or one of its terms alone: ``"mmd"``, ``"smooth"``.
        kernel: ``"gaussian"``, ``"laplacian"``, ``"energy"``, or a custom gram ``[N, N]``.
        squash: rescale distances to 1..squash, a number > 1; None: off. ``"auto"``: 9, which has no effect on ten digits, or
            None for ``variant="repaired"``.
        variant: ``"paper"``: the paper's formula on every numeric token. ``"released"``: reproduces the published code: tokens
            ``0`` .. ``max_value`` without leading zero or space, and costs below 0 set to 0. ``"repaired"``: fixes the two
            weaknesses described at the top of this module.
        ablation: controls without a number line: ``"random"`` (a gram that ignores the values) or ``"shuffled"`` (values
            permuted). A random gram has negative entries, so its smoothness term may be below 0. None: off.
        seed: seed of the ablation.
        max_value: drop tokens of a larger value. None: keep all, or 999 for ``variant="released"``.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> near, far = torch.full((2, 1, 10), -30.0)
        >>> near[0, 4], far[0, 9] = 30.0, 30.0
        >>> loss, label = SMMDLoss(vocab), torch.tensor([5])
        >>> bool(loss(near, label) < loss(far, label))
        True
    """

    name = "smmd"
    sees = "Similarity of each bar to the target: small errors cost little, all large errors about the same."
    strictly_proper = True
    gram: Tensor
    whole: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        sigma: float | Sequence[float] | None = None,
        alpha: float | None = None,
        terms: Terms = "smmd",
        kernel: Kernel | Tensor = "gaussian",
        squash: float | Literal["auto"] | None = "auto",
        variant: SMMDVariant = "paper",
        ablation: Ablation | None = None,
        seed: int = 42,
        max_value: int | None = None,
        **shared: Unpack[TokenSettings],
    ) -> None:
        check_choice("variant", variant, choices(SMMDVariant))
        if max_value is not None:
            check_number("max_value", max_value)
        if variant == "released" or max_value is not None:
            vocab = check_vocab(vocab).restrict(canonical_only=variant == "released", max_value=max_value)
        super().__init__(vocab, **shared)
        check_choice("terms", terms, choices(Terms))
        check_choice("ablation", ablation, (None, *choices(Ablation)))
        self.terms: Terms = terms
        self.variant: SMMDVariant = variant
        if isinstance(squash, str):
            if squash != "auto":
                raise ValueError(f"squash={squash!r} is not known: expected a number > 1, None or 'auto'.")
            squash = None if variant == "repaired" else 9.0
        distance = squashed(distances(vocab.values if ablation != "shuffled" else shuffled_values(vocab.values, seed)), squash)
        if sigma is None:
            sigma = decades(float(distance.max())) if variant == "repaired" else 2.0
        self.sigma, self.squash = sigma, squash
        gram = self._gram(kernel, distance, sigma, ablation, seed)
        degree = gram.sum(-1)
        self.alpha = float(0.5 / degree.mean().clamp_min(1e-12))
        if alpha is not None:
            self.alpha = check_number("alpha", alpha, least=0.0, most=MOST_FACTOR)
        if variant == "repaired":
            degree = degree.mean().expand_as(degree)
        self.keep("gram", gram)
        whole = smmd_matrix(gram, self.alpha, degree, terms)
        self.keep_matrix("whole", whole)
        # Cost of a one-hot i where j is true: r has a 1 and a -1, so r'Mr is M_ii + M_jj - 2 M_ij.
        self.set_worst((whole.diagonal()[:, None] + whole.diagonal()).sub_(whole, alpha=2).max())

    @staticmethod
    def _gram(
        kernel: Kernel | Tensor, distance: Tensor, sigma: float | Sequence[float], ablation: Ablation | None, seed: int
    ) -> Tensor:
        """Return K ``[N, N]``, float64."""
        if isinstance(kernel, Tensor):
            return check_gram(kernel, distance.shape[0])
        if not isinstance(kernel, str):
            raise TypeError(
                f"kernel is a {type(kernel).__name__}: expected one of {', '.join(map(repr, KERNELS))}, or a torch tensor "
                "[N, N]; use torch.as_tensor(kernel)."
            )
        check_choice("kernel", kernel, choices(Kernel))
        return random_gram(distance.shape[0], seed) if ablation == "random" else gram_matrix(distance, kernel, sigma)

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """Return the loss with ``variant="released"``, which reproduces the published code."""
        return cls(vocab, variant="released", **settings)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Fair for many values: the cost is flat near the target."""
        if vocab.size > 100:
            return "fair", "flat near the target: use variant='repaired', which separates errors of 1 and 10"
        return "good", ""

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`smmd_loss`."""
        cost = smmd_loss(z, target, self.matrix("whole", z.dtype))
        return cost.relu() if self.variant == "released" else cost


def decades(span: float) -> tuple[float, ...]:
    """Return 2, 20, 200, .. up to ``span``."""
    sigmas = [2.0]
    while sigmas[-1] * 10 <= span:
        sigmas.append(sigmas[-1] * 10)
    return tuple(sigmas)
