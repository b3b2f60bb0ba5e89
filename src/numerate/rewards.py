"""Reward functions for reinforcement learning on numbers, for TRL's ``GRPOTrainer``.

With x the answer read from a completion and y the gold answer:

    exact               1 if x = y, else 0
    relative_error      1 / (1 + e / scale)                e = |x - y| / max(|y|, floor)
    log_error           1 / (1 + e / scale)                e = |l(x) - l(y)|,  l(x) = sign(x) log10(1 + |x| / unit)
    iou                 I / U                              I, U the areas of intersection and union of the boxes x and y;
                        (I / U + U / H) / 2                with form="giou", H the area of the smallest box around both
    time_gap_circular   (1 - g / 360) / (1 + g / scale)    g = min(d, 720 - d),  d = |x - y| in minutes on a 12-hour face
    crps                (C(X without x) - C(X)) / scale    C the CRPS of the answers X to one prompt: the contribution of x

All rewards except ``crps`` are in [0, 1] and decrease with the error: 1 is correct, 0 is infinitely far or no answer. ``scale``
is the error with a reward of ½ (slightly less for ``time_gap_circular``). For small errors the reward is about
``1 - e / scale``; for large ones about ``scale / e``, so that the closer of two bad answers still scores higher.
``exp(-e / scale)`` would be 0 for both in float32, and a group of equal rewards has no gradient.

    from trl import GRPOTrainer
    from numerate import rewards

    GRPOTrainer(model, reward_funcs=[rewards.exact, rewards.log_error], train_dataset=dataset)

The dataset needs a column ``answer`` with the gold answers, as text or numbers (see ``dataset.rename_column``). If the model
writes numbers in a format, ``format=`` names it; gold answers stay in ordinary notation. :func:`with_settings` changes
settings; ``REWARDS`` has the functions by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeVar

from numerate.answers.boxes import giou
from numerate.answers.boxes import iou as box_iou
from numerate.answers.extract import Box, box, clock_time
from numerate.answers.formatted import in_format
from numerate.answers.metrics import signed_log10
from numerate.answers.metrics import time_gap_circular as circular_gap
from numerate.answers.numerals import DecimalMark, as_fraction, last_number
from numerate.checks import check_choice, check_number, check_settings, choices, public_dir
from numerate.formats import NumberFormat, as_format

__all__ = [
    "REWARDS",
    "RewardFunction",
    "crps",
    "exact",
    "iou",
    "log_error",
    "relative_error",
    "time_gap_circular",
    "with_settings",
]
__dir__ = public_dir(globals())

IouForm = Literal["iou", "giou"]
CrpsForm = Literal["empirical", "fair"]
RewardFunction = Callable[..., list[float]]
"""A reward function as GRPO calls it: from completions and dataset columns to one number per completion."""
T = TypeVar("T")

MOST_CREDIT = Fraction(10**15)  # GRPO squares rewards in float32 for their standard deviation


def exact(
    completions: Sequence[Any],
    answer: Sequence[Any],
    *,
    decimal: DecimalMark = ".",
    format: NumberFormat | str = "plain",
    **ignored: Any,
) -> list[float]:
    """Return 1 if the last number of the completion equals the gold number, else 0.

    Compares numbers exactly, not texts: ``3.50`` equals ``7/2``.

    Args:
        completions: texts, or lists of chat messages, of which the last is read.
        answer: the gold answers, one per completion: numbers, or texts whose last number is used.
        decimal: decimal mark of ambiguous texts; see :func:`numerate.answers.last_number`.
        format: how the completions, not the gold answers, write numbers: a :class:`~numerate.formats.NumberFormat` or a kind;
            see :func:`numerate.answers.in_format`. It needs ``decimal="."``.
        ignored: other arguments of the trainer: prompts, other columns, its state.

    Examples:
        >>> exact(["It is 3.50.", "4", "no idea"], ["7/2", "7/2", "7/2"])
        [1.0, 0.0, 0.0]
        >>> exact(["5 3 . 7"], ["7.35"], format="reversed+spaced")
        [1.0]
    """
    read = _numbers(decimal, format)
    return _rewards(completions, answer, read, "a number, or text with one", lambda x, y: float(x == y), format)


def relative_error(
    completions: Sequence[Any],
    answer: Sequence[Any],
    *,
    scale: float = 0.1,
    floor: float = 0.0,
    decimal: DecimalMark = ".",
    format: NumberFormat | str = "plain",
    **ignored: Any,
) -> list[float]:
    """Reward the last number of the completion by its error relative to the gold number.

    Most useful for small errors. A number that is too large by orders of magnitude scores almost 0; for these, add
    :func:`log_error`.

    Args:
        completions: see :func:`exact`.
        answer: see :func:`exact`.
        scale: relative error with a reward of ½.
        floor: lower bound of the divisor ``|y|``. With 0, only 0 is rewarded for a gold answer of 0; use 1 for integers.
        decimal: see :func:`exact`.
        format: see :func:`exact`.
        ignored: see :func:`exact`.

    Examples:
        >>> relative_error(["100", "110", "It is 90.", "200", "no idea"], [100] * 5)
        [1.0, 0.5, 0.5, 0.09090909090909091, 0.0]
        >>> relative_error(["0", "0.1"], [0, 0]), relative_error(["0", "0.1"], [0, 0], floor=1)
        ([1.0, 0.0], [1.0, 0.5])
    """
    half = _setting("scale", scale, above=0)
    least = _setting("floor", floor, least=0)

    def score(x: Fraction, y: Fraction) -> float:
        size = max(abs(y), least)
        return _hyperbola(abs(x - y) / size, half) if size else float(x == y)

    return _rewards(completions, answer, _numbers(decimal, format), "a number, or text with one", score, format)


def log_error(
    completions: Sequence[Any],
    answer: Sequence[Any],
    *,
    scale: float = 0.3,
    unit: float = 1.0,
    decimal: DecimalMark = ".",
    format: NumberFormat | str = "plain",
    **ignored: Any,
) -> list[float]:
    """Reward the last number of the completion by its distance from the gold number in orders of magnitude.

    Numbers well above ``unit`` compare by their ratio: a factor of two scores 0.5, of ten 0.23, of a million 0.05. Numbers well
    below ``unit``, of either sign, all count as close to zero.

    Args:
        completions: see :func:`exact`.
        answer: see :func:`exact`.
        scale: error with a reward of ½, in orders of magnitude; 0.3 is a factor of two.
        unit: size above which ratios count. For numbers such as 0.001, set it to the smallest size that matters.
        decimal: see :func:`exact`.
        format: see :func:`exact`.
        ignored: see :func:`exact`.

    Examples:
        >>> [round(reward, 2) for reward in log_error(["1000", "2000", "1e9", "-1000", "no idea"], [1000] * 5)]
        [1.0, 0.5, 0.05, 0.05, 0.0]
    """
    half = _setting("scale", scale, above=0)
    divisor = _setting("unit", unit, above=0)

    def score(x: Fraction, y: Fraction) -> float:
        return _hyperbola(Fraction(abs(signed_log10(x / divisor) - signed_log10(y / divisor))), half)

    return _rewards(completions, answer, _numbers(decimal, format), "a number, or text with one", score, format)


def iou(
    completions: Sequence[Any],
    answer: Sequence[Any],
    *,
    form: IouForm = "iou",
    format: NumberFormat | str = "plain",
    **ignored: Any,
) -> list[float]:
    """Reward the last box of the completion by its intersection over union with the gold box ``[x1, y1, x2, y2]``.

    A box is any two opposite corners, in either order. A box without area overlaps only with an equal box.

    Args:
        completions: see :func:`exact`.
        answer: the gold boxes, each four numbers or text with them.
        form: ``"giou"`` also ranks boxes that do not overlap, by the empty area between them (generalized IoU, Rezatofighi
            et al. 2019, scaled from [-1, 1] to [0, 1]).
        format: see :func:`exact`.
        ignored: see :func:`exact`.

    Examples:
        >>> iou(["[0, 0, 10, 10]", "(0,0),(10,5)", "[10, 0, 20, 10]", "no box"], [[0, 0, 10, 10]] * 4)
        [1.0, 0.5, 0.0, 0.0]
        >>> iou(["[10, 0, 20, 10]", "[30, 0, 40, 10]"], [[0, 0, 10, 10]] * 2, form="giou")
        [0.5, 0.25]
    """
    _refuse_column("form", form)
    _refuse_column("format", format)
    check_choice("form", form, choices(IouForm))
    score = giou if form == "giou" else box_iou
    return _rewards(completions, answer, _box, "a box: four numbers x1, y1, x2, y2, or text with them", score, format)


def time_gap_circular(completions: Sequence[Any], answer: Sequence[Any], *, scale: float = 30.0, **ignored: Any) -> list[float]:
    """Reward the last time of the completion by its distance from the gold time around a 12-hour face.

    The distance from 11:55 to 12:05 is 10 minutes. At the largest distance, 6 hours, the reward is 0.

    Args:
        completions: see :func:`exact`.
        answer: the gold times: text such as ``2_55`` or ``2:55``, or a number of minutes after twelve.
        scale: distance in minutes with a reward of about ½.
        ignored: see :func:`exact`.

    Examples:
        >>> rewards = time_gap_circular(["2_55", "2:50", "It shows 3:25.", "8:55", "no idea"], ["2_55"] * 5)
        >>> [round(reward, 2) for reward in rewards]
        [1.0, 0.85, 0.46, 0.0, 0.0]
    """
    half = _setting("scale", scale, above=0)

    def score(x: Fraction, y: Fraction) -> float:
        gap = circular_gap(y, x)
        return float((1 - gap / 360) / (1 + gap / half))

    return _rewards(completions, answer, _minutes, "a time such as 2_55 or 2:55, or minutes after twelve as a number", score)


def crps(
    completions: Sequence[Any],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    *,
    scale: float = 1.0,
    unit: float | None = None,
    missing: float = 1.0,
    form: CrpsForm = "empirical",
    decimal: DecimalMark = ".",
    format: NumberFormat | str = "plain",
    **columns: Any,
) -> list[float]:
    """Reward each completion by its contribution to the CRPS of its group: the CRPS without it minus the CRPS with it.

    The completions of one prompt form a distribution. With y the gold number and X the n numbers of a group:

        C(X)        mean_i |x_i - y| - 1/2 mean_ij |x_i - x_j|
        credit_i    (C(X without x_i) - C(X)) / scale          higher is better; below 0 if the group does better without it

    An answer is rewarded for being close to the gold number and for differing from the other answers: with the gold number 10
    and the answers 8, 8 and 12, the 12 has a credit of 0.89 and each 8 has -0.11, although all are off by 2. Rewards of single
    answers make the model collapse to one answer. Leave-one-out credit is from DAR (Park et al.: Distribution-Aware Reward,
    2026, arXiv:2605.20740).

    A group is all completions with equal prompts, gold answers and images (columns ``image``, ``images``), in any order. Each
    process sees complete groups if ``per_device_train_batch_size`` is a multiple of ``num_generations``. A group with a single
    number has a credit of 0. A completion without a number is not part of the distribution; its reward is the lowest credit of
    its group, or 0 if that is lower, minus ``missing``. Credits are clamped to 1e15: set ``unit`` if answers may be off by orders
    of magnitude, or one outlier dominates the step.

    Args:
        completions: see :func:`exact`.
        answer: see :func:`exact`.
        prompts: the prompts, one per completion, texts or chat messages, as the trainer passes them. None: group by gold answer.
        scale: divisor of the credits. Matters only next to other rewards, since GRPO normalizes the rewards of a group.
        unit: compare numbers as ``sign(x) log10(1 + |x| / unit)``, like :func:`log_error`; None: as they are.
        missing: penalty of a completion without a number.
        form: ``"empirical"``: the mean over i and j has n² terms, n of them 0. ``"fair"``: only the other n (n - 1) terms. The
            fair CRPS does not depend on the group size in expectation, and its credits are an unbiased gradient of the CRPS of
            the model's distribution; the empirical CRPS favours a slightly narrower distribution.
        decimal: see :func:`exact`.
        format: see :func:`exact`.
        columns: other arguments of the trainer.

    Examples:
        >>> [round(credit, 2) for credit in crps(["8", "It is 8.", "12", "no idea"], [10] * 4, ["?"] * 4)]
        [-0.11, -0.11, 0.89, -1.11]
    """
    divisor, price = _setting("scale", scale, above=0), _setting("missing", missing, least=0)
    log_unit = None if unit is None else _setting("unit", unit, above=0)
    _refuse_column("form", form)
    check_choice("form", form, choices(CrpsForm))
    if prompts is not None and len(prompts) != len(completions):
        raise ValueError(f"prompts has {len(prompts)} entries and completions {len(completions)}: expected one per completion.")

    def place(number: Fraction) -> Fraction:
        return number if log_unit is None else Fraction(signed_log10(number / log_unit))

    pairs = _read_pairs(completions, answer, _numbers(decimal, format), "a number, or text with one", format)
    asked = [prompts, *(columns.get(name) for name in ("image", "images"))]
    groups: list[tuple[Any, list[int]]] = []
    for position, (_, gold) in enumerate(pairs):
        key = (gold, *(None if column is None else column[position] for column in asked))
        found = next((members for other, members in groups if other == key), None)
        if found is None:
            groups.append((key, [position]))
        else:
            found.append(position)
    credits = [0.0] * len(pairs)
    for (gold, *_), members in groups:
        numbers = {position: place(guess) for position in members if (guess := pairs[position][0]) is not None}
        credit = dict(zip(numbers, _leave_one_out([*numbers.values()], place(gold), form), strict=True))
        without = min([Fraction(0), *credit.values()]) / divisor - price
        for position in members:
            value = credit[position] / divisor if position in credit else without
            credits[position] = float(max(-MOST_CREDIT, min(MOST_CREDIT, value)))
    return credits


def _leave_one_out(numbers: Sequence[Fraction], gold: Fraction, form: CrpsForm) -> list[Fraction]:
    """Return the CRPS of the numbers without each of them, minus that of all; 0 for a single number."""
    n = len(numbers)
    if n < 2:
        return [Fraction(0)] * n
    away = [abs(x - gold) for x in numbers]
    apart = [sum((abs(x - other) for other in numbers), Fraction(0)) for x in numbers]
    all_away, all_apart = sum(away), sum(apart)

    def score(total_away: Fraction, total_apart: Fraction, count: int) -> Fraction:
        terms = count * count if form == "empirical" else max(1, count * (count - 1))
        return total_away / count - total_apart / terms / 2

    with_all = score(Fraction(all_away), Fraction(all_apart), n)
    return [score(all_away - a, all_apart - 2 * b, n - 1) - with_all for a, b in zip(away, apart, strict=True)]


REWARDS: dict[str, RewardFunction] = {
    "exact": exact,
    "relative_error": relative_error,
    "log_error": log_error,
    "iou": iou,
    "time_gap_circular": time_gap_circular,
    "crps": crps,
}
"""The rewards, by name."""


def with_settings(reward: RewardFunction, *, name: str | None = None, **settings: Any) -> RewardFunction:
    """Return ``reward`` with other settings, with its own name in the logs; can be pickled.

    With ``functools.partial``, the trainer would log all variants under the same name, and a dataset column with the name of a
    setting would override it.

    Args:
        reward: one of the rewards above.
        name: name in the trainer's logs; default: the reward's name and settings.
        settings: see the reward.

    Examples:
        >>> strict = with_settings(relative_error, scale=0.01)
        >>> strict.__name__, strict(["101"], [100])
        ('relative_error_scale_0.01', [0.5])
    """
    parameters = inspect.signature(reward).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    check_settings(reward.__name__, settings, known)
    reward([], [], **settings)  # raises here instead of in the first training step
    shown = {k: v.kind if isinstance(v, NumberFormat) else v for k, v in settings.items()}
    name = name or "_".join([reward.__name__, *(f"{k}_{v}" for k, v in shown.items())])
    return _WithSettings(reward, settings, frozenset(known), name)


class _WithSettings:
    def __init__(self, reward: RewardFunction, settings: Mapping[str, Any], known: frozenset[str], name: str) -> None:
        self.reward, self.settings, self.known, self.__name__ = reward, settings, known, name

    def __call__(self, completions: Sequence[Any], answer: Sequence[Any], **columns: Any) -> list[float]:
        columns = {column: values for column, values in columns.items() if column not in self.known}
        return self.reward(completions, answer, **columns, **self.settings)

    def __repr__(self) -> str:
        return f"<reward {self.__name__}>"


def _rewards(
    completions: Sequence[Any],
    answer: Sequence[Any],
    read: Callable[[Any], T | None],
    expected: str,
    score: Callable[[T, T], float],
    format: NumberFormat | str = "plain",
) -> list[float]:
    """Read and score each pair of completion and gold answer; a completion without an answer scores 0."""
    pairs = _read_pairs(completions, answer, read, expected, format)
    return [0.0 if guess is None else score(guess, gold) for guess, gold in pairs]


def _read_pairs(
    completions: Sequence[Any],
    answer: Sequence[Any],
    read: Callable[[Any], T | None],
    expected: str,
    format: NumberFormat | str,
) -> list[tuple[T | None, T]]:
    """Return the answer of each completion (None if it has none) and the gold answer."""
    read_completion = in_format(format, read)
    for argument, value in (("completions", completions), ("answer", answer)):
        if isinstance(value, str):
            raise TypeError(f"{argument}={value!r:.80} is a string: expected a list with one entry per completion.")
    if len(completions) != len(answer):
        raise ValueError(
            f"completions has {len(completions)} entries and answer {len(answer)}: expected one gold answer per completion."
        )
    pairs = []
    for position, (completion, value) in enumerate(zip(completions, answer, strict=True)):
        gold = read(value)
        if gold is None:
            raise ValueError(
                f"answer[{position}]={value!r:.80} cannot be scored: expected {expected}. Fix that row of the dataset, "
                "or remove it with dataset.filter(...)."
            )
        pairs.append((read_completion(last_text(completion, position)), gold))
    return pairs


def last_text(completion: Any, position: int) -> str:
    """Return the text of the last message; empty unless the assistant wrote it."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in completion):
        raise TypeError(
            f"completions[{position}] is a {type(completion).__name__}: expected a text or a list of chat messages "
            '[{"role": "assistant", "content": ...}].'
        )
    if not completion or completion[-1].get("role", "assistant") != "assistant":
        return ""
    content = completion[-1].get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)


def _numbers(decimal: DecimalMark, format: NumberFormat | str) -> Callable[[Any], Fraction | None]:
    """Return a function that reads numbers, and texts with this decimal mark."""
    _refuse_column("decimal", decimal)
    _refuse_column("format", format)
    check_choice("decimal", decimal, choices(DecimalMark))
    if decimal != "." and as_format(format).kind != "plain":
        raise ValueError(f"decimal={decimal!r} and format={format!r}: formats write a point; leave one of the two out.")
    return partial(_number, decimal=decimal)


def _number(value: Any, decimal: DecimalMark = ".") -> Fraction | None:
    return last_number(value, decimal=decimal) if isinstance(value, str) else as_fraction(value)


def _minutes(value: Any) -> Fraction | None:
    return clock_time(value) if isinstance(value, str) else _number(value)


def _box(value: Any) -> Box | None:
    if isinstance(value, str):
        return box(value)
    sides = [_number(side) for side in value] if isinstance(value, Sequence) else []
    match sides:
        case [Fraction() as x1, Fraction() as y1, Fraction() as x2, Fraction() as y2]:
            return x1, y1, x2, y2
    return None


def _hyperbola(error: Fraction, half: Fraction) -> float:
    return float(half / (half + error))


def _setting(name: str, value: Any, **bounds: Any) -> Fraction:
    _refuse_column(name, value)
    return Fraction(check_number(name, value, **bounds))


def _refuse_column(name: str, value: Any) -> None:
    if isinstance(value, list):
        raise TypeError(
            f"{name} is a list of {len(value)}: expected one value. If the dataset has a column of that name, rename it, "
            f"or use with_settings(..., {name}=...), which ignores columns."
        )
