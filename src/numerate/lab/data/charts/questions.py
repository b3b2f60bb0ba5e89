"""Questions about the values of a chart, and their answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from statistics import mean, median

from numerate.lab.data.charts.topics import ChartTable

QuestionAnswer = tuple[str, Fraction]

_OFTEN = {"value": 1.5, "another value": 1.5, "difference": 2, "between series": 3}  # weights of questions; others: 1


def ask(rng: random.Random, table: ChartTable, tick: int) -> tuple[str, str]:
    """Draw a question about a table; return it with its answer as plain text. ``tick`` is the step of the value axis.

    Examples:
        >>> from numerate.lab.data.charts.topics import TOPICS
        >>> table = ChartTable(TOPICS[1], ("Rome", "Oslo", "Paris"), ("",), ((650, 810, 900),))
        >>> ask(random.Random(1), table, 100)
        ('What is the average rent in Rome?', '650')
    """
    while True:
        questions = _about_one_series(rng, table, tick) | (_about_all_series(rng, table) if len(table.series) > 1 else {})
        (name,) = rng.choices([*questions], [_OFTEN.get(name, 1) for name in questions])
        question, answer = questions[name]
        if answer > 0:
            return question, plain(answer)


def plain(number: Fraction) -> str:
    """Return a number as text with at most two decimals.

    Examples:
        >>> plain(Fraction(1200)), plain(Fraction(5, 2)), plain(Fraction(4, 3))
        ('1200', '2.5', '1.33')
    """
    hundredths = round(number * 100)
    whole, rest = divmod(abs(hundredths), 100)
    return f"{'-' * (hundredths < 0)}{whole}{f'.{rest:02}'.rstrip('0').rstrip('.')}"


def _values(table: ChartTable, values: Sequence[int]) -> list[Fraction]:
    return [Fraction(value, 10**table.topic.decimals) for value in values]


def _about_one_series(rng: random.Random, table: ChartTable, tick: int) -> dict[str, QuestionAnswer]:
    """Return a question of each kind about one series, by its name."""
    series, names, plural = rng.randrange(len(table.series)), table.categories, table.topic.categories.plural
    values = _values(table, table.values[series])
    what, _, near = table.topic.what.rpartition(" ")
    tail = f" {table.topic.series.near} {table.series[series]}" if table.series[series] else ""
    first, second = sorted(rng.sample(range(len(values)), 2), key=lambda k: -values[k])
    pair = f"{what} {near} {names[first]} and {near} {names[second]}{tail}"
    order = sorted(values, reverse=True)
    asked = {
        "value": (f"What is the {what} {near} {names[first]}{tail}?", values[first]),
        "another value": (f"What is the {what} {near} {names[second]}{tail}?", values[second]),
        "highest": (f"What is the highest {what}{tail}?", order[0]),
        "lowest": (f"What is the lowest {what}{tail}?", order[-1]),
        "difference": (f"What is the difference between the {pair}?", values[first] - values[second]),
        "sum": (f"What is the sum of the {pair}?", values[first] + values[second]),
        "spread": (f"What is the difference between the highest and the lowest {what}{tail}?", order[0] - order[-1]),
        "median": (f"What is the median of the values{tail}?", median(values)),
        "count": (f"How many {plural} are shown?", Fraction(len(names))),
    }
    ratio = f"What is the ratio of the {what} {near} {names[first]} to that {near} {names[second]}{tail}?"
    asked["ratio"] = ratio, values[first] / values[second]
    if order[0] > order[1] > order[2]:
        asked["second highest"] = f"What is the second highest {what}{tail}?", order[1]
    if not table.topic.whole:  # those add up to 100
        asked["total"] = f"What is the sum of all values{tail}?", sum(values, Fraction())
        asked["mean"] = f"What is the average of all values{tail}?", mean(values)
    line = Fraction(tick * rng.randint(1, max(table.values[series]) // tick + 1), 10**table.topic.decimals)
    if line not in values:
        above = Fraction(sum(value > line for value in values))
        asked["above"] = f"How many {plural} have a value above {plain(line)}{tail}?", above
    return asked


def _about_all_series(rng: random.Random, table: ChartTable) -> dict[str, QuestionAnswer]:
    """Return a question of each kind about several series, by its name."""
    what, _, near = table.topic.what.rpartition(" ")
    k, (first, second) = rng.randrange(len(table.categories)), rng.sample(range(len(table.series)), 2)
    in_first, in_second = (f"{table.topic.series.near} {table.series[series]}" for series in (first, second))
    (gap,) = _values(table, [abs(table.values[first][k] - table.values[second][k])])
    wins = Fraction(sum(a > b for a, b in zip(table.values[first], table.values[second], strict=True)))
    ahead = f"For how many {table.topic.categories.plural} is {table.series[first]} higher than {table.series[second]}?"
    between = f"the {what} {near} {table.categories[k]} {in_first} and {in_second}"
    return {
        "between series": (f"What is the difference between {between}?", gap),
        "sum of series": (
            f"What is the sum of all values for {table.categories[k]}?",
            sum(_values(table, [row[k] for row in table.values]), Fraction()),
        ),
        "ahead": (ahead, wins),
    }
