"""What requests find of a model's numbers: a llama.cpp server with SmolLM2 is asked after 200 prompts.

    python research/served_numbers.py http://localhost:8080/v1 served.jsonl

Each prompt is searched by its 20, 100 and 1,000 most likely next tokens with the same limit of requests; and, where nothing is
drawn, in a search of numbers of one digit, compared with the model itself. Lines are appended to the file, and a call goes on
after those that it has. docs/howto/served_models.md has the results.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from rich.progress import track

from numerate.decode import CompletionServer, NumberGrammar, distribution, served_distribution
from numerate.decode.members import NoNumberError
from numerate.decode.server import LISTED
from numerate.distribution import NumberDistribution
from numerate.lab.files.records import recover_jsonl
from numerate.lab.models.loading import load_model

FEW: dict[str, Any] = {"width": 2, "covered": 0.999}
ONE_DIGIT: dict[str, Any] = {
    "grammar": NumberGrammar(sign=False, digits=(1, 1), decimals=0),
    "width": None,
    "covered": 0.99,
}
THINGS = [
    "Weight of a cat in kg",
    "Height of a door in cm",
    "Boiling point of water in degrees Celsius",
    "Days in a year",
    "Length of a football field in metres",
    "Height of Mount Everest in metres",
    "Body temperature in degrees Celsius",
    "Speed limit in a town in km/h",
    "Age of a pupil in first grade",
    "Price of a cup of coffee in dollars",
    "Legs of a spider",
    "Minutes in a day",
    "Weight of an egg in grams",
    "Length of a marathon in km",
    "Population of Iceland",
    "Number of moons of Jupiter",
    "Year of the first moon landing",
    "Height of an adult in cm",
    "Calories in an apple",
    "Distance from Paris to London in km",
    "Atomic number of iron",
    "Weight of a bicycle in kg",
    "Hours of sleep per night",
    "Pages of a novel",
    "Length of a credit card in mm",
]


class Counted(CompletionServer):
    """A server whose requests are counted in ``asked``."""

    asked = 0

    def next_tokens(self, prompts: Any, *others: Any) -> Any:
        """Count and ask."""
        Counted.asked += len(prompts)
        return super().next_tokens(prompts, *others)


def prompts() -> list[tuple[int, str, str]]:
    """Return numbers, kinds and texts of the prompts, in random order: 100 sums, 50 prices, 50 times and quantities."""
    draw = random.Random(44)
    found = []
    for place in range(100):
        a, b = draw.randrange(10 ** (1 + place % 3)), draw.randrange(10 ** (1 + place // 3 % 3))
        found.append(("sums", f"{a} + {b} ="))
    for _ in range(50):
        carat, cut = draw.choice([0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0]), draw.choice(["Ideal", "Premium", "Good", "Fair"])
        row = f"carat: {carat}, cut: {cut}, color: {draw.choice('DEFGHIJ')}"
        found.append(("prices", f"{row}, clarity: {draw.choice(['IF', 'VVS1', 'VS2', 'SI1', 'I1'])}. price in dollars:"))
    for thing in THINGS:
        hour, minute = draw.randrange(1, 13), draw.randrange(60)
        clock = f"The digital clock shows {hour:02}:{minute:02}. {draw.randrange(5, 90)} minutes later the hour is"
        found += [("others", clock), ("others", f"{thing}:")]
    order = [*range(200)]
    random.Random(1).shuffle(order)
    return [(place, *found[place]) for place in order]


def variation(one: NumberDistribution, other: NumberDistribution) -> float:
    """Return the total variation between two distributions; what is no number found is an outcome too."""
    first, second = (
        {value: float(p) * found.covered for value, p in zip(found.values, found.probabilities, strict=True)}
        | {"more digits": found.more_digits, "no number": found.no_number, "not searched": found.not_searched}
        for found in (one, other)
    )
    return sum(abs(first.get(value, 0) - second.get(value, 0)) for value in first | second) / 2


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a llama.cpp server with SmolLM2-135M-Instruct")
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=200, help="default: %(default)s")
    given = parser.parse_args(arguments)
    loaded = load_model("smollm2")
    done = {row["prompt"] for row in recover_jsonl(given.file)}
    for place, kind, text in track([one for one in prompts()[: given.prompts] if one[0] not in done]):
        line: dict[str, Any] = {"prompt": place, "kind": kind}
        for top in (20, 100, LISTED):
            server = Counted(
                given.url, "smollm2", timeout=300, concurrency=1, kind="llama.cpp" if top == LISTED else "other", top=top
            )
            Counted.asked, start = 0, time.perf_counter()
            try:
                left = served_distribution(server, [text], tokenizer=loaded.tokenizer, **FEW)[0].not_searched
            except NoNumberError:
                left = None
            line[f"{top}"] = {"not_searched": left, "requests": Counted.asked, "s": time.perf_counter() - start}
        own = distribution(loaded.model, loaded.tokenizer([text], return_tensors="pt"), loaded.tokenizer, **ONE_DIGIT)[0]
        (found,) = served_distribution(server, [text], tokenizer=loaded.tokenizer, **ONE_DIGIT)
        line["variation"] = variation(own, found)
        with given.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
