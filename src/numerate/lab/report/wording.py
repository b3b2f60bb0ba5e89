"""Numbers and texts as people read them: 57.3 %, +1.2 points, p < 0.001, and text from data that cannot do harm."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from numerate.answers.distributions import DISTRIBUTION_METRICS
from numerate.answers.metrics import METRICS
from numerate.lab.report.records import Floats

CUT = 160  # characters of an output that are shown

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNITS = {"minutes": "min", "nats": "nats"}
_TITLES = {
    "exact": "exact answers",
    "parsed": "answers given",
    "log10_error": "log₁₀ error",
    "smape": "symmetric error (sMAPE)",
    "magnitude": "right order of magnitude",
    "sign": "right sign",
    "clock_accuracy": "exact times",
    "time_gap_circular": "time gap round the face",
    "iou": "IoU",
    "acc_50": "IoU ≥ 0.5",
    "sample_crps": "CRPS of samples",
    "sample_parsed": "samples with an answer",
}


@dataclass(frozen=True)
class Measure:
    """How a measure is summed up and shown."""

    name: str
    higher_is_better: bool | None  # None: neither, or not known
    median: bool
    percent: bool
    unit: str
    description: str

    @property
    def plain(self) -> str:
        """Its name in words."""
        percent = self.name.removeprefix("within_")
        return f"at most {percent} % off" if percent.isdigit() else _TITLES.get(self.name, shown(self.name.replace("_", " "), 60))

    @property
    def title(self) -> str:
        """With how it is summed up, where that is not a mean."""
        return f"median {self.plain}" if self.median else self.plain

    @property
    def heading(self) -> str:
        """With its unit."""
        return f"{self.title}, {'%' if self.percent else self.unit}" if self.percent or self.unit else self.title

    @property
    def factor(self) -> int:
        """From the value to the figure that is shown."""
        return 100 if self.percent else 1

    def bounds(self, values: Floats) -> tuple[float, float]:
        """The least and the largest value it can have; a measure with a direction whose values are all >= 0 has no others."""
        if self.higher_is_better is None or values.min() < 0:
            return -math.inf, math.inf
        return 0.0, 1.0 if self.percent and self.higher_is_better and values.max() <= 1 else math.inf

    def value(self, value: float) -> str:
        """``57.3 %``, ``12.5 min``, ``0.0123``."""
        return f"{self.number(value)} {'%' if self.percent else self.unit}".rstrip()

    def number(self, value: float) -> str:
        """Without unit."""
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return minus(f"{100 * value:.1f}" if self.percent and not self.median else rounded(self.factor * value))

    def difference(self, value: float) -> str:
        """``+1.2 points``."""
        return f"{self.signed(value)} {'points' if self.percent else self.unit}".rstrip()

    def signed(self, value: float) -> str:
        """``+1.2``."""
        return plus(self.number(value))

    def range(self, low: float, high: float) -> str:
        """``55.1 to 59.5``."""
        return f"{self.number(low)} to {self.number(high)}"

    def signed_range(self, low: float, high: float) -> str:
        """``−0.3 to +2.7``."""
        return f"{self.signed(low)} to {self.signed(high)}"


def measure(name: str) -> Measure:
    """A measure by name; one that nobody knows has a mean and no direction."""
    if (metric := METRICS.get(name)) is not None:
        accuracy = metric.higher_is_better and metric.no_answer == 0 and not metric.unit
        percent = accuracy or name == "relative_error"
        unit = _UNITS.get(metric.unit, "")
        return Measure(name, metric.higher_is_better, metric.summary == "median", percent, unit, metric.description)
    if (law := DISTRIBUTION_METRICS.get(name)) is not None:
        # A sample without an answer makes it infinite, and the mean with it.
        return Measure(name, law.higher_is_better, name == "sample_crps", False, _UNITS.get(law.unit, ""), law.description)
    return Measure(name, None, False, False, "", "")


EXAMPLES_WON = Measure("examples_won", True, False, True, "", "")
"""Of a median: the share of the examples on which a loss is nearer, less the share on which it is farther."""


def rounded(value: float) -> str:
    """Three significant digits, without an exponent where that is readable."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def minus(text: str) -> str:
    """A minus sign as long as the plus; none before zero."""
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "−")


def plus(text: str) -> str:
    """A plus before what is above zero."""
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def sentence(text: str) -> str:
    """With a capital first; the rest as it is."""
    return text[:1].upper() + text[1:]


def p_text(p: float) -> str:
    """``0.012``, ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def effect_text(effect: float) -> str:
    """``+1.2``."""
    return plus(minus(f"{effect:.1f}".replace("inf", "∞")))


def times(ratio: float) -> str:
    """``1.04 ×``."""
    return f"{ratio:.2f} ×"


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``, ``6 losses``."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def shown(text: object, limit: int = CUT) -> str:
    """Text from data, cut to ``limit``, with every character that cannot be seen or would turn others round spelled out."""
    cut = str(text)
    cut = cut if len(cut) <= limit else cut[: limit - 1] + "…"
    return "".join(_visible(character) for character in cut)


def _visible(character: str) -> str:
    hidden = character in _BIDI or unicodedata.category(character) in ("Cc", "Cs", "Cn")
    return f"⟨U+{ord(character):04X}⟩" if hidden and character not in "\n\t" else character
