"""Format numbers, names and untrusted text: 1,234, −10.3 %, p < 0.001, ``a, b and 2 more``."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

MAX_CHARACTERS = 160  # default length of text from data
MOST_NAMED = 6  # losses that a sentence names, each with its figures
IN_RANGE, OUT_OF_RANGE = "interpolate", "extrapolate"
SPLIT_NAMES = {IN_RANGE: "in range", OUT_OF_RANGE: "out of range"}

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def rounded(value: float) -> str:
    """Format with three significant digits, without an exponent if readable."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def minus(text: str) -> str:
    """Replace hyphens by minus signs; drop the sign of zero."""
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "−")


def plus(text: str) -> str:
    """Prefix positive numbers with a plus sign."""
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def percent(share: float) -> str:
    """Format a change: ``−10.3 %``, ``+2,946 %``."""
    text = f"{100 * share:.1f}" if abs(share) < 10 else rounded(100 * share)
    return f"{plus(minus(text))} %"


def p_text(p: float) -> str:
    """Format a p-value: ``0.012``, ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_equation(p: float) -> str:
    """Format a p-value with its name: ``p = 0.012``, ``p < 0.001``."""
    return f"p {p_text(p)}" if p < 0.001 else f"p = {p_text(p)}"


def effect_text(effect: float) -> str:
    """Format an effect size: ``+1.2``."""
    return plus(minus(f"{effect:.1f}".replace("inf", "∞")))


def times(ratio: float) -> str:
    """Format a ratio: ``1.04 ×``."""
    return f"{ratio:.2f} ×"


def sentence(text: str) -> str:
    """Capitalise the first letter only."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Join names: ``a, b and c``. With ``most``, no more than that many are named: ``a and 2 more``."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def either(names: Sequence[str]) -> str:
    """Join alternatives: ``loss``, ``loss, format or decision``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def without_plain(losses: Sequence[str], baseline: str) -> str:
    """Say that losses are run in another format alone; empty if there are none.

    Examples:
        >>> print(without_plain(["emd"], "ce"))
        emd is not run in plain text: the difference from ce is that of loss and format together. Add --format plain to separate \
them.
    """
    if not losses:
        return ""
    told = f"{listed(losses, MOST_NAMED)} {'is' if len(losses) == 1 else 'are'} not run in plain text"
    return f"{told}: the difference from {baseline} is that of loss and format together. Add --format plain to separate them."


def counted(number: int, noun: str) -> str:
    """Format a count: ``1 seed``, ``3 seeds``, ``6 losses``."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def safe_text(text: object, limit: int = MAX_CHARACTERS) -> str:
    """Cut text from data to ``limit`` characters and spell out control and bidirectional characters."""
    cut = str(text)
    cut = cut if len(cut) <= limit else cut[: limit - 1] + "…"
    return "".join(_visible(character) for character in cut)


def split_name(split: str) -> str:
    """Return the name of a split, short and on one line."""
    return SPLIT_NAMES.get(split, " ".join(safe_text(split, 26).split()))


def _visible(character: str) -> str:
    hidden = character in _BIDI or unicodedata.category(character) in ("Cc", "Cs", "Cn")
    return f"⟨U+{ord(character):04X}⟩" if hidden and character not in "\n\t" else character
