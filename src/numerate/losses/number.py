"""number: a kernel distance between the distribution over complete numbers and the label, independent of the tokenization.

The published losses work token by token, or build a number from separately chosen digits. For the label 200, 199 (three wrong
digits) costs more than 190; for 0.98, the published NTIL charges 1.01 more than 1.98. This loss compares complete numbers.

Under teacher forcing, the tokens of a number are independent given the label's prefix. The predicted number X = Σ_j w_j v_j is
thus a sum of independent parts, and its characteristic function is a product that needs no sampling:

    φ(ω) = Π_j Σ_i p_ji exp(iω w_j v_i)           w_j: place of token j, in units of the number's leading place
    cost = Σ_k a_k |φ(ω_k) - exp(iω_k Y)|²        a_k ∝ ω_k^-β

By Bochner's theorem this is the squared MMD between X and Y under the kernel Σ_k a_k cos(ω_k (x - y)): SMMD's kernel
matching, at number level as in NTIL. With β = 1 the kernel approximates the energy distance's -|x - y| between the finest and
the coarsest frequency, so a one-hot prediction costs its absolute error in units of the leading place: 1 for 300 if the label
is 200. As a kernel score it is proper; it is strictly proper if the numeric tokens have fewer distinct values than twice the
number of frequencies.

- *Scale.* Only places relative to the leading one matter: scaling label and prediction by ten leaves the cost unchanged, and a
  number may have 300 digits.
- *Sign.* At the start of a label the model predicts a minus sign or a digit. With s the probability of the minus sign,
  normalized over both, the number is -X with probability s: φ becomes (1 - s) φ + s φ*.
- *Decimal point.* Before the point, a token of another width counts by its value; after it, digits are left-aligned: 6 in place
  of 678 is 0.6.
- *Length.* A leading token longer than the label's makes the number longer, as do digits in place of padding zeros. Beyond ten
  leading places, each further digit adds ten to the value instead of multiplying it by ten, since such an error is one of
  magnitude.

Known weaknesses, left to the cross-entropy to which this loss is added: digits more than ten places below the leading one, which
change the cost by less than one part in a million; the choice between ``.`` and a digit; and most of a label like 0.000123,
whose digits are all far below its leading place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.checks import check_integer, check_number
from numerate.formats import NumberFormat
from numerate.losses.base import MOST_FACTOR, SharedSettings, Suitability
from numerate.losses.logit_rows import by_mean
from numerate.losses.number_level import NumberLevelLoss
from numerate.losses.target_tokens import NumberTargets
from numerate.spans import MOST_PADDING, put_by
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack

PER_DECADE = 10  # frequencies per decade: the next place is a shift of ten in the table of phases
DEPTH = 10  # number of places below the leading one that are scored
_TINY = 1e-15  # added to φ, so that its logarithm has a gradient where φ is 0


def number_loss(phi: Tensor, label_phi: Tensor, weight: Tensor) -> Tensor:
    """Return the squared MMD ``[S]`` of φ and the label's φ ``[S, K, 2]``, real and imaginary, with weights ``[K]``."""
    return (phi - label_phi).square().sum(-1) @ weight


class NumberLoss(NumberLevelLoss):
    """Kernel distance between the predicted number and the label; the formula is at the top of this module.

    Args:
        vocab: the numeric tokens.
        beta: exponent of the frequencies' weights ω^-beta. 1: the cost is linear in the error; closer to 0, small errors cost
            more.
        lowest: lowest frequency. Errors beyond about 1 / lowest leading places all cost the same.
        frequencies: number of frequencies, ten per decade. 44 from 0.02 reach 400, which resolves 1/400 of the leading place.
        **shared: ``outside``, ``thousands``, ``ignore_index``; see :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> def certain(number):
        ...     return torch.nn.functional.one_hot(torch.tensor([int(d) for d in number]), 10) * 80.0
        >>> loss, label = NumberLoss(vocab), torch.tensor([2, 0, 0])
        >>> [round(float(loss(certain(guess), label)), 3) for guess in ("200", "199", "190", "300")]
        [0.0, 0.009, 0.1, 1.0]
    """

    name = "number"
    sees = "The distribution over complete numbers at many scales: distance and spread."
    strictly_proper = True
    frequency: Tensor
    spectrum: Tensor
    waves: Tensor
    lead_boundaries: Tensor
    absent: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        beta: float = 1.0,
        lowest: float = 0.02,
        frequencies: int = 44,
        **shared: Unpack[SharedSettings],
    ) -> None:
        super().__init__(vocab, **shared)
        self.beta = check_number("beta", beta, least=0.0, most=MOST_FACTOR)
        lowest = check_number("lowest", lowest, above=0.0)
        frequencies = check_integer("frequencies", frequencies, "an integer >= 1", least=1)
        steps = torch.arange(frequencies, dtype=torch.float64)
        frequency = lowest * torch.pow(10.0, steps / PER_DECADE)
        weight = frequency**-self.beta
        weight[0] /= 2  # trapezoid rule
        weight = weight / (2 - 2 * frequency.cos()).mul(weight).sum()  # an error of one leading place costs 1
        if not bool(weight.isfinite().all()):
            raise ValueError(
                f"beta={beta!r}, lowest={lowest!r} and frequencies={frequencies!r} give weights that overflow float64: "
                "expected beta near 1 and lowest near 0.02."
            )
        self.keep("frequency", frequency)
        self.keep_matrix("spectrum", weight)
        self.frequencies = frequencies
        self.lead_depths = _lead_depths(vocab)
        self.keep("lead_boundaries", torch.tensor(self.lead_depths, dtype=torch.long))
        self.keep("absent", torch.tensor([1.0, 0.0], dtype=torch.float64))  # φ of a missing token
        # An ordinal vocabulary has one scale for all values: the leading place of the largest.
        top = float(vocab.values.abs().max())
        # 10 ** -324 is 0 in float64, whose smallest number is 5e-324.
        self.unit = 1.0 if vocab.composes or top == 0 else 10.0 ** math.floor(math.log10(top)) or top
        phases = self._phases(vocab, lowest).T  # [N, columns]
        self.keep_matrix("waves", torch.stack([phases.cos(), phases.sin()], -1).flatten(1))
        if vocab.minus_ids and vocab.composes:
            self.scores_signs = True
            self.read_columns(torch.cat([vocab.token_ids, torch.tensor(vocab.minus_ids)]))
        self.set_worst(4 * weight.sum())  # |φ| <= 1 for prediction and label

    def _phases(self, vocab: NumericVocab, lowest: float) -> Tensor:
        """Return ω·u of every token: as a leading token of each depth, then at lower places, before and after the point.

        A place ten times smaller is a frequency ten times lower, so the lower places share one table of frequencies that
        extends DEPTH decades further down.
        """
        values, widths = vocab.number_values / self.unit, vocab.widths.double()
        rows = [self.frequency[:, None] * lead for lead in self._leads(vocab)]
        if self.lead_depths:
            span = DEPTH * PER_DECADE + self.frequencies
            # One more decade after the point: the first digit of .5 counts in tenths.
            deep = lowest * torch.pow(10.0, (torch.arange(span + PER_DECADE, dtype=torch.float64) / PER_DECADE - DEPTH))
            rows += [deep[:span, None] * values, deep[:, None] * values * torch.pow(10.0, -widths)]
        return torch.cat(rows)

    def _leads(self, vocab: NumericVocab) -> Tensor:
        """Return the value ``[W, N]`` of every token in leading places, for leading tokens of each depth."""
        unit = torch.tensor([self.unit * 10.0**depth for depth in self.lead_depths or (0,)], dtype=torch.float64)
        lead = vocab.number_values / unit[:, None]
        return torch.where(lead > 10, 10 + 10 * torch.log10(lead.clamp_min(10.0) / 10), lead)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Good for every vocabulary; signs need a token for the minus sign."""
        return "good", "" if vocab.minus_ids or not vocab.composes else "no minus token: signs are not scored"

    def blank_unread(self, z: Tensor, targets: NumberTargets) -> Tensor:
        """Keep the rows of minus signs, which are masked but read."""
        return z if targets.rows is not None else torch.where(self.reads_rows(targets.spans)[:, None], z, 0.0)

    def number_cost(self, z: Tensor, targets: NumberTargets) -> Tensor:
        """See :func:`number_loss`."""
        *_, token_phi = self._token_phi(z, targets)
        phi = torch.view_as_real(self._product(token_phi, targets))  # [slots, K, 2]
        sign, says_minus, _ = self._signs(z, targets)  # [slots]
        flip = 1 - 2 * says_minus
        phi = phi * torch.stack([torch.ones_like(flip), flip], -1)[:, None]
        return number_loss(phi, self._label_phi(sign, targets, z.dtype), self.matrix("spectrum", z.dtype))

    @property
    def replayable(self) -> bool:
        """True with an analytic gradient."""
        return self.outside == "ignore"

    def number_gradient(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """See :meth:`NumberLevelLoss.number_gradient`."""
        spans, waves = targets.spans, self.matrix("waves", z.dtype)
        z = self.blank_unread(z, targets)
        p, column, counts, token_phi = self._token_phi(z, targets)
        phi = self._product(token_phi, targets)  # [slots, K]
        sign, says_minus, decides = self._signs(z, targets)
        flip = 1 - 2 * says_minus
        label_phi = torch.view_as_complex(self._label_phi(sign, targets, z.dtype))
        off = torch.complex(phi.real, phi.imag * flip[:, None]) - label_phi
        by_phi = 2 * self.matrix("spectrum", z.dtype) * off  # [slots, K]
        cost = torch.view_as_real(off * by_phi.conj())[..., 0].sum(-1) / 2
        if (weights := targets.number_weights) is not None:
            weights = weights.to(z.dtype)
            cost, by_phi = cost * weights, by_phi * weights[:, None]
        by_flip = (by_phi.imag * phi.imag).sum(-1)  # [slots]
        by_phi = torch.complex(by_phi.real, by_phi.imag * flip[:, None])
        # The derivative of the product w.r.t. one token's φ is the product of all others.
        by_token = targets.per_row(by_phi * phi.conj()) / token_phi.conj()
        by_wave = z.new_zeros((z.shape[0], waves.shape[1])).scatter_(-1, column, torch.view_as_real(by_token).flatten(1))
        by_p = by_wave @ waves.T  # [P, N]
        dz = p * (by_p - (p * by_p).sum(-1, keepdim=True))
        dz = torch.where(counts[:, None], dz, 0.0)
        if self.scores_signs:
            chances = z.softmax(-1)
            is_minus = torch.arange(z.shape[1], device=z.device) >= p.shape[1]
            slope = torch.where(decides, -2 * by_flip[spans.number_of.clamp_min(0)], 0.0)
            by_sign = by_mean(chances, is_minus.to(z.dtype), (chances * is_minus).sum(-1), slope)
            by_sign[:, : p.shape[1]] += dz
            dz = by_sign
        return cost.sum(), dz

    @staticmethod
    def _product(token_phi: Tensor, targets: NumberTargets) -> Tensor:
        """Return the product ``[slots, K]`` of the φ ``[P, K]`` of each number's tokens, as a sum of logarithms."""
        return torch.view_as_complex(targets.sum(torch.view_as_real(torch.log(token_phi)))).exp()

    def _token_phi(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the softmax ``[P, N]``, the columns of ``waves`` that each row reads, which rows count, and φ ``[P, K]``.

        φ is 1 in rows that do not count: signs, powers of ten, and digits more than DEPTH places below the leading one.
        """
        spans = targets.spans
        begins, counts = self._columns(targets)
        column = begins[:, None] * 2 + torch.arange(2 * self.frequencies, device=z.device)  # [P, 2 K]
        p = torch.where(spans.is_digit[:, None], z[:, : self.vocab.size], 0.0).softmax(-1)  # at a minus, digits may all be -inf
        phi = (p @ self.matrix("waves", z.dtype)).gather(-1, column).view(-1, self.frequencies, 2)
        phi = torch.where(counts[:, None, None], phi, self.absent.to(phi.dtype))
        return p, column, counts, torch.view_as_complex(phi) + _TINY

    def _label_phi(self, sign: Tensor, targets: NumberTargets, dtype: torch.dtype) -> Tensor:
        """Return φ of the label ``[slots, K, 2]``, computed in float64: its phases reach thousands of radians."""
        value = targets.sum(targets.spans.relative_values) * sign
        # Divide by a tensor: for a Python number, a GPU multiplies by the reciprocal, which is inf for the smallest ones.
        phase = self.frequency * (value / torch.full_like(value, self.unit))[:, None]
        return torch.stack([phase.cos(), phase.sin()], -1).to(dtype)

    def _columns(self, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """Return each row's first column in the table of phases ``[P]``, and the mask of rows within DEPTH places."""
        spans = targets.spans
        if not self.lead_depths:
            return torch.zeros_like(targets.index), spans.is_digit
        width = self.widths[targets.index]
        depth = spans.leading - spans.exponent
        lead = torch.bucketize(depth, self.lead_boundaries) * self.frequencies
        # u·10^e before the point; after it (u·10^-width)·10^(e + width).
        behind_point = torch.where(spans.is_fraction, width, 0)
        shift = behind_point - depth
        near = shift >= -DEPTH
        table = len(self.lead_depths) * self.frequencies
        fraction_table = table + DEPTH * PER_DECADE + self.frequencies
        deep = torch.where(spans.is_fraction, fraction_table, table) + (DEPTH + shift.clamp_min(-DEPTH)) * PER_DECADE
        # Before the point, a token that reaches the leading place, or zeros before it.
        return torch.where(depth < width - behind_point, lead, deep), spans.has_place & near

    def _signs(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor]:
        """Return the label's sign ``[slots]``, ±1, the probability of a negative prediction, and the rows that predict it."""
        spans = targets.spans
        negative = put_by(targets.first_group, spans.negative.to(z.dtype), targets.slots)
        # The sign is predicted at the label's minus sign, or at its first digit if it has none. A minus inside a longer token,
        # such as "(-", has no such position.
        decides = spans.is_sign | (spans.is_start & ~spans.negative)  # [P]
        if not self.scores_signs:
            return 1 - 2 * negative, negative, decides
        chance = z.softmax(-1)[:, self.vocab.size :].sum(-1)  # [P] of a minus here, against a digit
        decided = put_by(
            torch.where(decides, spans.number_of, -1), torch.stack([chance, torch.ones_like(chance)], -1), targets.slots
        )
        return 1 - 2 * negative, torch.where(decided[:, 1] > 0, decided[:, 0], negative), decides


def _lead_depths(vocab: NumericVocab) -> tuple[int, ...]:
    """Return how far below the leading place tokens that hold it can end, and with padding also those before it."""
    if not vocab.composes:
        return ()
    depths = {token.width - 1 for token in vocab.tokens}
    if isinstance(vocab.format, NumberFormat) and vocab.format.padded:
        fewest, most = vocab.format.sizes.digits
        depths |= {*range(max(fewest - most, -MOST_PADDING), max(depths))}
    return tuple(sorted(depths))
