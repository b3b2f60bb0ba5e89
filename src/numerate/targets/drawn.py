"""Datasets whose numbers are drawn anew in every epoch: the same draw for the same seed, epoch and row, in any process."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISpawnableSeedSequence
from torch.utils.data import Dataset

from numerate.checks import check_choice, check_integer, choices
from numerate.targets.soft_numbers import PathKind

Soft = Callable[..., Mapping[str, Any]]
"""``soft(row, rng=generator, path="drawn")``: :class:`SoftNumbers`, or a function of your own."""


class Draws:
    """Draws that depend on the seed, the epoch and the row alone. Worker processes share the epoch."""

    def __init__(self, soft: Soft, seed: int, path: PathKind) -> None:
        check_choice("path", path, choices(PathKind))
        if not callable(soft):
            raise TypeError(f"soft={soft!r:.80} cannot be called: expected SoftNumbers(tokenizer, target).")
        seed = check_integer("seed", seed, "an integer >= 0", least=0)
        self.soft, self.seed, self.path = soft, seed, path
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that is drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw the numbers of this epoch from now on, in running worker processes too."""
        if epoch < 0 or int(epoch) != epoch:
            raise ValueError(f"epoch={epoch!r} is out of range: expected an integer >= 0.")
        self._epoch.fill_(int(epoch))

    def draw(self, rows: Iterable[Mapping[str, Any]], indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows with their numbers drawn."""
        epoch, draw = self.epoch, partial(self.soft, path=self.path)
        return [dict(draw(row, rng=generator(self.seed, epoch, index))) for row, index in zip(rows, indices, strict=True)]


class EpochDataset(Dataset[Any], ABC):
    """Rows by index that depend on the epoch."""

    def __init__(self, dataset: Any, draws: Draws) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or isinstance(dataset, Mapping):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}: expected rows by index, with a length, such as dataset['train']; a "
                "stream has no rows to return to, so read it into a list."
            )
        self.dataset, self.draws = dataset, draws

    @property
    def epoch(self) -> int:
        """The epoch that is drawn."""
        return self.draws.epoch

    def set_epoch(self, epoch: int) -> None:
        """Draw the numbers of this epoch from now on, in running worker processes too."""
        self.draws.set_epoch(epoch)

    def callback(self) -> Any:
        """Return a callback for the Hugging Face Trainer that sets the epoch at its start, on any number of processes."""
        from packaging.version import Version
        from transformers import TrainerCallback

        draws = self.draws

        class SetEpoch(TrainerCallback):  # type: ignore[misc]
            """Sets the epoch of a drawn dataset."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step and Version(version("accelerate")) < Version("1.15"):
                    warnings.warn(
                        f"accelerate {version('accelerate')} forgets the epoch when it skips batches: after resuming within an "
                        "epoch, the rest of it is drawn as in epoch 0; install accelerate>=1.15 for the draws of an "
                        "uninterrupted run.",
                        stacklevel=2,
                    )

            def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                draws.set_epoch(int(state.epoch or 0))

        return SetEpoch()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several rows; a data loader asks for a batch at once."""
        count, places = len(self), []
        for index in indices:
            place = int(index)
            place += count if place < 0 else 0
            if not 0 <= place < count:
                raise IndexError(f"index={index!r} is out of range: expected one below {count}, the number of rows.")
            places.append(place)
        many = getattr(self.dataset, "__getitems__", None)
        return self.read([self.dataset[place] for place in places] if many is None else many(places), places)

    @abstractmethod
    def read(self, rows: list[Any], indices: Sequence[int]) -> list[Any]:
        """Return what is made of the rows of the dataset at ``indices``, which are >= 0."""


class DrawnDataset(EpochDataset):
    """A dataset of tokenised rows whose numbers are drawn from their distributions each time a row is read.

    A draw depends on ``seed``, the epoch and the index of the row alone. So a run that is resumed sees the same batches, and so
    does one with another number of worker processes. Call ``set_epoch(epoch)`` before each epoch: accelerate and the Hugging Face
    Trainer do so on a single process; on several processes only for the sampler, so add
    ``callbacks=[data.callback()]``.

    Args:
        dataset: rows by index: a ``datasets.Dataset``, a list, a ``torch.utils.data.Dataset``.
        soft: :class:`SoftNumbers`, or a function ``soft(row, rng=generator, path=...)``.
        seed: of all draws.
        path: ``"drawn"``: a drawn number in each row, with soft targets along its tokens; ``"fixed"``: the label's own number,
            with soft targets; ``"jitter"``: a drawn number as a hard label.

    Examples:
        >>> from numerate.targets import Bell, SoftNumbers
        >>> from numerate.tokenizers import load_tokenizer
        >>> tokenizer = load_tokenizer("smollm2")
        >>> rows = [{"input_ids": tokenizer("It costs 250 euros.")["input_ids"]}]
        >>> data = DrawnDataset(rows, SoftNumbers(tokenizer, Bell(relative=0.1)))
        >>> for epoch in range(2):
        ...     data.set_epoch(epoch)
        ...     tokenizer.decode(data[0]["input_ids"])
        'It costs 271 euros.'
        'It costs 265 euros.'
    """

    def __init__(self, dataset: Any, soft: Soft, *, seed: int = 0, path: PathKind = "drawn") -> None:
        super().__init__(dataset, Draws(soft, seed, path))

    def read(self, rows: list[Any], indices: Sequence[int]) -> list[Any]:
        """Return the rows with their numbers drawn."""
        return self.draws.draw(rows, indices)


class DrawnTransform:
    """The same as :class:`DrawnDataset`, as a function for ``dataset.with_transform`` of the library ``datasets``.

    Such a function is not passed the indices of its rows, so a column has to hold them. Call ``set_epoch`` yourself.

    Args:
        soft: as for :class:`DrawnDataset`.
        seed: as for :class:`DrawnDataset`.
        path: as for :class:`DrawnDataset`.
        index_column: a column with the index of each row, which is taken out.

    Examples:
        >>> from datasets import Dataset as Table
        >>> from numerate.targets import Bell, SoftNumbers
        >>> from numerate.tokenizers import load_tokenizer
        >>> tokenizer = load_tokenizer("smollm2")
        >>> table = Table.from_dict({"input_ids": tokenizer(["It costs 250 euros."])["input_ids"]})
        >>> table = table.add_column("index", list(range(len(table))))
        >>> draw = DrawnTransform(SoftNumbers(tokenizer, Bell(relative=0.1)))
        >>> tokenizer.decode(table.with_transform(draw)[0]["input_ids"])
        'It costs 271 euros.'
    """

    def __init__(self, soft: Soft, *, seed: int = 0, path: PathKind = "drawn", index_column: str = "index") -> None:
        self.index_column = index_column
        self._draws = Draws(soft, seed, path)

    def set_epoch(self, epoch: int) -> None:
        """Draw the numbers of this epoch from now on, in running worker processes too."""
        self._draws.set_epoch(epoch)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return a batch of columns with the numbers drawn."""
        if self.index_column not in batch:
            raise ValueError(
                f"the batch has no column {self.index_column!r}, only {', '.join(map(repr, batch))}: expected the index of each "
                "row, which seeds its draw; add dataset.add_column('index', list(range(len(dataset)))), or use DrawnDataset."
            )
        indices = batch[self.index_column]
        names = [name for name in batch if name != self.index_column]
        given = ({name: batch[name][i] for name in names} for i in range(len(indices)))
        rows = self._draws.draw(given, [*map(int, indices)])
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else names)}


class _Seed(ISpawnableSeedSequence):
    """A state for a generator to start with; spawned generators are rare, and seeded by NumPy."""

    def __init__(self, entropy: Sequence[int]) -> None:
        self._entropy = entropy

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._entropy)

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:
        return self._sequence.spawn(n_children)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return np.frombuffer(blake2b(repr(self._entropy).encode(), digest_size=32).digest(), "<u8")  # what PCG64 asks for


def generator(*entropy: int) -> np.random.Generator:
    """Return a generator whose numbers depend on these integers alone, in a fifth of the time that NumPy takes to seed one.

    Examples:
        >>> [round(generator(7, 0, row).random(), 3) for row in (5, 6, 5)]
        [0.993, 0.165, 0.993]
    """
    seed: Any = _Seed(entropy)  # NumPy takes any ISeedSequence; its types say SeedSequence
    return np.random.Generator(np.random.PCG64(seed))
