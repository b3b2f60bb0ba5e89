"""How a metric is named, summarised and formatted: 57.3 %, +1.2 points, no number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from numerate.answers.metrics import METRICS
from numerate.distribution.exact import Floats
from numerate.lab.evaluation.derailing import DERAILED, SAMPLE_DERAILED
from numerate.lab.evaluation.likelihood import LIKELIHOODS
from numerate.lab.evaluation.missing import NO_NUMBER
from numerate.lab.wording.text import minus, plus, rounded, safe_text

_UNITS = {"minutes": "min", "nats": "nats"}
_TITLES = {
    "exact": "exact answers",
    "parsed": "answers given",
    "log10_error": "log₁₀ error",
    "smape": "symmetric error (sMAPE)",
    "magnitude": "right order of magnitude",
    "sign": "right sign",
    "clock_accuracy": "exact times",
    "time_gap_circular": "time gap on the clock face",
    "iou": "IoU",
    "acc_50": "IoU ≥ 0.5",
    "sample_crps": "CRPS of samples",
    "sample_parsed": "samples with an answer",
    "derailed": "derailed answers",
    "sample_derailed": "derailed samples",
    "number_nll": "likelihood of numbers (NLL)",
    "text_nll": "likelihood of the rest of the text (NLL)",
}
_DERAILED = "has more digits than any training label, and than its own gold answer"


@dataclass(frozen=True)
class Measure:
    """How a metric is summarised and displayed."""

    name: str
    higher_is_better: bool | None  # None: no direction, or unknown
    median: bool
    percent: bool
    unit: str
    description: str
    undefined: str = field(default="", compare=False)  # what an infinite score says, if the data show it

    @property
    def plain(self) -> str:
        """Name as text."""
        percent = self.name.removeprefix("within_")
        return (
            f"at most {percent} % off"
            if percent.isdigit()
            else _TITLES.get(self.name, safe_text(self.name.replace("_", " "), 60))
        )

    @property
    def title(self) -> str:
        """Name as text, with ``median`` if that is the summary."""
        return f"median {self.plain}" if self.median else self.plain

    @property
    def summary(self) -> str:
        """Name as text with the summary, ``mean absolute error``, ``median absolute error``; of a share, its own."""
        return self.title if self.median or self.higher_is_better or self.name == DERAILED else f"mean {self.plain}"

    @property
    def unbounded(self) -> bool:
        """Whether a few answers can ruin the mean: an error without an upper limit, which is usually summarised by its median."""
        metric = METRICS.get(self.name)
        return metric is not None and metric.summary == "median"

    @property
    def heading(self) -> str:
        """Title with its unit, for table headers and axes."""
        return f"{self.title}, {'%' if self.percent else self.unit}" if self.percent or self.unit else self.title

    @property
    def factor(self) -> int:
        """Factor from a value to the displayed number."""
        return 100 if self.percent else 1

    def bounds(self, values: Floats) -> tuple[float, float]:
        """Smallest and largest possible value. A metric with a direction is taken to be >= 0 if all its values are."""
        if self.higher_is_better is None or values.min() < 0:
            return -math.inf, math.inf
        share = self.percent and (self.higher_is_better or self.name in (DERAILED, SAMPLE_DERAILED))
        return 0.0, 1.0 if share and values.max() <= 1 else math.inf

    @property
    def infinite(self) -> str:
        """What an infinite score says: ``no number`` if it is that of a missing answer, else ``∞``, unless the data show why."""
        if self.undefined:
            return self.undefined
        metric = METRICS.get(self.name)
        missing = self.name == "sample_crps" if metric is None else math.isinf(metric.no_answer)
        return NO_NUMBER if missing else "∞"

    def value(self, value: float) -> str:
        """Format with unit: ``57.3 %``, ``12.5 min``, ``0.0123``, ``no number``."""
        unit = "" if math.isinf(value) else "%" if self.percent else self.unit
        return f"{self.score(value)} {unit}".rstrip()

    def score(self, value: float) -> str:
        """Format without unit, an infinite score as :attr:`infinite`."""
        return self.infinite if value == math.inf else self.number(value)

    def number(self, value: float) -> str:
        """Format without unit; an end of an interval can be ``∞``."""
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return minus(f"{100 * value:.1f}" if self.percent and not self.median else rounded(self.factor * value))

    def estimate(self, value: float, low: float, high: float) -> str:
        """Format with unit and interval: ``57.3 % (55.1 to 59.5)``."""
        return f"{self.value(value)} ({self.range(low, high)})"

    def difference(self, value: float) -> str:
        """Format a difference: ``+1.2 points``."""
        return f"{self.signed(value)} {'points' if self.percent else self.unit}".rstrip()

    def signed(self, value: float) -> str:
        """Format a difference without unit: ``+1.2``."""
        return plus(self.number(value))

    def range(self, low: float, high: float) -> str:
        """Format an interval: ``55.1 to 59.5``."""
        return f"{self.number(low)} to {self.number(high)}"

    def signed_range(self, low: float, high: float) -> str:
        """Format an interval of differences: ``−0.3 to +2.7``."""
        return f"{self.signed(low)} to {self.signed(high)}"


def measure(name: str) -> Measure:
    """Look up a metric by name. An unknown one is summarised by its mean and has no direction."""
    if (metric := METRICS.get(name)) is not None:
        accuracy = metric.higher_is_better and metric.no_answer == 0 and not metric.unit
        percent = accuracy or name == "relative_error"
        unit = _UNITS.get(metric.unit, "")
        return Measure(name, metric.higher_is_better, metric.summary == "median", percent, unit, metric.description)
    if name == "sample_crps":  # the median, as it is infinite if a sample has no answer
        return Measure(name, False, True, False, "", "distance of the samples")
    if name in (DERAILED, SAMPLE_DERAILED):
        return Measure(name, False, False, True, "", f"{'a sampled' if name == SAMPLE_DERAILED else 'the'} number {_DERAILED}")
    if name in LIKELIHOODS:
        return Measure(name, False, False, False, "nats per token", LIKELIHOODS[name])
    return Measure(name, None, False, False, "", "")


def mean_measure(name: str) -> Measure:
    """Look up a metric that is summarised by its mean."""
    return replace(measure(name), median=False)


EXAMPLES_WON = Measure("examples_won", True, False, True, "", "")
"""Difference of medians: share of examples on which a loss is closer to the gold answer, minus the share where farther."""
