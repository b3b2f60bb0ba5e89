"""What the tests share: small vocabularies, batches of text, certain logits, and one table of tolerances."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from numerate import NumericVocab
from numerate.tokenizers import load_tokenizer


class Tolerance(NamedTuple):
    """Largest error allowed, relative to the truth: of a value, and of a gradient by its largest entry."""

    value: float
    grad: float


# The arithmetic of half precision is float32's; only the gradient is rounded to the logits' own dtype.
TOLERANCE = {
    torch.float64: Tolerance(1e-10, 1e-9),
    torch.float32: Tolerance(2e-6, 1e-5),
    torch.bfloat16: Tolerance(2e-6, 2.0**-8),
    torch.float16: Tolerance(2e-6, 2.0**-10),
}


def _numbered(*texts: str) -> dict[str, int]:
    return {text: token_id for token_id, text in enumerate(texts)}


DIGITS = _numbered("x", *"0123456789", "y")
MARKS = _numbered("x", *"0123456789", ".", "-", ",", " ", "(", ")", "(-", " -")
CHUNKS = _numbered(
    *MARKS, "10", "12", "45", "05", "00", "99", "123", "007", "678", "000", "999", " 5", " 12"
)  # one to three digits a token, some with leading zeros or a leading space
# What can stand before a number, and in its power of ten
SIGNS = _numbered(
    *CHUNKS, *"eE", "e-", "E+", *"+−$€", "-$", "$-", "-.", "$.", "(.", "=-$", " .", " $", "..", "x-", "%", "5x", "−."
)
ENDS = _numbered(*MARKS, ":")  # and what is after a power of ten that comes first
RATINGS = {3: 0.5, 4: 1.0, 5: 2.0, 6: 2.5, 8: 4.0, 9: 30.0}

TEXTS: dict[str, dict[str, int]] = {"digits": DIGITS, "marks": MARKS, "chunks": CHUNKS, "signs": SIGNS, "ends": ENDS}
VOCABS: dict[str, NumericVocab] = {
    **{name: NumericVocab.from_texts(texts, vocab_size=len(texts)) for name, texts in TEXTS.items()},
    "ratings": NumericVocab.from_values(RATINGS, vocab_size=12),
}


def encode(text: str, texts: Mapping[str, int]) -> list[int]:
    """Token ids of a text, the longest token first; ``_`` is an ignored label."""
    ids: list[int] = []
    while text:
        if text[0] == "_":
            ids, text = [*ids, -100], text[1:]
            continue
        token = max((token for token in texts if text.startswith(token)), key=len)
        ids, text = [*ids, texts[token]], text[len(token) :]
    return ids


def encode_batch(lines: Sequence[str], texts: Mapping[str, int]) -> Tensor:
    """Labels ``[B, T]`` of several texts, filled up with -100."""
    rows = [encode(line, texts) for line in lines]
    length = max(len(row) for row in rows)
    return torch.tensor([row + [-100] * (length - len(row)) for row in rows])


def shared_tokenizers() -> dict[str, Path]:
    """The ``tokenizer.json.gz`` files of a folder ``shared/tokenizers`` beside the project or above it, by name; often none."""
    folders = [folder / "shared" / "tokenizers" for folder in Path(__file__).parents]
    return {file.name.split(".")[0]: file for folder in folders for file in sorted(folder.glob("*.tokenizer.json.gz"))}


@cache
def real_tokenizer(name: str) -> Any:
    """A tokenizer by its name, of a package or of ``shared/tokenizers``. Loaded once: tests must not change it."""
    return load_tokenizer(shared_tokenizers().get(name, name))


BATCHES: dict[str, Tensor] = {
    "digits": encode_batch(["x12y", "007", "5x9"], DIGITS),
    "marks": encode_batch(["x -12.5", "(-7)3-5", "0.98 41"], MARKS),
    "chunks": encode_batch(["-12345.678", "007.05 5x", "1.2.3 12(-9"], CHUNKS),
    "signs": encode_batch(["-$12.5e-3(", " .678−.5e12", "x-1.5E+007x", "$-.05e5.1"], SIGNS),
    "ratings": torch.tensor([[3, 9, 0, -100], [8, 8, 5, 4]]),
}


def random_logits(
    labels: Tensor, vocab: NumericVocab, dtype: torch.dtype = torch.float64, seed: int = 0, padding: int = 2
) -> Tensor:
    """Logits ``[.., T, V]`` with a few more columns than the vocabulary has tokens."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*labels.shape, vocab.vocab_size + padding)
    return (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def certain(ids: Tensor, vocab_size: int, dtype: torch.dtype = torch.float64, logit: float = 200.0) -> Tensor:
    """Logits ``[.., T, V]`` that leave no doubt of the tokens ``ids``."""
    return torch.nn.functional.one_hot(ids.clamp_min(0), vocab_size).to(dtype) * logit


def grad_of(value: Tensor, logits: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(value, logits, retain_graph=True)
    return grad


def relative(error: Tensor, truth: Tensor) -> float:
    """Largest error by the largest entry of the truth."""
    return float(error.detach().double().abs().max() / truth.detach().double().abs().max())


def every_pair(names: str, *axes: Iterable[Any], only: Callable[..., bool] = lambda *_: True) -> pytest.MarkDecorator:
    """Parametrize a test with the first combination of values, and with as few others as it takes for every two to meet.

    Args:
        names: of the parameters.
        axes: the values of each.
        only: whether a combination is possible.
    """
    values = [[*axis] for axis in axes]
    cases = [case for case in product(*map(range, map(len, values))) if only(*map(list.__getitem__, values, case))]
    pairs = {case: {*combinations(enumerate(case), 2)} for case in cases}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[chosen[-1]]
    return pytest.mark.parametrize(names, [[*map(list.__getitem__, values, case)] for case in sorted(chosen)])


def some_of_each(first: Iterable[Any], second: Iterable[Any], one_in: int = 3) -> list[tuple[Any, Any]]:
    """Pairs of two lists, one in so many, in which each value of a list meets several of the other."""
    return [(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if (i + j) % one_in == 0]


def refused(error: type[Exception] | tuple[type[Exception], ...], parts: list[str], call: Any) -> None:
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), f"{part!r} is missing from {caught.value}"


def is_linear(work: Callable[[int], Any], small: int, least: float = 0.005) -> bool:
    """Whether 8 times the size takes less than 40 times the CPU time, where linear is 8 and quadratic 64.

    It is measured again where it takes longer: a garbage collection in between may.
    """

    def cpu_seconds(size: int) -> float:
        began = time.process_time()
        work(size)
        return time.process_time() - began

    most = 40 * max(cpu_seconds(small), least)
    return any(cpu_seconds(8 * small) < most for _ in range(3))
