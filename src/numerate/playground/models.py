"""Models that the playground can ask: the one that comes with it, and those that ``numerate train`` left in the folder of runs.

Weights are read from safetensors alone, no code that comes with a model is run, and nothing is fetched: an adapter counts only if
its base is built here. A model is loaded when it is first asked, and kept.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from numerate.playground.loading import LOADING, check_installed

if TYPE_CHECKING:
    from numerate.lab.data.regression import Row
    from numerate.lab.prediction.answering import Answering, Source

T = TypeVar("T")

SHIPPED = Path(__file__).parent / "model"
"""The model that comes with the playground; ``scripts/playground_model.py`` trains it."""

SHIPPED_NAME, SHIPPED_TABLE = "diamonds (ships with numerate)", "diamonds"

_CONFIG, _ASKED = "config.json", "numerate.json"
_BUILT_HERE = ("tiny", "tiny-3", "small", "smollm2")
_MOST_MODELS = 50
_MOST_KEPT = 2  # loaded models
_MOST_CHOICES = 12  # different texts of a column that is chosen from a list
_MOST_ROWS, _MOST_BYTES = 20_000, 32 << 20  # of a table that is read for its values
_MOST_CARD = 20_000  # characters
_EXAMPLES = 6
_MOST_RECENT = 16
_MOST_PRODUCTS, _LEAST_WIDTH = 4 * 10**9, 8  # of a forward pass: a row multiplies by every parameter


@dataclass(frozen=True)
class Column:
    """What a column of the model's questions may hold: one of ``choices``, a number between two others, or any text."""

    name: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class AskedExample:
    """A row that the model was not trained on, and the number that is true for it."""

    cells: Mapping[str, str]
    truth: str


@dataclass
class AskableModel:
    """A trained model, its questions and what is known about it; loaded when it is first asked."""

    name: str
    folder: Path
    lock: Lock = field(default_factory=Lock, repr=False)
    recent: OrderedDict[Any, Any] = field(default_factory=OrderedDict, repr=False)  # what was found for the last questions

    @cached_property
    def source(self) -> Source:
        """Where the weights are, and how the model is asked."""
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
        """The widest beam, so that a pass takes seconds at most."""
        parameters: int = sum(weight.numel() for weight in self.answering.loaded.model.parameters())
        return max(_LEAST_WIDTH, _MOST_PRODUCTS // max(parameters, 1))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a question, with what their table says about them; none if the model is asked in its own words."""
        names = self.source.questions.task.columns or ()
        rows = [example.cells for example in self._rows("train", _MOST_ROWS)]
        return tuple(_column(name, [cells[name] for cells in rows if name in cells]) for name in names)

    @cached_property
    def examples(self) -> tuple[AskedExample, ...]:
        """A few test rows of the table, if it is at hand."""
        from numerate.lab.data.columns import shown_value

        names = {column.name for column in self.columns}
        rows = [row for row in self._rows("interpolate", _EXAMPLES) if names and {*row.cells} == names]
        return tuple(AskedExample({name: shown_value(value) for name, value in row.cells.items()}, row.answer) for row in rows)

    @cached_property
    def card(self) -> str:
        """The model card; empty if there is none."""
        file = (self.folder / "model" if (self.folder / "model").is_dir() else self.folder) / "README.md"
        return file.read_text(encoding="utf-8", errors="replace")[:_MOST_CARD] if file.is_file() else ""

    @cached_property
    def measures(self) -> dict[str, float]:
        """How good the model is on test rows, as its card says: figures by metric and decision."""
        import yaml

        try:
            front = yaml.safe_load(self.card.split("---\n")[1])
            results = front["model-index"][0]["results"][0]["metrics"]
            return {str(entry["name"]): float(entry["value"]) for entry in results}
        except (yaml.YAMLError, LookupError, TypeError, ValueError):  # a card that was written by hand
            return {}

    def remembered(self, question: Hashable, find: Callable[[], T]) -> T:
        """Return what ``find`` returned for this question, if it was one of the last."""
        if question not in self.recent:
            self.recent[question] = find()
        self.recent.move_to_end(question)
        while len(self.recent) > _MOST_RECENT:
            self.recent.popitem(last=False)
        found: T = self.recent[question]
        return found

    def ask(self, cells: Mapping[str, str]) -> Row:
        """Return the question about a row; numbers are written as the training wrote them."""
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
        """Return rows of the table that the model was trained on; none if it is not at hand, or large."""
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
        except (ValueError, OSError):  # the table has changed, or is gone: the model can be asked all the same
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
    """Return the folders of models by the name to show: that of the package first, then those of runs, the newest first."""
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
    """Return a model by its name; the few that were asked last stay loaded."""
    check_installed("A model's answer")
    models = find_models(runs)
    chosen = name or next(iter(models), "")
    if chosen not in models:
        raise ValueError(f"model={name!r:.80} is not here: expected one of {', '.join(models) or 'none'}.")
    folder = models[chosen].resolve()
    mark = folder, (folder / _CONFIG).stat().st_mtime_ns  # trained again: another model
    with _KEEPING:
        model = _KEPT.setdefault(mark, AskableModel(chosen, models[chosen]))
        _KEPT.move_to_end(mark)
        while len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
    return model


def _within(root: Path, folder: Path) -> bool:
    """Whether all files of a model are in the folder of runs: links that lead out of it are not followed."""
    files = [*folder.iterdir(), *((folder / "model").iterdir() if (folder / "model").is_dir() else ())]
    return all(path.resolve().is_relative_to(root) for path in (folder, *files))


def _can_be_asked(folder: Path) -> bool:
    """Whether a folder is a run with weights in safetensors that can be loaded without code of its own and without a network.

    The folder of the weights alone will do: it tells how the model was asked.
    """
    weights = folder / "model" if (folder / "model").is_dir() else folder
    told = folder / (_CONFIG if weights != folder else _ASKED)
    if not told.is_file() or not (folder / _CONFIG).is_file() or not any(weights.glob("*.safetensors")):
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
