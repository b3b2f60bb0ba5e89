r"""Metrics of distributions: over the numeric tokens at each position, or over sampled answers.

With p a distribution over the numeric tokens, v their values, t the target token, y = v_t its value, and X, X' drawn
from p independently:

    crps                E|X - y| - E|X - X'| / 2            continuous ranked probability score; in the unit of v
    nll                 -log p_t                            in nats; infinite where p_t = 0
    brier               sum_i (p_i - 1[i = t])^2            from 0 to 2
    entropy             -sum_i p_i log p_i                  in nats
    numeric_mass        the probability of the numeric tokens in the softmax over all tokens
    calibration_error   sum_b n_b / P |a_b - c_b|           bins b of the confidence max p: n_b positions, mean confidence c_b,
                                                            and the share a_b of them whose likeliest token is the target

    sample_crps         mean_k |x_k - y| - mean_kl |x_k - x_l| / 2
    interval_coverage   1 if y lies between the quantiles (1 - level) / 2 and (1 + level) / 2 of the samples

The log-likelihood of the target among all tokens is ``-nll + log(numeric_mass)``. Sizes: P positions, N numeric tokens,
V all tokens, E examples, K samples of each. Functions return one float64 value per position or example;
``DISTRIBUTION_METRICS`` has them by name. :func:`number_distribution` makes a distribution of sampled texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from numerate.answers.extract import EXTRACTORS
from numerate.answers.numerals import number
from numerate.checks import check_choice, check_integer
from numerate.distribution import NumberDistribution

Floats = npt.NDArray[np.float64]
MetricInputs = Literal["probabilities", "logits", "samples"]


def numeric_probabilities(logits: npt.ArrayLike, token_ids: npt.ArrayLike) -> Floats:
    """Return the softmax over the numeric tokens alone: ``[P, V]``, ``[N]`` -> ``[P, N]``.

    Examples:
        >>> numeric_probabilities([[0.0, 0.0, 5.0]], [0, 1]).tolist()
        [[0.5, 0.5]]
    """
    scores = _check_logits(logits)
    return _softmax(scores[:, _check_ids(token_ids, scores.shape[1])])


def numeric_mass(logits: npt.ArrayLike, token_ids: npt.ArrayLike) -> Floats:
    """Return the total probability of the numeric tokens: ``[P, V]``, ``[N]`` -> ``[P]``.

    Examples:
        >>> numeric_mass([[0.0, 0.0, 0.0, 0.0]], [0, 1]).tolist()
        [0.5]
    """
    scores = _check_logits(logits)
    mass: Floats = _softmax(scores)[:, _check_ids(token_ids, scores.shape[1])].sum(-1)
    return mass


def crps(probabilities: npt.ArrayLike, values: npt.ArrayLike, targets: npt.ArrayLike) -> Floats:
    """Return the continuous ranked probability score: ``[P, N]``, ``[N]``, ``[P]`` -> ``[P]``.

    Computed as the integral of ``(F(x) - 1[x >= y])^2``, F the cumulative distribution, which is equal.

    Args:
        probabilities: over the numeric tokens; each row sums to 1.
        values: values of the tokens, in any order, repeats allowed.
        targets: index of the right token among the N.

    Examples:
        >>> crps([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], [0.0, 1.0, 2.0], [0, 0]).tolist()
        [0.5, 1.0]
    """
    p, v, t = _check_probabilities(probabilities, values, targets)
    order = np.argsort(v, kind="stable")
    below = p[:, order].cumsum(-1)[:, :-1]  # [P, N-1], P(X <= v_i) up to the next larger value
    reached = v[order][:-1] >= v[t][:, None]
    score: Floats = (np.square(below - reached) * np.diff(v[order])).sum(-1)
    return score


def nll(probabilities: npt.ArrayLike, values: npt.ArrayLike, targets: npt.ArrayLike) -> Floats:
    """Return the negative log-likelihood of the target among the numeric tokens; arguments as in :func:`crps`.

    Examples:
        >>> nll([[0.5, 0.5, 0.0]], [0, 1, 2], [1]).round(4).tolist()
        [0.6931]
    """
    p, _, t = _check_probabilities(probabilities, values, targets)
    with np.errstate(divide="ignore"):
        likelihood: Floats = np.log(p[np.arange(len(t)), t])
    return np.abs(likelihood)


def brier(probabilities: npt.ArrayLike, values: npt.ArrayLike, targets: npt.ArrayLike) -> Floats:
    """Return the Brier score over the numeric tokens; arguments as in :func:`crps`.

    Examples:
        >>> brier([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [0, 1, 2], [1, 1]).tolist()
        [0.5, 2.0]
    """
    p, _, t = _check_probabilities(probabilities, values, targets)
    p[np.arange(len(t)), t] -= 1
    score: Floats = np.square(p).sum(-1)
    return score


def entropy(probabilities: npt.ArrayLike, values: npt.ArrayLike, targets: npt.ArrayLike) -> Floats:
    """Return the entropy of the distribution over the numeric tokens; arguments as in :func:`crps`.

    Examples:
        >>> entropy([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], [0, 1, 2], [1, 1]).round(4).tolist()
        [0.6931, 0.0]
    """
    p, _, _ = _check_probabilities(probabilities, values, targets)
    spread: Floats = (p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
    return np.abs(spread)


class Calibration(NamedTuple):
    """Expected calibration error, and the bins of a reliability plot; both shares of an empty bin are NaN."""

    error: float
    edges: Floats
    """``[bins + 1]``; a bin includes its upper edge, but not its lower one."""

    counts: npt.NDArray[np.int64]
    confidence: Floats
    accuracy: Floats


def calibration_error(
    probabilities: npt.ArrayLike, values: npt.ArrayLike, targets: npt.ArrayLike, *, bins: int = 15
) -> Calibration:
    """Return the expected calibration error of the likeliest numeric token (Guo et al. 2017); arguments as in :func:`crps`.

    Two tokens of the same value, such as ``7`` with and without a space, count separately. Ties go to the first token.

    Examples:
        >>> result = calibration_error([[0.8, 0.2]] * 4, [0, 1], [0, 0, 0, 1], bins=5)
        >>> round(result.error, 3), result.counts.tolist()
        (0.05, [0, 0, 0, 4, 0])
    """
    bins = check_integer("bins", bins, "a whole number >= 1", least=1)
    p, _, t = _check_probabilities(probabilities, values, targets)
    sure, right = p.max(-1), p.argmax(-1) == t
    edges = np.linspace(0, 1, bins + 1)
    bin_of = np.searchsorted(edges[1:-1], sure, side="left")
    counts = np.bincount(bin_of, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(bin_of, sure, bins) / counts
        accuracy = np.bincount(bin_of, right, bins) / counts
    error = np.nansum(counts * np.abs(accuracy - confidence)) / len(t)
    return Calibration(float(error), edges, counts, confidence, accuracy)


def sample_crps(samples: npt.ArrayLike, golds: npt.ArrayLike) -> Floats:
    """Return the continuous ranked probability score of sampled answers: ``[E, K]``, ``[E]`` -> ``[E]``.

    A sample without an answer is NaN and makes the score of its example infinite.

    Examples:
        >>> sample_crps([[1.0, 3.0], [2.0, 2.0], [2.0, float("nan")]], [2.0, 2.0, 2.0]).tolist()
        [0.5, 0.0, inf]
    """
    x, y = _check_samples(samples, golds)
    missing = np.isnan(x.min(-1))  # [E]
    x = np.sort(np.where(missing[:, None], 0.0, x), -1)
    k = x.shape[1]
    # The gap above the i-th sorted sample lies between i (k - i) of the k^2 / 2 pairs.
    ranks = np.arange(1, k)
    spread = (np.diff(x) * (ranks * (k - ranks))).sum(-1) / k**2
    return np.where(missing, np.inf, np.abs(x - y[:, None]).mean(-1) - spread)


def interval_coverage(samples: npt.ArrayLike, golds: npt.ArrayLike, *, level: float = 0.9) -> Floats:
    """Return 1 if the gold number lies in the central interval of the samples, else 0: ``[E, K]``, ``[E]`` -> ``[E]``.

    The i-th of K samples is taken as the quantile i / (K + 1), and quantiles between samples are interpolated. If gold and
    samples have the same distribution, the mean is ``level`` (nearly, with interpolation). An example with a missing sample
    (NaN) is not covered.

    Examples:
        >>> samples = [[float(k) for k in range(1, 20)]] * 3
        >>> interval_coverage(samples, [1.0, 10.0, 19.5]).tolist()
        [1.0, 1.0, 0.0]
    """
    x, y = _check_samples(samples, golds)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is out of range: expected a number between 0 and 1, such as 0.9.")
    least = int(np.ceil(round((1 + level) / (1 - level), 9)))
    if x.shape[1] < least:
        raise ValueError(
            f"samples has K={x.shape[1]} of each example, too few for an interval of level={level!r}: expected at least "
            f"{least}. Draw more, or lower the level."
        )
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(x, [(1 - level) / 2, (1 + level) / 2], axis=-1, method="weibull")  # [E] each, NaN for NaN
    return np.where((low <= y) & (y <= high), 1.0, 0.0)


def number_distribution(texts: Iterable[str], *, extractor: str | Callable[[str], Any] = "last_number") -> NumberDistribution:
    """Return the distribution of the numbers in sampled answers; a text without a number counts as ``no_number``.

    Args:
        texts: answers of any model or server to the same prompt.
        extractor: a name in ``EXTRACTORS`` whose answers are numbers, or a function from a text to a number or None. With
            ``"gsm8k_flexible"`` and ``"gsm8k_strict"`` the texts are worked solutions, of which the last number counts.

    Examples:
        >>> number_distribution(["It is 12.", "About 12.5", "12", "no idea"])
        NumberDistribution(2 values 12..12.5: median 12, 90 % in 12..12.5, covered 0.75)
        >>> number_distribution(["2 + 3 = 5 #### 5", "2 * 3 = 6 #### 6", "so it is 5."], extractor="gsm8k_flexible").mode
        Decimal('5')
    """
    if isinstance(texts, str):
        raise TypeError(f"texts={texts!r:.80} is one text: expected a list of sampled answers; use [text].")
    if not callable(extractor):
        check_choice("extractor", extractor, [*EXTRACTORS])
        found = [EXTRACTORS[extractor](text) for text in texts]
        # GSM8K's rules give a text, which may be no number.
        return NumberDistribution.from_samples([number(one) if isinstance(one, str) else one for one in found])
    return NumberDistribution.from_samples([extractor(text) for text in texts])


@dataclass(frozen=True)
class DistributionMetric:
    """A named metric of distributions, with the facts that a report needs."""

    name: str
    function: Callable[..., Any]
    inputs: MetricInputs
    """``"probabilities"``: probabilities, values, targets. ``"logits"``: logits, token_ids. ``"samples"``: samples, golds."""

    higher_is_better: bool | None
    """None if neither is: coverage should equal the level, and entropy should be low only for right answers."""

    unit: str
    description: str

    def __call__(self, *arrays: npt.ArrayLike, **settings: Any) -> Any:
        """Call the function."""
        return self.function(*arrays, **settings)


_TABLE: tuple[tuple[Callable[..., Any], MetricInputs, bool | None, str, str], ...] = (
    (crps, "probabilities", False, "that of the values", "distance of the distribution from the target value"),
    (nll, "probabilities", False, "nats", "negative log-likelihood of the target among the numeric tokens"),
    (brier, "probabilities", False, "", "squared distance from certainty of the target token"),
    (entropy, "probabilities", None, "nats", "spread of the distribution over the numeric tokens"),
    (calibration_error, "probabilities", False, "", "gap between confidence and accuracy"),
    (numeric_mass, "logits", True, "", "probability of all numeric tokens together"),
    (sample_crps, "samples", False, "that of the gold numbers", "distance of the samples"),
    (interval_coverage, "samples", None, "", "the samples' interval holds the gold"),
)
DISTRIBUTION_METRICS: dict[str, DistributionMetric] = {
    function.__name__: DistributionMetric(function.__name__, function, inputs, higher_is_better, unit, description)
    for function, inputs, higher_is_better, unit, description in _TABLE
}
"""Measures of probabilities and samples, by name."""


def _check_probabilities(probabilities: Any, values: Any, targets: Any) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    p, v, t = np.asarray(probabilities, np.float64), np.asarray(values, np.float64), np.asarray(targets)
    if p.ndim != 2 or v.shape != p.shape[1:] or t.shape != p.shape[:1] or not p.size:
        raise ValueError(
            f"probabilities has shape {p.shape}, values {v.shape} and targets {t.shape}: expected [P, N], [N] and [P], with at "
            "least one position and one token."
        )
    if not np.issubdtype(t.dtype, np.integer) or t.min() < 0 or t.max() >= len(v):
        raise ValueError(
            f"targets has dtype {t.dtype} and values from {t.min()} to {t.max()}: expected indices of the {len(v)} tokens, "
            "0 to N - 1. Use NumericVocab.index_of, and drop positions where it returns -1."
        )
    if not np.isfinite(v).all():
        raise ValueError("values contains NaN or infinity: expected finite numbers.")
    total = p.sum(-1, keepdims=True)
    # Softmax in half precision sums to 1 within about 1e-3.
    if not (np.isfinite(p).all() and (p >= 0).all() and (np.abs(total - 1) < 1e-2).all()):
        raise ValueError(
            f"probabilities has a row that is not a distribution: the smallest entry is {p.min()}, and the sums range from "
            f"{total.min()} to {total.max()}: expected numbers >= 0 with sum 1. Use numeric_probabilities(logits, token_ids)."
        )
    return p / total, v, t


def _check_logits(logits: Any) -> Floats:
    scores = np.asarray(logits, np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"logits has shape {scores.shape}: expected [P, V], with at least one position and one token.")
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError("logits contains NaN or positive infinity: expected finite numbers, or -inf for an excluded token.")
    return scores


def _softmax(scores: Floats) -> Floats:
    largest = scores.max(-1, keepdims=True)
    if np.isneginf(largest).any():
        raise ValueError(
            "logits has a position where all selected tokens are -inf: expected at least one finite. Drop that position."
        )
    weights: Floats = np.exp(scores - largest)
    weights /= weights.sum(-1, keepdims=True)
    return weights


def _check_ids(token_ids: Any, size: int) -> npt.NDArray[np.int64]:
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or not ids.size or not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= size:
        raise ValueError(
            f"token_ids={token_ids!r:.80} does not fit logits of V={size}: expected [N] whole numbers from 0 to V - 1; "
            "use vocab.token_ids."
        )
    return ids


def _check_samples(samples: Any, golds: Any) -> tuple[Floats, Floats]:
    x, y = np.asarray(samples, np.float64), np.asarray(golds, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
        raise ValueError(
            f"samples has shape {x.shape} and golds {y.shape}: expected [E, K] and [E], with at least one example and one sample."
        )
    if not np.isfinite(y).all() or np.isinf(x).any():
        raise ValueError(
            "golds or samples contains a number that is not finite: expected finite numbers, or NaN for a missing sample."
        )
    return x, y
