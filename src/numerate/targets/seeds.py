"""Generators of many rows, seeded together: each is ``np.random.default_rng([*entropy, index])``, whose seeding is slow.

``np.random.SeedSequence`` hashes its words one by one, for one generator. NumPy guarantees that hash, so it is computed here for
all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISpawnableSeedSequence

_Words = npt.NDArray[np.uint32]

_POOL = 4  # words of 32 bits
_MIX, _MIXED = 0xCA01F9DD, 0x4973F715


@cache
def _powers(start: int, factor: int, count: int) -> _Words:
    return np.array([start * pow(factor, k, 1 << 32) % (1 << 32) for k in range(count)], dtype=np.uint32)[:, None]


_OUT = _powers(0x8B51F9DD, 0x58F38DED, 2 * _POOL + 1)  # [9, 1]


class _Seeds(ISpawnableSeedSequence):
    """The state that a generator starts with; spawned generators are rare, and seeded by NumPy."""

    def __init__(self, state: npt.NDArray[np.uint64], entropy: list[int]) -> None:
        self._state, self._entropy = state, entropy

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._entropy)

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:
        return self._sequence.spawn(n_children)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        return self._state


def generators(entropy: Sequence[int], indices: Sequence[int]) -> Iterator[np.random.Generator]:
    """Yield ``np.random.default_rng([*entropy, index])`` for each index below 2^64.

    Examples:
        >>> [rng.random() for rng in generators([7, 0], [5])] == [np.random.default_rng([7, 0, 5]).random()]
        True
    """
    index = np.array(indices, dtype=np.uint64)  # [R]
    fixed = [number >> bit & 0xFFFFFFFF for number in entropy for bit in range(0, max(number.bit_length(), 1), 32)]
    words = [*(np.full(len(index), word, dtype=np.uint32) for word in fixed), *(index & 0xFFFFFFFF, index >> 32)]
    words += [np.zeros_like(index)] * (_POOL - len(words))
    lines = np.stack(words).astype(np.uint32)  # [W, R]
    constants = _powers(0x43B0D7E5, 0x931E8875, 4 * len(lines) + _POOL + 1)
    pool, used = _hashed(lines[:_POOL], constants[: _POOL + 1]), _POOL
    for source in range(_POOL):
        others = [place for place in range(_POOL) if place != source]
        pool[others] = _mixed(pool[others], _hashed(pool[source], constants[used : used + _POOL]))
        used += len(others)
    for place, line in enumerate(lines[_POOL:], _POOL):
        mixed = _mixed(pool, _hashed(line, constants[used : used + _POOL + 1]))
        pool = np.where((line > 0) | (place < len(fixed) + 1), mixed, pool)  # an index below 2^32 is one word
        used += _POOL
    states = _hashed(np.concatenate([pool, pool]), _OUT).T.astype("<u4", order="C").view("<u8")  # [R, 4]
    for number, state in zip(indices, states, strict=True):
        seeds: Any = _Seeds(state, [*entropy, number])  # NumPy takes any ISeedSequence; its types say SeedSequence
        yield np.random.Generator(np.random.PCG64(seeds))


def _hashed(words: _Words, constants: _Words) -> _Words:
    """Hash words, [n, R] or [R], with n of the n + 1 constants each."""
    return _folded((words ^ constants[:-1]) * constants[1:])


def _mixed(pool: _Words, words: _Words) -> _Words:
    return _folded(pool * np.uint32(_MIX) - words * np.uint32(_MIXED))


def _folded(words: _Words) -> _Words:
    folded: _Words = words ^ (words >> np.uint32(16))
    return folded
