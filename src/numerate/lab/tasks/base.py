"""What a task is: examples in three regimes, and a score of an output.

``train`` and ``interpolate`` are drawn from the same range and never share an example: the hash of its content says which
of the two it belongs to. ``extrapolate`` lies outside the range of training. The same seed gives the same examples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.lab.tasks.files import Reader
from numerate.messages import check_choice, choices, nearest

if TYPE_CHECKING:
    from PIL.Image import Image

Split = Literal["train", "interpolate", "extrapolate"]
Located = tuple[Path, int, dict[str, Any]]  # file or part of a dataset, line, columns

_PATIENCE = 2000  # draws without a new example before a range is called exhausted


@dataclass(frozen=True)
class Example:
    """A question, its answer, and perhaps a picture."""

    prompt: str
    answer: str
    image: Image | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


class Examples(Sequence[Example]):
    """Examples that are made when they are looked at: ten thousand pictures take no memory."""

    def __init__(self, specs: Sequence[Any], make: Callable[[Any], Example]) -> None:
        self._specs, self._make = specs, make

    def __len__(self) -> int:
        return len(self._specs)

    @overload
    def __getitem__(self, at: int) -> Example: ...
    @overload
    def __getitem__(self, at: slice) -> Examples: ...
    def __getitem__(self, at: int | slice) -> Example | Examples:
        return Examples(self._specs[at], self._make) if isinstance(at, slice) else self._make(self._specs[at])

    def __iter__(self) -> Iterator[Example]:
        return map(self._make, self._specs)

    def __repr__(self) -> str:
        return f"<{len(self)} examples>"


class Task:
    """Questions whose answers are numbers. A subclass is a frozen dataclass of its settings with :meth:`draw` and :meth:`make`.

    Attributes:
        name: in the registry.
        extractor: reads the answer out of an output, by its name in ``EXTRACTORS``.
        measures: what :meth:`score` gives, by their names in ``METRICS``; the first is the headline.
        visual: whether examples have pictures.
    """

    name: ClassVar[str]
    extractor: ClassVar[str] = "last_number"
    measures: ClassVar[tuple[str, ...]] = ("exact", "parsed", "relative_error", "log10_error")
    visual: ClassVar[bool] = False
    _rows: Mapping[Split, Sequence[Any]] | None = None  # of a task that was read from files
    _skipped: Sequence[Exception] = ()
    _notes: Sequence[str] = ()

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse settings that the task does not know, by name."""
        known = [setting.name for setting in fields(cls)]  # type: ignore[arg-type]
        for name, value in settings.items():
            if name not in known:
                expected = f"expected one of {', '.join(known) or 'none'}.{nearest(name, known)}"
                raise TypeError(f"{name}={value!r} is not a setting of the task {cls.name!r}: {expected}")
        return super().__new__(cls)

    # Examples

    @property
    def splits(self) -> tuple[Split, ...]:
        """What there are examples of."""
        every: tuple[Split, ...] = ("train", "interpolate", "extrapolate")
        return every if self._rows is None else tuple(split for split in every if self._rows.get(split))

    def count(self, split: Split) -> int | None:
        """How many examples of a split were read from files; None if they are generated, without end."""
        return None if self._rows is None else len(self._rows.get(split, ()))

    def examples(self, split: Split, n: int | None = None, seed: int = 0) -> Examples:
        """``n`` examples of a split; all of them, if they were read from files and ``n`` is None.

        Examples of ``interpolate`` and ``extrapolate`` are all different. The seed decides which they are, and their order.
        """
        check_choice("split", split, choices(Split))
        if split not in self.splits:
            raise ValueError(f"split={split!r} has no examples here: expected one of {', '.join(self.splits) or 'none'}.")
        if n is not None and (not isinstance(n, int) or n < 0):
            raise ValueError(f"n={n!r} is out of range: expected a whole number >= 0.")
        rng = random.Random(f"{self.name}/{split}/{seed}")
        if self._rows is not None:
            rows = list(self._rows[split])
            rng.shuffle(rows)
            if n is not None and n > len(rows):
                raise ValueError(f"n={n} is more than the {len(rows)} examples of {split!r} that were read: ask for fewer.")
            return Examples(rows[:n], self.make)
        if n is None:
            raise ValueError("n=None asks for all examples: expected a number, since these are generated without end.")
        return Examples(self._drawn(split, n, rng), self.make)

    def _drawn(self, split: Split, n: int, rng: random.Random) -> list[Any]:
        specs: list[Any] = []
        seen: set[int] = set()
        misses = 0
        while len(specs) < n:
            spec = self.draw(rng, split)
            mark = content_hash(self.content(spec))
            mine = split == "extrapolate" or (mark % 5 == 0) == (split == "interpolate")
            if mine and (split == "train" or mark not in seen):
                specs.append(spec)
                seen.add(mark)
                misses = 0
                continue
            misses += 1
            if misses > _PATIENCE:
                raise ValueError(
                    f"n={n} is more than there are: {self!r} has about {len(seen)} different examples of {split!r}. "
                    "Ask for fewer, or widen its settings."
                )
        return specs

    def draw(self, rng: random.Random, split: Split) -> Any:
        """The content of one example, as plain data; of ``extrapolate``, outside the range of the others."""
        raise NotImplementedError

    def make(self, spec: Any) -> Example:
        """The example of what was drawn, or of a row that was read."""
        raise NotImplementedError

    def content(self, spec: Any) -> Any:
        """What makes an example another one; without what only changes its looks."""
        return spec

    # Scores

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Every measure of an output. One without an answer scores the worst."""
        gold, guess = self.read(example.answer), self.read(output)
        return {name: METRICS[name](gold, guess) for name in self.measures}

    def read(self, text: str) -> Any:
        """The answer in a text, or None."""
        return EXTRACTORS[self.extractor](text)

    # Real data

    @classmethod
    def from_files(cls, path: str | Path, *, skip_bad: bool = False, **settings: Any) -> Self:
        """The same task on real data, in the dataset's own format.

        Args:
            path: a file or folder.
            skip_bad: leave out rows that cannot be read; ``.skipped`` has them, each with file, line and remedy.
            **settings: of the task.
        """
        reader = Reader(skip_bad)
        task = cls(**settings)
        return task._with_rows(task.read_files(Path(path), reader), reader, path)

    @classmethod
    def from_hub(cls, repo: str, name: str | None = None, *, skip_bad: bool = False, **settings: Any) -> Self:
        """The same task on a dataset of the Hugging Face Hub, or a folder that ``datasets`` can load.

        Args:
            repo: such as ``"openai/gsm8k"``.
            name: of the dataset's configuration, if it has several.
            skip_bad: as in :meth:`from_files`.
            **settings: of the task.
        """
        from datasets import load_dataset

        task, reader = cls(**settings), Reader(skip_bad)
        parts = load_dataset(repo, name).items()
        located = ((Path(f"{repo}/{part}"), line, row) for part, found in parts for line, row in enumerate(found, 1))
        rows: dict[Split, list[Any]] = {"train": [], "interpolate": []}
        for part, spec in task.read_rows(located, reader):
            rows["train" if part.name.startswith("train") else "interpolate"].append(spec)
        return task._with_rows(rows, reader, repo)

    def _with_rows(self, rows: Mapping[Split, Sequence[Any]], reader: Reader, source: object) -> Self:
        object.__setattr__(self, "_rows", {split: tuple(found) for split, found in rows.items()})
        object.__setattr__(self, "_skipped", tuple(reader.skipped))
        object.__setattr__(self, "_notes", tuple(reader.notes))
        if not self.splits:
            raise ValueError(f"{source} has no rows that could be read ({len(reader.skipped)} were skipped): expected data.")
        return self

    @property
    def skipped(self) -> Sequence[Exception]:
        """Rows of the files that were left out, and why."""
        return self._skipped

    @property
    def notes(self) -> Sequence[str]:
        """How the files were read, where that could have been otherwise."""
        return self._notes

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Any]]:
        """Rows by split."""
        raise ValueError(f"the task {self.name!r} has no real data to read: it is generated; leave out the path.")

    def read_rows(self, rows: Iterable[Located], reader: Reader) -> Iterator[tuple[Path, Any]]:
        """What the rows of a dataset on the Hub become, each with the part of the dataset that it is from."""
        for part, line, row in rows:
            found: Sequence[Any] = ()
            with reader.row(part, line):
                found = self.read_row(row)
            yield from ((part, spec) for spec in found)

    def read_row(self, row: dict[str, Any]) -> Sequence[Any]:
        """What a row of a dataset on the Hub becomes: one example, or several."""
        raise ValueError(f"the task {self.name!r} has no usual layout on the Hub: read its files with from_files.")


def content_hash(content: Any) -> int:
    """The same number for the same content, on every machine."""
    return int.from_bytes(blake2b(repr(content).encode(), digest_size=8).digest(), "big")
