"""Models of the playground: the built-in one, and runs of ``numerate train`` in the runs folder.

Only safetensors weights are read, no model code is run, and nothing is downloaded: an adapter is listed only if its base model is
built by this package. A model is loaded at its first question and kept.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from numerate.playground.tokens import LOADING

if TYPE_CHECKING:
    from numerate.lab.data.regression import Row
    from numerate.lab.prediction.answering import Answering, Source

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "model"
"""The built-in model; ``scripts/playground_model.py`` trains it."""

SHIPPED_NAME, SHIPPED_TABLE = "diamonds (built in)", "diamonds"

FIRST_ROW: Mapping[str, str] = {"carat": "1.08", "cut": "Ideal", "color": "H", "clarity": "SI1"}
"""The test row that the tab opens with: its greedy answer and its median are far apart. The rows after it are not chosen."""

_CONFIG, _ASKED = "config.json", "numerate.json"
_BUILT_HERE = ("tiny", "tiny-3", "small", "smollm2")
_MOST_MODELS = 50
_MOST_KEPT = 2  # loaded models
_MOST_CHOICES = 12  # distinct texts of a column that is shown as a menu
_MOST_ROWS, _MOST_BYTES = 20_000, 32 << 20  # of a table whose values are read
_MOST_CARD = 20_000  # characters
_EXAMPLES, _SEEN_ROWS = 6, 100  # test rows that are shown, of the first ones
_MOST_RECENT = 16
_MOST_PRODUCTS, _LEAST_WIDTH = 4 * 10**9, 8  # of a forward pass: each row multiplies by every parameter


@dataclass(frozen=True)
class Column:
    """A column of the model's questions: one of ``choices``, a number in a range, or any text."""

    name: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class AskedExample:
    """A row that the model was not trained on, with its truth."""

    cells: Mapping[str, str]
    truth: str


@dataclass
class AskableModel:
    """A trained model with its questions and card; loaded at its first question."""

    name: str
    folder: Path
    lock: Lock = field(default_factory=Lock, repr=False)
    recent: OrderedDict[Any, Any] = field(default_factory=OrderedDict, repr=False)  # results of the last questions

    @cached_property
    def source(self) -> Source:
        """The location of the weights, and the format of questions."""
        with LOADING:
            from numerate.lab.prediction.answering import find_source

            return find_source(str(self.folder))

    @cached_property
    def answering(self) -> Answering:
        """The loaded model."""
        with LOADING:
            from numerate.lab.prediction.answering import Answering

            return Answering(self.source, "median", lambda found: found.interval(0.9))

    @cached_property
    def most_width(self) -> int:
        """The largest beam width for which a forward pass takes at most seconds."""
        loaded = self.answering.loaded
        parameters: int = self.source.members * sum(weight.numel() for weight in loaded.model.parameters())
        return max(_LEAST_WIDTH, _MOST_PRODUCTS // max(parameters, 1))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a question with the values in their table; none for a model of free prompts."""
        names = self.source.questions.task.columns or ()
        rows = [example.cells for example in self._rows("train", _MOST_ROWS)]
        return tuple(_column(name, [cells[name] for cells in rows if name in cells]) for name in names)

    @cached_property
    def examples(self) -> tuple[AskedExample, ...]:
        """A few test rows of the table, if it is available."""
        from numerate.lab.data.columns import shown_value

        names = {column.name for column in self.columns}
        rows = [row for row in self._rows("interpolate", _SEEN_ROWS) if names and {*row.cells} == names]
        found = [AskedExample({name: shown_value(value) for name, value in row.cells.items()}, row.answer) for row in rows]
        return tuple(sorted(found, key=lambda example: example.cells != FIRST_ROW)[:_EXAMPLES])

    @cached_property
    def card(self) -> str:
        """The model card; empty if there is none."""
        file = (self.folder / "model" if (self.folder / "model").is_dir() else self.folder) / "README.md"
        return file.read_text(encoding="utf-8", errors="replace")[:_MOST_CARD] if file.is_file() else ""

    @cached_property
    def measures(self) -> dict[str, float]:
        """Scores on test rows from the model card, by metric and decision."""
        import yaml

        try:
            front = yaml.safe_load(self.card.split("---\n")[1])
            results = front["model-index"][0]["results"][0]["metrics"]
            return {str(entry["name"]): float(entry["value"]) for entry in results}
        except (yaml.YAMLError, LookupError, TypeError, ValueError):  # a card written by hand
            return {}

    def remembered(self, question: Hashable, find: Callable[[], T]) -> T:
        """Return the result of ``find``, cached for the last questions."""
        if question not in self.recent:
            self.recent[question] = find()
        self.recent.move_to_end(question)
        while len(self.recent) > _MOST_RECENT:
            self.recent.popitem(last=False)
        found: T = self.recent[question]
        return found

    def ask(self, cells: Mapping[str, str]) -> Row:
        """Return the question about a row, with numbers written as in training."""
        columns = self.columns
        unknown = [name for name in cells if name not in {column.name for column in columns}]
        if unknown:
            listed = ", ".join(column.name for column in columns) or "none"
            raise ValueError(f"cells has {unknown[0]!r:.60}, which {self.name} was not trained on: expected {listed}.")
        missing = [column.name for column in columns if not cells.get(column.name, "").strip()]
        if missing:
            raise ValueError(f"{missing[0]} is empty: fill it in.")
        return self.source.questions.ask({column.name: cells[column.name].strip() for column in columns}, Path())

    def _rows(self, split: Any, most: int) -> Sequence[Row]:
        """Return rows of the model's training table; none if it is unavailable or large."""
        from numerate.lab.data.regression import Regression
        from numerate.lab.data.tables import table_file

        config = self.source.config
        data = SHIPPED_TABLE if self.folder == SHIPPED else None if config is None else config.data
        asked = self.source.questions.task
        if data is None or asked.target is None:
            return ()
        try:
            path = table_file(Path(data))
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                return ()
            # The wording too: which rows are test rows depends on the text of their questions.
            shipped = {"target": asked.target, "wording": asked.wording}
            settings: dict[str, Any] = shipped if config is None else config.task_settings
            if self._table is None:
                self._table = Regression.from_files(path, skip_bad=True, **settings)
            return list(islice((self._table.rows or {}).get(split, ()), most))
        except (ValueError, OSError):  # the table was changed or deleted; the model still works
            return ()

    _table: Any = field(default=None, repr=False)


def _column(name: str, values: Sequence[Any]) -> Column:
    from numerate.lab.data.columns import shown_value

    texts = Counter(shown_value(value) for value in values)
    numbers = [number for text in texts if (number := _number(text)) is not None]
    if texts and len(numbers) == len(texts):
        return Column(name, least=min(numbers), most=max(numbers))
    if 0 < len(texts) <= _MOST_CHOICES:
        return Column(name, choices=tuple(sorted(texts)))
    return Column(name)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None


_KEPT: OrderedDict[tuple[Path, int], AskableModel] = OrderedDict()
_KEEPING = Lock()


def find_models(runs: Path) -> dict[str, Path]:
    """Return model folders by displayed name: the built-in model, then runs, newest first."""
    found = {SHIPPED_NAME: SHIPPED} if (SHIPPED / _CONFIG).is_file() else {}
    folders: list[Path] = [runs]
    if runs.is_dir() and not _can_be_asked(runs):
        children = [path for path in runs.iterdir() if path.is_dir()]
        folders += [*children, *(cell for path in children for cell in (path / "cells").glob("*"))]
    root = runs.resolve()
    trained = [path for path in folders if _can_be_asked(path) and _within(root, path)]
    trained.sort(key=lambda path: (path / _CONFIG).stat().st_mtime, reverse=True)
    for path in trained[:_MOST_MODELS]:
        found[path.resolve().name if path == runs else str(path.relative_to(runs))] = path
    return found


def open_model(name: str, runs: Path) -> AskableModel:
    """Return a model by name; the most recent ones stay loaded."""
    if find_spec("transformers") is None:
        raise ValueError("A model's answer needs transformers, which is not installed: run pip install 'numerate[lab]'.")
    models = find_models(runs)
    chosen = name or next(iter(models), "")
    if chosen not in models:
        raise ValueError(f"model={name!r:.80} was not found: expected one of {', '.join(models) or 'none'}.")
    folder = models[chosen].resolve()
    mark = folder, (folder / _CONFIG).stat().st_mtime_ns  # retrained: another model
    with _KEEPING:
        model = _KEPT.setdefault(mark, AskableModel(chosen, models[chosen]))
        _KEPT.move_to_end(mark)
        while len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
    return model


def _within(root: Path, folder: Path) -> bool:
    """Whether all files of a model are inside the runs folder; links that leave it are not followed."""
    files = [*folder.iterdir(), *(file for part in ("model", "members") for file in (folder / part).rglob("*"))]
    return all(path.resolve().is_relative_to(root) for path in (folder, *files))


def _can_be_asked(folder: Path) -> bool:
    """Whether a folder is a run, or the ``model`` folder of one, that loads from safetensors without custom code or network."""
    weights = folder / "model" if (folder / "model").is_dir() else folder
    told = folder / (_CONFIG if weights != folder else _ASKED)
    if not told.is_file() or not (folder / _CONFIG).is_file():
        return False
    if not all(any(member.glob("*.safetensors")) for member in (weights, *(weights / "members").glob("*"))):
        return False
    try:
        config = json.loads(told.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    if not isinstance(config, dict) or config.get("trust_remote_code"):
        return False
    if weights == folder:
        return config.get("base") is None
    return config.get("adapter", "none") == "none" or config.get("model") in _BUILT_HERE
