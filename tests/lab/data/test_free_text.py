"""Which columns are free text: sentences, molecules and names of products are, and what trees can split is not."""

import random

import pytest

from numerate.lab.data import Regression
from numerate.lab.data.free_text import is_free_text
from numerate.lab.data.tables import TABLES

RNG = random.Random(0)
WORDS = ["the", "old", "red", "lamp", "stands", "near", "a", "window", "of", "our", "small", "kitchen", "and", "shines"]
TEXTS = {
    "sentences": [" ".join(RNG.choices(WORDS, k=RNG.randint(4, 15))) for _ in range(60)],
    "short sentences": [" ".join(RNG.choices(WORDS, k=4)) for _ in range(60)],
    "sentences without blanks": [
        "".join(RNG.choices("今日は天気が良いので散歩に行きました", k=RNG.randint(8, 30))) for _ in range(60)
    ],
    "sentences that two people rated": [" ".join(RNG.choices(WORDS, k=9)) for _ in range(40)] * 2,
    "products": [
        f"Lamp {RNG.choice(WORDS)} {RNG.randint(1, 99)} W, {RNG.choice(WORDS)} {'steel' * RNG.randint(1, 3)}" for _ in range(60)
    ],
    "molecules": ["".join(RNG.choices(["C", "c1ccccc1", "(=O)", "N", "Cl"], k=RNG.randint(4, 14))) for _ in range(60)],
    "a few sentences": ["A lamp near the window.", "An old door, painted red.", "The kitchen"],
    "lists of a JSON file": [RNG.choices(WORDS, k=6) for _ in range(60)],
}
VALUES = {
    "cities": ["Ulm", "Frankfurt am Main", "Bern", "Rotterdam", "New York", "Garmisch-Partenkirchen", "Aix-en-Provence", "Rom"],
    "cities that repeat": RNG.choices(["Frankfurt am Main", "Garmisch-Partenkirchen", "Newcastle upon Tyne in England"], k=60),
    "long categories": RNG.choices(["Bachelor of Science in Chemistry", "Master of Arts in the History of Europe"], k=60),
    "people": ["Ann Lee", "Bob Stone", "Eve Miller", "Max Mustermann", "Zoe Li", "Alexander Graham", "Jo Nesbo"],
    "ids": [f"O-{100000 + i}" for i in range(60)],
    "uuids": [f"{RNG.getrandbits(128):032x}" for _ in range(60)],
    "books": [f"978-3-16-{RNG.randint(100000, 999999)}-{i % 10}" for i in range(60)],
    "phone numbers": [f"+49 171 {RNG.randint(1000, 9999)} {RNG.randint(100, 999)}" for _ in range(60)],
    "short codes": [RNG.choice("ABC") + RNG.choice("XYZ") + str(RNG.randint(1, 99)) for _ in range(60)],
    "dates": [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(60)],
    "dates with times": [f"2024-{1 + i % 12:02}-{1 + i % 28:02} 12:{i:02}:00" for i in range(60)],
    "numbers": [RNG.random() for _ in range(60)],
    "numbers with units": [f"{RNG.randint(1, 99)},{RNG.randint(10, 99)} EUR" for _ in range(60)],
    "mostly numbers": [*range(50), *("not measured because of rain" for _ in range(5))],
    "blanks": ["", None, "n/a", float("nan")],
    "nothing": [],
}


@pytest.mark.parametrize("name", TEXTS)
def test_free_text(name):
    assert is_free_text(TEXTS[name])


@pytest.mark.parametrize("name", VALUES)
def test_no_free_text(name):
    assert not is_free_text(VALUES[name])


def test_blank_cells_do_not_count():
    assert is_free_text([*TEXTS["molecules"], *[""] * 200])


@pytest.mark.parametrize(("table", "target", "expected"), [("esol", "logSolubility", ["smiles"]), ("diamonds", "price", [])])
def test_packaged_tables(table, target, expected):
    assert table in TABLES
    rows = [example.meta["cells"] for example in Regression.from_files(table, target=target).examples("train", 500)]
    assert [name for name in rows[0] if is_free_text([row[name] for row in rows])] == expected
