"""Topics of charts: titles, categories, units and the table of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChartKind = Literal["bar", "barh", "grouped", "line", "pie"]
NumberFormat = Literal["plain", "thousands", "percent", "dollars"]


@dataclass(frozen=True)
class Names:
    """Names of categories or series with their preposition: ``in`` Rome, ``among`` women."""

    plural: str
    names: tuple[str, ...]
    near: str = "in"
    ordered: bool = False  # a chart shows consecutive ones


@dataclass(frozen=True)
class Topic:
    """The subject of a chart."""

    title: str
    what: str  # quantity with its preposition: ``"average rent in"`` Oslo
    axis: str
    categories: Names
    kinds: tuple[ChartKind, ...]  # suitable kinds of chart
    tops: tuple[int, int]  # lowest and highest end of the axis in training
    form: NumberFormat = "thousands"
    series: Names = Names("", ())  # names of the series, for charts with several
    decimals: int = 0

    @property
    def whole(self) -> bool:
        """Whether the values are percentages that add up to 100."""
        return self.tops == (100, 100)

    @property
    def large(self) -> bool:
        """Whether values above the training range make sense."""
        return self.form != "percent" and self.tops[1] >= 500


_COUNTRIES = Names(
    "countries",
    ("Brazil", "Canada", "Chile", "Egypt", "France", "Germany", "India", "Italy", "Japan", "Kenya", "Mexico", "Norway"),
)
_CITIES = Names(
    "cities",
    ("Athens", "Berlin", "Dublin", "Geneva", "Lisbon", "London", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Vienna"),
)
_MONTHS = Names("months", ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), ordered=True)
_YEARS = Names("years", tuple(str(year) for year in range(2006, 2024)), ordered=True)
_QUARTERS = Names(
    "quarters", tuple(f"Q{quarter} {year}" for year in (2021, 2022, 2023) for quarter in (1, 2, 3, 4)), ordered=True
)
_AGES = Names("age groups", ("18-24", "25-34", "35-44", "45-54", "55-64", "65-74", "75+"), ordered=True)
_SOURCES = Names(
    "sources", ("Coal", "Gas", "Nuclear", "Hydro", "Wind", "Solar", "Oil", "Biomass", "Geothermal", "Waste", "Tidal")
)
_ITEMS = Names(
    "items", ("Rent", "Food", "Transport", "Health", "Leisure", "Clothing", "Education", "Savings", "Energy", "Travel")
)
_SPORTS = Names("sports", ("Football", "Tennis", "Swimming", "Running", "Cycling", "Yoga", "Hiking", "Golf", "Skiing", "Rugby"))
_MEANS = Names("means of transport", ("Car", "Bus", "Train", "Bicycle", "Tram", "Metro", "Ferry", "Scooter", "Taxi"))
_SUBJECTS = Names(
    "subjects", ("Maths", "Physics", "Biology", "History", "English", "French", "Music", "Art", "Chemistry", "Latin")
)
_TEAMS = Names("teams", ("Falcons", "Tigers", "Rovers", "United", "Wolves", "Sharks", "Hawks", "Lions", "Bears", "Comets"))

_DECADES = Names("years", ("2000", "2010", "2020"))
_RECENT = Names("years", ("2021", "2022", "2023"))
_REGIONS = Names("regions", ("Europe", "Asia", "America"))
_TOWNS = Names("towns", ("Bergen", "Cork", "Porto"))
_SEXES = Names("groups", ("men", "women"), "among")

_BARS: tuple[ChartKind, ...] = ("bar", "barh", "grouped")
_PARTS: tuple[ChartKind, ...] = ("bar", "barh", "grouped", "pie")
_WHOLE: tuple[ChartKind, ...] = ("bar", "barh", "pie", "pie")
_TIMES: tuple[ChartKind, ...] = ("bar", "grouped", "line", "line", "line")

TOPICS: tuple[Topic, ...] = (
    Topic("Coffee production by country", "coffee production of", "Tonnes", _COUNTRIES, _BARS, (50, 1000), series=_DECADES),
    Topic("Average monthly rent", "average rent in", "U.S. dollars", _CITIES, _BARS, (400, 1000), "dollars", _DECADES),
    Topic("Rainfall by month", "rainfall in", "Millimetres", _MONTHS, _TIMES, (40, 250), series=_TOWNS),
    Topic("Average temperature", "average temperature in", "°C", _MONTHS, _TIMES, (15, 40), series=_TOWNS, decimals=1),
    Topic("Sales of electric cars", "number of cars sold in", "Cars", _YEARS, _TIMES, (50, 1000), series=_REGIONS),
    Topic("Unemployment rate", "unemployment rate in", "Share of the workforce", _YEARS, _TIMES, (6, 20), "percent", _TOWNS, 1),
    Topic("Revenue by quarter", "revenue in", "U.S. dollars", _QUARTERS, _TIMES, (20, 1000), "dollars", _REGIONS),
    Topic(
        "Daily users of social media", "share of users aged", "Share of respondents", _AGES, _BARS, (60, 100), "percent", _SEXES
    ),
    Topic("Electricity by source", "share of electricity from", "Share of generation", _SOURCES, _WHOLE, (100, 100), "percent"),
    Topic(
        "Electricity generation", "electricity generation from", "Terawatt hours", _SOURCES, _PARTS, (50, 800), series=_DECADES
    ),
    Topic("The way to work", "share of commuters by", "Share of respondents", _MEANS, _WHOLE, (100, 100), "percent"),
    Topic("Household spending by category", "spending on", "U.S. dollars", _ITEMS, _PARTS, (200, 1000), "dollars", _RECENT),
    Topic("Members of sports clubs", "number of members in", "Members", _SPORTS, _PARTS, (40, 600), series=_TOWNS),
    Topic("Students by subject", "number of students in", "Students", _SUBJECTS, _PARTS, (40, 500), "plain", _RECENT),
    Topic("Goals scored in a season", "number of goals of", "Goals", _TEAMS, _BARS, (30, 100), "plain", _RECENT),
)


@dataclass(frozen=True)
class ChartTable:
    """The values of a chart: ``values[series][category]``, in units of the topic's last decimal."""

    topic: Topic
    categories: tuple[str, ...]
    series: tuple[str, ...]  # one unnamed, or several
    values: tuple[tuple[int, ...], ...]
