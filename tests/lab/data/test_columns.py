"""Which columns identify rows, in tables of several languages, and how a missing value is shown."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import get_args

import pytest

from numerate.lab.data import Regression
from numerate.lab.data.columns import uninformative
from numerate.lab.data.regression import RowWording

_RNG = random.Random(0)
_ROWS = range(40)

CODES: dict[str, list[str]] = {
    "Objekt": [f"O-{100_000 + i}" for i in _ROWS],
    "référence": [f"réf-{i}" for i in _ROWS],
    "objekt (Swedish)": [f"Ö{100 + i}" for i in _ROWS],
    "Rechnung": [f"RE-2024-{i:05}" for i in _ROWS],
    "Zeichen": [f"{4000 + i}-AB-{i}" for i in _ROWS],
    "plaque": [f"{chr(65 + i % 26)}{chr(65 + i // 2)}{1000 + 37 * i}" for i in _ROWS],
    "leading zeros": [f"{i:06}" for i in _ROWS],
    "hash sign": [f"#{i}" for i in _ROWS],
    "uuid": [str(uuid.UUID(int=_RNG.getrandbits(128))) for _ in _ROWS],
    "digest": [f"{_RNG.getrandbits(48):012x}" for _ in _ROWS],
    "one row twice": [f"K{max(i, 1)}" for i in _ROWS],
    "some missing": ["" if i % 4 == 3 else f"K{i}" for i in _ROWS],
}
MEASURED: dict[str, list[str]] = {
    "carat": [f"{0.2 + i / 100:.2f}" for i in _ROWS],
    "price": [str(300 + 7 * i) for i in _ROWS],
    "Preis": [f"{70 + i},{i:02} €" for i in _ROWS],
    "EUR": [f"EUR{70 + i}" for i in _ROWS],
    "Fläche": [f"{i + 20}m2" for i in _ROWS],
    "size": [f"{i + 10}x{i + 13}x{i + 20}" for i in _ROWS],
    "pH": [f"pH{i / 10}" for i in _ROWS],
    "range": [f"{i}-{i + 5}" for i in _ROWS],
    "blood pressure": [f"{i + 110}/{i + 60}" for i in _ROWS],
    "Uhrzeit": [f"{i % 24:02}:{i:02}" for i in _ROWS],
    "heure": [f"{i % 24:02}h{i:02}" for i in _ROWS],
    "date": [f"2024-01-{i:02}" for i in _ROWS],
    "Datum": [f"{1 + i % 28:02}.{1 + i // 28:02}.2024" for i in _ROWS],
    "month": [f"{1980 + i}-01" for i in _ROWS],
    "quarter": [f"{2000 + i // 4}Q{i % 4}" for i in _ROWS],
    "week": [f"2024-W{i:02}" for i in _ROWS],
    "year": [str(1980 + i) for i in _ROWS],
    "Postleitzahl": [f"{10_000 + 97 * i}" for i in _ROWS],
    "rue": [f"rue Victor Hugo {i}" for i in _ROWS],
    "description": [f"bright flat number {i} near the park" for i in _ROWS],
    "position": [f"{'ABCDEFGH'[i % 8]}{1 + i // 8}" for i in _ROWS],
    "product": ["XC90", "A4", "Q5", "X3", "iPhone12", "320i", "C3", "Golf7", "i30", "P208", "C5", "Clio4", "T6", "500L", "A6"],
}
NUMBERED = ("Objekt-Nr", "Kundennummer", "lfd. Nr.", "N°", "numéro", "Número", "löpnr", "номер", "flatId", "orderID", "")
NOT_NUMBERED = ("price", "Preis", "rapid", "humid", "piano", "num_rooms", "number of rooms", "antal rum", "Zimmer", "pièces")


def table_of(name: str, cells: list[str]) -> list[dict[str, str]]:
    return [{name: cell, "rooms": str(i % 5)} for i, cell in enumerate(cells)]


@pytest.mark.parametrize("name", CODES)
def test_codes_are_found_by_their_values(name):
    found = uninformative(table_of("x", CODES[name]), ("x", "rooms"))
    assert found == {"x": f"codes that differ from row to row, such as {CODES[name][0]!r:.30}"}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_values_dates_and_texts_stay(name):
    assert not uninformative(table_of("x", MEASURED[name]), ("x", "rooms"))


@pytest.mark.parametrize("name", NUMBERED)
def test_a_running_number_by_its_name(name):
    found = uninformative(table_of(name, [str(i) for i in _ROWS]), (name, "rooms"))
    assert found == {name: "another value in every row, by its name an index"}


@pytest.mark.parametrize("name", NOT_NUMBERED)
def test_other_names_of_whole_numbers(name):
    assert not uninformative(table_of(name, [str(i) for i in _ROWS]), (name, "rooms"))


def test_a_german_table(tmp_path):
    file = tmp_path / "wohnungen.csv"
    rows = "".join(f"O-{100_000 + i};{50 + i},5;{i % 4};{600 + 9 * i},50 €\n" for i in range(30))
    file.write_text(f"Objekt-Nr;Fläche;Zimmer;Miete\n{rows}", encoding="utf-8")
    task = Regression.from_files(file, target="Miete")
    assert task.left_out["Objekt-Nr"] == "another value in every row, by its name an index"
    assert {row.prompt.partition(",")[0] for row in task.rows["train"]} <= {f"Fläche: {50 + i}" for i in range(30)}


@pytest.mark.parametrize("wording", get_args(RowWording))
@pytest.mark.parametrize("missing", ["", " ", None, float("nan")])
def test_a_missing_value_keeps_the_place_of_the_others(wording, missing):
    """Two questions that differ in which value is missing are different."""
    task = Regression(target="price", wording=wording)
    first, second = ({"area": missing, "rooms": 3}, {"area": 3, "rooms": missing})
    prompts = [task.ask(values, Path()).prompt for values in (first, second)]
    assert prompts[0] != prompts[1]
    assert all("  " not in prompt and prompt == prompt.strip() for prompt in prompts)
    if wording == "bare":
        assert prompts == ["? 3", "3 ?"]
