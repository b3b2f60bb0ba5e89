"""Questions about the values of a chart, and their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import median

from numerate.lab.data.charts.topics import ChartTable

QuestionAnswer = tuple[str, Fraction]


def ask(rng: random.Random, table: ChartTable, tick: int) -> tuple[str, str]:
    """Draw a question about a table; return it with its answer as plain text. ``tick`` is the step of the value axis.

    Examples:
        >>> from numerate.lab.data.charts.topics import TOPICS
        >>> table = ChartTable(TOPICS[1], ("Rome", "Oslo", "Paris"), ("",), ((650, 810, 900),))
        >>> ask(random.Random(1), table, 100)
        ('What is the highest average rent?', '900')
    """
    kinds = [*_ANY, *(_MULTI if len(table.series) > 1 else ())]
    while True:
        asked = rng.choice(kinds)(rng, table, tick)
        if asked is not None and asked[1] > 0:
            return asked[0], plain(asked[1])


def plain(number: Fraction) -> str:
    """Return a number as text with at most two decimals.

    Examples:
        >>> plain(Fraction(1200)), plain(Fraction(5, 2)), plain(Fraction(4, 3))
        ('1200', '2.5', '1.33')
    """
    hundredths = round(number * 100)
    whole, rest = divmod(abs(hundredths), 100)
    return f"{'-' * (hundredths < 0)}{whole}{f'.{rest:02}'.rstrip('0').rstrip('.')}"


class _Row:
    """One series of a table, with the words for its questions."""

    def __init__(self, rng: random.Random, table: ChartTable) -> None:
        self.index = rng.randrange(len(table.series))
        self.what, _, self.near = table.topic.what.rpartition(" ")
        self.plural, self.categories = table.topic.categories.plural, table.categories
        name = table.series[self.index]
        self.tail = f" {table.topic.series.near} {name}" if name else ""
        self.values = _values(table, table.values[self.index])

    def pair(self, rng: random.Random) -> tuple[int, int]:
        """Draw two categories; the first has the larger value."""
        first, second = rng.sample(range(len(self.values)), 2)
        return (first, second) if self.values[first] >= self.values[second] else (second, first)


def _values(table: ChartTable, values: Sequence[int]) -> list[Fraction]:
    return [Fraction(value, 10**table.topic.decimals) for value in values]


def _value(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row, k = _Row(rng, table), rng.randrange(len(table.categories))
    return f"What is the {row.what} {row.near} {row.categories[k]}{row.tail}?", row.values[k]


def _extreme(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row, high = _Row(rng, table), rng.random() < 0.6
    return f"What is the {'highest' if high else 'lowest'} {row.what}{row.tail}?", max(row.values) if high else min(row.values)


def _second(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer | None:
    row = _Row(rng, table)
    order = sorted(row.values, reverse=True)
    return (f"What is the second highest {row.what}{row.tail}?", order[1]) if order[0] > order[1] > order[2] else None


def _difference(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row = _Row(rng, table)
    first, second = row.pair(rng)
    words = f"{row.what} {row.near} {row.categories[first]} and {row.near} {row.categories[second]}"
    return f"What is the difference between the {words}{row.tail}?", row.values[first] - row.values[second]


def _spread(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row = _Row(rng, table)
    answer = max(row.values) - min(row.values)
    return f"What is the difference between the highest and the lowest {row.what}{row.tail}?", answer


def _pair_sum(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row = _Row(rng, table)
    first, second = row.pair(rng)
    words = f"{row.what} {row.near} {row.categories[first]} and {row.near} {row.categories[second]}"
    return f"What is the sum of the {words}{row.tail}?", row.values[first] + row.values[second]


def _ratio(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer | None:
    row = _Row(rng, table)
    first, second = row.pair(rng)
    words = f"{row.what} {row.near} {row.categories[first]} to that {row.near} {row.categories[second]}"
    return (f"What is the ratio of the {words}{row.tail}?", row.values[first] / row.values[second])


def _total(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer | None:
    row = _Row(rng, table)
    return None if table.topic.whole else (f"What is the sum of all values{row.tail}?", sum(row.values, Fraction()))


def _mean(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer | None:
    row = _Row(rng, table)
    answer = sum(row.values, Fraction()) / len(row.values)
    return None if table.topic.whole else (f"What is the average of all values{row.tail}?", answer)


def _median(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row = _Row(rng, table)
    return f"What is the median of the values{row.tail}?", Fraction(median(row.values))


def _above(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer | None:
    """Ask how many values exceed a grid line; None if a value lies on it."""
    row = _Row(rng, table)
    line = Fraction(tick * rng.randint(1, max(table.values[row.index]) // tick + 1), 10**table.topic.decimals)
    if line in row.values:
        return None
    question = f"How many {row.plural} have a value above {plain(line)}{row.tail}?"
    return question, Fraction(sum(value > line for value in row.values))


def _count(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    return f"How many {table.topic.categories.plural} are shown?", Fraction(len(table.categories))


def _between_series(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    row, k = _Row(rng, table), rng.randrange(len(table.categories))
    first, second = sorted(rng.sample(range(len(table.series)), 2))
    gap = abs(table.values[first][k] - table.values[second][k])
    words = f"{row.what} {row.near} {row.categories[k]} {table.topic.series.near} {table.series[first]}"
    question = f"What is the difference between the {words} and {table.topic.series.near} {table.series[second]}?"
    return question, _values(table, [gap])[0]


def _over_series(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    k = rng.randrange(len(table.categories))
    values = _values(table, [row[k] for row in table.values])
    return f"What is the sum of all values for {table.categories[k]}?", sum(values, Fraction())


def _ahead(rng: random.Random, table: ChartTable, tick: int) -> QuestionAnswer:
    first, second = rng.sample(range(len(table.series)), 2)
    wins = sum(a > b for a, b in zip(table.values[first], table.values[second], strict=True))
    question = f"For how many {table.topic.categories.plural} is {table.series[first]} higher than {table.series[second]}?"
    return question, Fraction(wins)


_ANY: tuple[Callable[[random.Random, ChartTable, int], QuestionAnswer | None], ...] = (
    *(_value, _value, _value, _extreme, _extreme, _second, _difference, _difference),
    *(_spread, _pair_sum, _ratio, _total, _mean, _median, _above, _count),
)
_MULTI = (_value, _between_series, _between_series, _between_series, _over_series, _ahead)
