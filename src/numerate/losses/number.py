"""number: a kernel distance between the predicted NUMBER and the label, whatever tokens spell it.

The published losses work token by token, or put a number together from digits that were chosen one by one. For 200 they
find 199 (three wrong digits) worse than 190; for 0.98 the published NTIL finds 1.01 worse than 1.98. This one measures
the number itself.

Under teacher forcing the tokens of a number are independent given the label's own prefix. So the predicted number
X = Σ_j w_j v_j is a sum of independent parts, and its characteristic function is a product, cheap and without sampling:

    φ(ω) = Π_j Σ_i p_ji exp(iω w_j v_i)           w_j: place of token j, in units of the number's leading place
    cost = Σ_k a_k |φ(ω_k) - exp(iω_k Y)|²        a_k ∝ ω_k^-β

By Bochner's theorem that is the squared MMD between X and Y under the kernel Σ_k a_k cos(ω_k (x - y)): SMMD's kernel
matching, at NTIL's level. With β = 1 the kernel is the energy distance's -|x - y| between the finest and the coarsest
frequency, so a certain prediction costs what it is off by, in units of the leading place: 1 for 300 where 200 stands.
Being a kernel score it is proper: no distribution scores better on average than the true one, and none as well as long as
the numeric tokens have fewer distinct values than twice the frequencies.

- *Scale.* Only places relative to the leading one enter, so ten times the label and the prediction cost the same, and a
  number of 300 digits is as safe as one of three.
- *Sign.* Where a label begins, the model could have said minus, or left it out. With s the probability of minus against
  that of a digit, the number is -X with probability s: φ becomes (1 - s) φ + s φ*.
- *Point.* Before the point a token of another width is worth its value; after it, digits line up on the left: 6 where
  678 stands is 0.6.
- *Length.* Where a first token is longer than the label's, the number gets longer. Beyond ten leading places its value
  grows by ten for each further digit instead of tenfold: so wide an error is wrong by its order of magnitude.

Digits more than ten places below the leading one change the cost by less than one part in a million and are left out; so
is the choice between ``.`` and a digit. Both are cross-entropy's, to which this is added. And so is most of a label like
0.000123, all of which lies far below its leading place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from numerate.checks import check_number
from numerate.losses.base import Fit, NumericLoss, Outside
from numerate.losses.rows import Targets, by_mean, mean_log
from numerate.spans import put_by, sum_by
from numerate.vocab import NumericVocab

PER_DECADE = 10  # frequencies a decade: dividing a place by ten is then a shift of ten in the table of phases
DEPTH = 10  # places below the leading one that are looked at
_TINY = 1e-15  # added to φ under its logarithm, which has a gradient then even where φ vanishes


def number_loss(phi: Tensor, label_phi: Tensor, weight: Tensor) -> Tensor:
    """Squared MMD of numbers: φ and the label's ``[S, K, 2]``, real and imaginary, weights ``[K]`` to ``[S]``."""
    return (phi - label_phi).square().sum(-1) @ weight


class NumberLoss(NumericLoss):
    """Kernel distance between the predicted number and the label; what it is and why stands at the top of this module.

    The mean is over numbers, the sum sums over numbers.

    Args:
        vocab: the numeric tokens.
        beta: how fast frequencies lose weight. 1: the cost grows with the error itself; towards 0, fine errors gain.
        lowest: lowest frequency. Errors beyond about 1 / lowest leading places cost alike.
        frequencies: how many, ten a decade. 44 from 0.02 reach 400: errors below 1/400 of the leading place fade.
        outside: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> def certain(number):
        ...     return torch.nn.functional.one_hot(torch.tensor([int(d) for d in number]), 10) * 80.0
        >>> loss, label = NumberLoss(vocab), torch.tensor([2, 0, 0])
        >>> [round(float(loss(certain(guess), label)), 3) for guess in ("200", "199", "190", "300")]
        [0.0, 0.009, 0.1, 1.0]
    """

    name = "number"
    level = "number"
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
        *,
        outside: Outside | None = None,
        thousands: bool = False,
    ) -> None:
        super().__init__(vocab, outside=outside, thousands=thousands)
        self.beta = check_number("beta", beta, least=0.0)
        lowest = check_number("lowest", lowest, above=0.0)
        if not isinstance(frequencies, int) or frequencies < 1:
            raise ValueError(f"frequencies={frequencies!r} is out of range: expected a whole number >= 1.")
        steps = torch.arange(frequencies, dtype=torch.float64)
        frequency = lowest * torch.pow(10.0, steps / PER_DECADE)
        weight = frequency**-self.beta
        weight[0] /= 2  # the end of the range, as in the trapezoid rule
        weight = weight / (2 - 2 * frequency.cos()).mul(weight).sum()  # a certain error of one leading place costs 1
        if not bool(weight.isfinite().all()):
            raise ValueError(
                f"beta={beta!r}, lowest={lowest!r} and frequencies={frequencies!r} give weights that float64 cannot hold: "
                "expected beta near 1 and lowest near 0.02."
            )
        self._keep("frequency", frequency)
        self._keep_matrix("spectrum", weight)
        self.frequencies = frequencies
        self.lead_widths = tuple(sorted({token.width for token in vocab.tokens})) if vocab.composes else ()
        self._keep("lead_boundaries", torch.tensor(self.lead_widths, dtype=torch.long))
        self._keep("absent", torch.tensor([1.0, 0.0], dtype=torch.float64))  # φ of a token that is not there
        # A vocabulary of whole numbers has one scale for all: the leading place of its largest.
        top = float(vocab.values.abs().max())
        self.unit = 1.0 if vocab.composes or top == 0 else 10.0 ** math.floor(math.log10(top))
        phases = self._phases(vocab, lowest).T  # [N, columns]
        self._keep_matrix("waves", torch.stack([phases.cos(), phases.sin()], -1).flatten(1))
        if vocab.minus_ids and vocab.composes:
            self.scores_signs = True
            self._read_columns(torch.cat([vocab.token_ids, torch.tensor(vocab.minus_ids)]))
        self.worst.copy_(4 * weight.sum())  # |φ| is at most 1, and so is the label's

    def _phases(self, vocab: NumericVocab, lowest: float) -> Tensor:
        """ω·u of every token: first as a leading token of each width, then deeper, before and after the point.

        A place ten times smaller is a frequency ten times lower, so the deeper tokens share one table of frequencies
        that reaches DEPTH decades further down.
        """
        values, widths = vocab.values / self.unit, vocab.widths.double()
        rows = [self.frequency[:, None] * lead for lead in self._leads(vocab)]
        if self.lead_widths:
            span = DEPTH * PER_DECADE + self.frequencies
            # A decade more after the point: the first digit of .5 counts in tenths of itself.
            deep = lowest * torch.pow(10.0, (torch.arange(span + PER_DECADE, dtype=torch.float64) / PER_DECADE - DEPTH))
            rows += [deep[:span, None] * values, deep[:, None] * values * torch.pow(10.0, -widths)]
        return torch.cat(rows)

    def _leads(self, vocab: NumericVocab) -> Tensor:
        """What every token is worth in leading places, where the label begins with a token of each width: ``[W, N]``."""
        unit = torch.tensor([self.unit * 10.0 ** (width - 1) for width in self.lead_widths or (1,)], dtype=torch.float64)
        lead = vocab.values / unit[:, None]
        return torch.where(lead > 10, 10 + 10 * torch.log10(lead.clamp_min(10.0) / 10), lead)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """Sign, point, multi-digit tokens and leading zeros are all part of it."""
        return "good", "" if vocab.minus_ids or not vocab.composes else "no minus token: signs are not scored"

    def _per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        spans = targets.spans
        assert spans is not None
        digit, slots = spans.is_digit, targets.slots
        if targets.rows is None:
            z = torch.where(self.looks_at(spans)[:, None], z, 0.0)
        group = torch.where(digit, spans.number_of, -1)  # [P]
        _, _, token_phi = self._token_phi(z, targets)
        phi = torch.view_as_real(self._product(group, token_phi, slots))  # [slots, K, 2]
        sign, says_minus, _ = self._signs(z, targets)  # [slots]
        flip = 1 - 2 * says_minus
        phi = phi * torch.stack([torch.ones_like(flip), flip], -1)[:, None]
        cost = number_loss(phi, self._label_phi(group, sign, targets, z.dtype), self.matrix("spectrum", z.dtype))  # [slots]
        if self.outside == "penalize":
            assert rest is not None
            at_digits = torch.where(digit[:, None], z, 0.0)
            log_mass = torch.where(digit, self.log_mass(at_digits, torch.where(digit, rest, 0.0)), 0.0)
            cost = self.charge_outside(cost, mean_log(log_mass, group, slots))
        cost = torch.where(spans.is_start, cost[group.clamp_min(0)], 0.0)
        return cost if targets.position_weights is None else cost * targets.position_weights.to(cost.dtype)

    @property
    def replayable(self) -> bool:
        """With the gradient written out."""
        return self.outside == "ignore"

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradient written out, unless mass outside the numeric tokens is charged."""
        if self.outside == "penalize":
            return super().value_and_grad(z, rest, targets)
        spans, slots, waves = targets.spans, targets.slots, self.matrix("waves", z.dtype)
        assert spans is not None
        if targets.rows is None:
            z = torch.where(self.looks_at(spans)[:, None], z, 0.0)
        group = torch.where(spans.is_digit, spans.number_of, -1)  # [P]
        at = group.clamp_min(0)
        p, column, token_phi = self._token_phi(z, targets)
        phi = self._product(group, token_phi, slots)  # [slots, K]
        sign, says_minus, decides = self._signs(z, targets)
        flip = 1 - 2 * says_minus
        label_phi = torch.view_as_complex(self._label_phi(group, sign, targets, z.dtype))
        off = torch.complex(phi.real, phi.imag * flip[:, None]) - label_phi
        by_phi = 2 * self.matrix("spectrum", z.dtype) * off  # [slots, K]
        cost = torch.view_as_real(off * by_phi.conj())[..., 0].sum(-1) / 2
        if targets.position_weights is not None:
            weight = put_by(torch.where(spans.is_start, spans.number_of, -1), targets.position_weights, slots).to(z.dtype)
            cost, by_phi = cost * weight, by_phi * weight[:, None]
        by_flip = (by_phi.imag * phi.imag).sum(-1)  # [slots]
        by_phi = torch.complex(by_phi.real, by_phi.imag * flip[:, None])
        # A token's share in the product is the product of all others.
        by_token = (by_phi * phi.conj())[at] / token_phi.conj()
        by_wave = z.new_zeros((z.shape[0], waves.shape[1])).scatter_(-1, column, torch.view_as_real(by_token).flatten(1))
        by_p = by_wave @ waves.T  # [P, N]
        dz = p * (by_p - (p * by_p).sum(-1, keepdim=True))
        dz = torch.where(spans.is_digit[:, None], dz, 0.0)
        if self.scores_signs:
            chances = z.softmax(-1)
            is_minus = torch.arange(z.shape[1], device=z.device) >= p.shape[1]
            slope = torch.where(decides, -2 * by_flip[spans.number_of.clamp_min(0)], 0.0)
            by_sign = by_mean(chances, is_minus.to(z.dtype), (chances * is_minus).sum(-1), slope)
            by_sign[:, : p.shape[1]] += dz
            dz = by_sign
        return cost.sum(), dz, None

    @staticmethod
    def _product(group: Tensor, token_phi: Tensor, slots: int) -> Tensor:
        """The product ``[slots, K]`` of the tokens' φ, through logarithms: a number's tokens are a sum over rows."""
        return torch.view_as_complex(sum_by(group, torch.view_as_real(torch.log(token_phi)), slots)).exp()

    def _token_phi(self, z: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """The softmax ``[P, N]``, which columns of ``waves`` each row reads, and its φ ``[P, K]``; 1 where it does not count."""
        spans = targets.spans
        assert spans is not None
        begins, counts = self._columns(targets)
        column = begins[:, None] * 2 + torch.arange(2 * self.frequencies, device=z.device)  # [P, 2 K]
        p = torch.where(spans.is_digit[:, None], z[:, : self.vocab.size], 0.0).softmax(-1)  # at a minus, digits may all be -inf
        phi = (p @ self.matrix("waves", z.dtype)).gather(-1, column).view(-1, self.frequencies, 2)
        phi = torch.where(counts[:, None, None], phi, self.absent.to(phi.dtype))
        return p, column, torch.view_as_complex(phi) + _TINY

    def _label_phi(self, group: Tensor, sign: Tensor, targets: Targets, dtype: torch.dtype) -> Tensor:
        """φ of the label ``[slots, K, 2]``. Its phases run to thousands of radians: their cosines are taken in float64."""
        spans = targets.spans
        assert spans is not None
        value = sum_by(group, torch.where(spans.is_digit, spans.relative_values, 0.0), targets.slots) * sign / self.unit
        phase = self.frequency * value[:, None]
        return torch.stack([phase.cos(), phase.sin()], -1).to(dtype)

    def _columns(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """Where each row's frequencies begin in the table of phases ``[P]``, and whether the row is near enough to count."""
        spans = targets.spans
        assert spans is not None
        if not self.lead_widths:
            return torch.zeros_like(targets.index), spans.is_digit
        width = self.widths[targets.index]
        lead = torch.bucketize(width, self.lead_boundaries) * self.frequencies
        # u·10^e before the point; after it (u·10^-width)·10^(e + width).
        shift = spans.exponent - spans.leading + torch.where(spans.is_fraction, width, 0)
        near = shift >= -DEPTH
        table = len(self.lead_widths) * self.frequencies
        fraction_table = table + DEPTH * PER_DECADE + self.frequencies
        deep = torch.where(spans.is_fraction, fraction_table, table) + (DEPTH + shift.clamp_min(-DEPTH)) * PER_DECADE
        return torch.where(spans.is_start & ~spans.is_fraction, lead, deep), spans.has_place & near

    def _signs(self, z: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """The label's sign ``[slots]``, ±1, the probability that the prediction is negative, and the rows that decide it."""
        spans = targets.spans
        assert spans is not None
        first = torch.where(spans.is_start, spans.number_of, -1)
        negative = put_by(first, spans.negative.to(z.dtype), targets.slots)
        # A sign is decided at the minus, where the label has one, else at the first digit. A minus that is part of a
        # longer token, as in "(-", leaves nothing to decide.
        decides = spans.is_sign | (spans.is_start & ~spans.negative)  # [P]
        if not self.scores_signs:
            return 1 - 2 * negative, negative, decides
        chance = z.softmax(-1)[:, self.vocab.size :].sum(-1)  # [P] of a minus here, against a digit
        decided = put_by(
            torch.where(decides, spans.number_of, -1), torch.stack([chance, torch.ones_like(chance)], -1), targets.slots
        )
        return 1 - 2 * negative, torch.where(decided[:, 1] > 0, decided[:, 0], negative), decides

    def unit_rows(self, targets: Targets) -> Tensor:
        """The first digit of each number."""
        assert targets.spans is not None
        return targets.spans.is_start
