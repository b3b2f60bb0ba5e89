"""Read the time off an analogue clock."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.lab.tasks.base import Example, Split, Task
from numerate.lab.tasks.clock.face import Face, clock_image, random_face
from numerate.lab.tasks.files import BadData, Reader, column, existing
from numerate.messages import check_number

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPT = "What time does the clock show? Answer as hour_minute, such as 2_55."

_SPLITS: Mapping[str, Split] = {"train": "train", "valid": "interpolate", "test": "interpolate"}
_IMAGES = (".jpg", ".jpeg", ".png")
_LABEL = re.compile(r"\s*0?(\d|1[0-2])\s*[-_:]\s*([0-5]\d)\s*", re.ASCII)


@dataclass(frozen=True)
class Photo:
    """A clock that was read from a dataset, and what it shows."""

    image: Path | Image
    answer: str


@dataclass(frozen=True)
class Clock(Task):
    """Tell the time that an analogue clock shows, as ``hour_minute``: hours 1 to 12, minutes in two digits.

    Training and interpolation: minutes that are multiples of ``step``, which are the 144 classes of the TIME dataset at 5;
    no two clocks are alike. Extrapolation: the minutes between them.

    Attributes:
        size: of the picture, in pixels each way.
        rotation: the most that the whole clock is tilted either way, in degrees.
        second_hand: the share of clocks that have one. It tells nothing: the minute hand points at its minute.
        step: minutes between the times of training.

    Example:
        >>> example = Clock().examples("train", 1)[0]
        >>> example.prompt, example.answer, example.image.size
        ('What time does the clock show? Answer as hour_minute, such as 2_55.', '9_15', (224, 224))
    """

    size: int = 224
    rotation: float = 15.0
    second_hand: float = 0.3
    step: int = 5

    name = "clock"
    extractor = "clock"
    measures = ("clock_accuracy", "parsed", "time_gap", "time_gap_circular")
    visual = True

    def __post_init__(self) -> None:
        for name, low, high in (("size", 64, 4096), ("step", 2, 60)):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name}={value!r} is out of range: expected a whole number from {low} to {high}.")
        if 60 % self.step:
            raise ValueError(f"step={self.step} does not divide the hour: expected a divisor of 60, such as 5 or 15.")
        for name, most in (("rotation", 180), ("second_hand", 1)):
            if check_number(name, getattr(self, name), least=0) > most:
                raise ValueError(f"{name}={getattr(self, name)!r} is out of range: expected a number from 0 to {most}.")

    def draw(self, rng: random.Random, split: Split) -> Face:
        """A clock at a time of the split."""
        minutes = [minute for minute in range(60) if (minute % self.step == 0) == (split != "extrapolate")]
        hour, minute = rng.randint(1, 12), rng.choice(minutes)
        return random_face(rng, hour, minute, rotation=self.rotation, second_hand=self.second_hand)

    def content(self, spec: Face) -> Face:
        """The clock, without the grain of its picture."""
        return replace(spec, seed=0)

    def make(self, spec: Face | Photo) -> Example:
        """The picture of a clock, or the one in a file."""
        if isinstance(spec, Photo):
            from numerate.lab.tasks.drawing import open_image

            return Example(PROMPT, spec.answer, open_image(spec.image), {"image": str(spec.image)})
        meta = {"hour": spec.hour, "minute": spec.minute, "tilt": spec.tilt, "numerals": spec.numerals}
        return Example(PROMPT, f"{spec.hour}_{spec.minute:02}", clock_image(spec, self.size), meta)

    def read_row(self, row: dict[str, Any]) -> list[Photo]:
        """See :func:`clock_photo`."""
        return [clock_photo(row)]

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Photo]]:
        """The TIME dataset (gpiosenka, Kaggle): its folder, or the ``clocks.csv`` in it.

        ``clocks.csv`` has the columns ``class index``, ``filepaths`` (from the folder on), ``labels`` (``2_55`` or ``2-55``)
        and ``data set`` (train, valid, test). Without it, the folders ``train/``, ``valid/`` and ``test/`` are read, with a
        folder of images for each label. ``train`` is for training, ``valid`` and ``test`` are for interpolation.
        """
        found: dict[Split, list[Photo]] = {"train": [], "interpolate": []}
        table = path if path.suffix == ".csv" else path / "clocks.csv"
        if table.is_file() or path.suffix == ".csv":
            for line, row in reader.table(table):
                with reader.row(table, line):
                    split = _SPLITS.get(str(column(row, "data set")).strip().lower())
                    if split is None:
                        raise BadData(f"data set {row['data set']!r} is not known", f"Expected one of {', '.join(_SPLITS)}.")
                    found[split].append(clock_photo(row, table.parent))
            return found
        if not any((path / name).is_dir() for name in _SPLITS):
            raise BadData(
                "is not the TIME dataset", f"Expected a folder with clocks.csv, or with {'/, '.join(_SPLITS)}/ in it.", path
            )
        for name, split in _SPLITS.items():
            for image in _images(path / name):
                with reader.row(image, None):
                    found[split].append(clock_photo({"filepaths": image.name, "labels": image.parent.name}, image.parent))
        return found


def clock_photo(row: dict[str, Any], folder: Path = Path()) -> Photo:
    """A row of the dataset: ``labels``, and an ``image`` or its path in ``filepaths``.

    Example:
        >>> clock_photo({"image": None, "labels": "2-55"}).answer
        '2_55'
    """
    label = _LABEL.fullmatch(str(column(row, "labels")))
    if label is None or label[1] == "0":
        raise BadData(f"the label {row['labels']!r} is no time", "Expected hour_minute from 1_00 to 12_59, such as 2_55.")
    image = row["image"] if "image" in row else existing(folder / str(column(row, "filepaths")).strip().replace("\\", "/"))
    return Photo(image, f"{label[1]}_{label[2]}")


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in _IMAGES)
