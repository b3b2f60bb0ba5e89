"""Which columns of a table are free text, such as sentences or molecules as SMILES, rather than categories.

A category occurs in many rows; a free text in one, so that a model has to read it. Trees, which compare cells as a whole, learn
nothing from such a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import Any

from numerate.lab.data.cells import is_blank, is_date, is_number
from numerate.lab.data.columns import are_codes

_DISTINCT = 0.5  # share of different cells
_SENTENCE = 4  # words
_LENGTHS = {1: 12, 2: 20, 3: 20}  # characters on average, by words: SMILES and product names are longer than names of places
_VARYING = 0.1  # standard deviation of the length over its mean: codes of one system have one length
_LETTERS = 0.4  # share of letters: a phone number, an address of a computer or a range of numbers has fewer


def is_free_text(cells: Sequence[Any]) -> bool:
    """Return whether the cells of a column are free text. Lists and mappings of a JSON file are read as text.

    At least half of the cells must differ, and they must be sentences (four words or more), or long, of varying length and mostly
    letters. Numbers, dates, categories, short names and codes are not free text.

    Examples:
        >>> is_free_text(["CCO", "c1ccc2c(c1)ccc3c2ccc4c5ccccc5ccc43", "CC(C)=CCCC(C)=CC(=O)"])
        True
        >>> is_free_text(["Ulm", "Frankfurt am Main", "Bern"]), is_free_text(["2024-04-10", "2024-04-11"]), is_free_text([1.5, 2])
        (False, False, False)
    """
    texts = [str(cell).strip() for cell in cells if not is_blank(cell)]
    if not texts or len({*texts}) < _DISTINCT * len(texts):
        return False
    if 2 * sum(is_date(text) or is_number(text) for text in texts) > len(texts) or are_codes(texts):
        return False
    words = int(median(len(text.split()) for text in texts))
    characters = "".join("".join(text.split()) for text in texts)
    if sum(map(str.isalpha, characters)) < _LETTERS * len(characters):
        return False
    lengths = [len(text) for text in texts]
    return words >= _SENTENCE or (fmean(lengths) >= _LENGTHS[max(words, 1)] and pstdev(lengths) >= _VARYING * fmean(lengths))
