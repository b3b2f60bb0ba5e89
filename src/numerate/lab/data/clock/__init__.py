"""The clock task: read the time from an analogue clock.

    What time does the clock show? Answer as hour_minute, such as 2_55.       9_15

``face`` draws it. Real data: the TIME dataset (gpiosenka, Kaggle).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numerate.checks import check_choice, check_number, choices
from numerate.lab.data.base import Example, Split, check_whole
from numerate.lab.data.clock.face import Face, clock_image, random_face
from numerate.lab.data.pictures import Picture
from numerate.lab.data.row_reader import BadData, RowReader, column, existing, photo
from numerate.lab.data.times import TimeTask

ClockWording = Literal["full", "bare"]

PROMPTS: Mapping[ClockWording, str] = {
    "full": "What time does the clock show? Answer as hour_minute, such as 2_55.",
    "bare": "time?",
}

_SPLITS: Mapping[str, Split] = {"train": "train", "valid": "interpolate", "test": "interpolate"}
_IMAGES = (".jpg", ".jpeg", ".png")
_LABEL = re.compile(r"\s*0?(\d|1[0-2])\s*[-_:]\s*([0-5]\d)\s*", re.ASCII)


@dataclass(frozen=True)
class Clock(TimeTask):
    """Read the time from an analogue clock as ``hour_minute``: hours 1 to 12, minutes in two digits.

    Training and interpolation use minutes that are multiples of ``step``; ``step=5`` gives the 144 classes of the TIME
    dataset. Extrapolation uses the minutes between them; ``step=1`` leaves none, and has no extrapolation. The appearance of each
    clock is drawn at random.

    Examples:
        >>> example = Clock().examples("train", 1)[0]
        >>> example.prompt, example.answer, example.image.size
        ('What time does the clock show? Answer as hour_minute, such as 2_55.', '9_15', (224, 224))
    """

    size: int = 224  # width and height of the image in pixels, 64 to 4096
    rotation: float = 15.0  # the largest tilt of the clock in either direction, in degrees, 0 to 180
    second_hand: float = 0.3  # the share of clocks with a second hand. It does not affect the answer.
    step: int = 5  # minutes between the training times, a divisor of 60
    # ``"full"`` asks in a sentence that says how to answer; ``"bare"`` asks ``time?``, which costs small models less.
    wording: ClockWording = "full"

    name = "clock"
    dataset = "the TIME dataset"
    reads_with = ("wording",)
    visual = True

    def __post_init__(self) -> None:
        for name, low, high in (("size", 64, 4096), ("step", 1, 60)):
            check_whole(name, getattr(self, name), low, high)
        if 60 % self.step:
            raise ValueError(f"step={self.step} does not divide the hour: expected a divisor of 60, such as 5 or 15.")
        for name, most in (("rotation", 180), ("second_hand", 1)):
            check_number(name, getattr(self, name), least=0, most=most)
        check_choice("wording", self.wording, choices(ClockWording))

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have examples."""
        return ("train", "interpolate") if self.rows is None and self.step == 1 else super().splits

    def draw(self, rng: random.Random, split: Split) -> Face:
        """Draw a clock that shows a time of the split."""
        minutes = [minute for minute in range(60) if (minute % self.step == 0) == (split != "extrapolate")]
        hour, minute = rng.randint(1, 12), rng.choice(minutes)
        return random_face(rng, hour, minute, rotation=self.rotation, second_hand=self.second_hand)

    def content(self, spec: Face) -> Face:
        """Return the clock without the seed of its noise."""
        return replace(spec, seed=0)

    def make(self, spec: Face) -> Example:
        """Return the time and the clock, which is drawn."""
        meta = {"hour": spec.hour, "minute": spec.minute, "tilt": spec.tilt, "numerals": spec.numerals}
        return Example(PROMPTS[self.wording], f"{spec.hour}_{spec.minute:02}", Picture(clock_image, (spec, self.size)), meta)

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Example]]:
        """Read the TIME dataset (gpiosenka, Kaggle): its folder, or the ``clocks.csv`` in it.

        ``clocks.csv`` has the columns ``class index``, ``filepaths`` (relative to the folder), ``labels`` (``2_55`` or
        ``2-55``) and ``data set`` (train, valid, test). Without it, ``train/``, ``valid/`` and ``test/`` are read, with one
        folder of images per label. ``valid`` and ``test`` become ``interpolate``.
        """
        rows: dict[Split, list[Example]] = {"train": [], "interpolate": []}
        table = path if path.suffix == ".csv" else path / "clocks.csv"
        if table.is_file() or path.suffix == ".csv":
            for line, row in reader.table(table):
                with reader.row(table, line):
                    split = _SPLITS.get(str(column(row, "data set")).strip().lower())
                    if split is None:
                        raise BadData(f"data set {row['data set']!r} is not known", f"Expected one of {', '.join(_SPLITS)}.")
                    rows[split].append(self._photo(row, table.parent))
            return rows
        if not any((path / name).is_dir() for name in _SPLITS):
            expected = f"Expected a folder with clocks.csv, or with {'/, '.join(_SPLITS)}/ in it."
            raise BadData("is not the TIME dataset", expected, path)
        for name, split in _SPLITS.items():
            for image in sorted(file for file in path.glob(f"{name}/*/*") if file.suffix.lower() in _IMAGES):
                with reader.row(image, None):
                    rows[split].append(self._photo({"filepaths": image.name, "labels": image.parent.name}, image.parent))
        return rows

    def _photo(self, row: dict[str, Any], folder: Path) -> Example:
        """Read a row of the dataset: ``labels``, and the path of the image in ``filepaths``."""
        label = _LABEL.fullmatch(str(column(row, "labels")))
        if label is None or label[1] == "0":
            raise BadData(f"the label {row['labels']!r} is not a time", "Expected hour_minute from 1_00 to 12_59, such as 2_55.")
        image = existing(folder / str(column(row, "filepaths")).strip().replace("\\", "/"))
        return Example(PROMPTS[self.wording], f"{label[1]}_{label[2]}", photo(image), {"image": str(image)})
