"""From sampled texts of a prompt to a distribution over numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numerate.answers.extract import EXTRACTORS, Extractor
from numerate.answers.numerals import number
from numerate.checks import check_choice
from numerate.distribution import NumberDistribution


def number_distribution(texts: Iterable[str], *, extractor: str | Callable[[str], Any] = "last_number") -> NumberDistribution:
    """Return the distribution of the numbers in sampled answers; a text without a number counts as ``no_number``.

    Args:
        texts: answers of any model or server to the same prompt.
        extractor: a name in ``EXTRACTORS`` whose answers are numbers, or a function from a text to a number or None. Use
            ``"gsm8k_flexible"`` or ``"gsm8k_strict"`` for worked solutions, and :func:`in_format` for numbers in a format.

    Examples:
        >>> number_distribution(["It is 12.", "About 12.5", "12", "no idea"])
        NumberDistribution(2 values 12..12.5: median 12, 90 % in 12..12.5, covered 0.75)
        >>> number_distribution(["2 + 3 = 5 #### 5", "2 * 3 = 6 #### 6", "so it is 5."], extractor="gsm8k_flexible").mode
        Decimal('5')
    """
    if isinstance(texts, str):
        raise TypeError(f"texts={texts!r:.80} is a string: expected a list of sampled answers; use [text].")
    if not callable(extractor):
        check_choice("extractor", extractor, [*EXTRACTORS])
        extractor = EXTRACTORS[extractor]
    found = [extractor(text) for text in texts]
    if isinstance(extractor, Extractor):  # GSM8K's rules return a text, which may not be a number
        found = [number(one) if isinstance(one, str) else one for one in found]
    return NumberDistribution.from_samples(found)
