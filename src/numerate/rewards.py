"""Reward functions for reinforcement learning on numbers, in the form that TRL's ``GRPOTrainer`` takes.

With x the answer read from a completion and y the gold answer:

    exact            1 if x = y, else 0
    relative_error   1 / (1 + e / scale)                e = |x - y| / max(|y|, floor)
    log_error        1 / (1 + e / scale)                e = |l(x) - l(y)|,  l(x) = sign(x) log10(1 + |x| / unit)
    iou              I / U                              I, U the areas of intersection and union of the boxes x and y;
                     (I / U + U / H) / 2                with form="giou", H the area of the smallest box around both
    time_gap         (1 - g / 360) / (1 + g / scale)    g = min(d, 720 - d),  d = |x - y| in minutes on a 12-hour face

Every reward lies in [0, 1] and falls with the error: 1 is right, 0 is infinitely far, and a completion without an answer
scores 0. ``scale`` is the error that scores one half (a little less for ``time_gap``). Near the answer the reward is about
``1 - e / scale``; far from it, about ``scale / e``, so that the nearer of two bad answers still scores more.
``exp(-e / scale)`` would be 0 for both in float32, and a group of equal rewards teaches nothing.

    from trl import GRPOTrainer
    from numerate import rewards

    GRPOTrainer(model, reward_funcs=[rewards.exact, rewards.log_error], train_dataset=dataset)

The dataset has the gold answers in a column ``answer`` (``dataset.rename_column`` makes it one), as text or as numbers.
:func:`with_settings` sets a scale; ``REWARDS`` has the functions by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar

from numerate.answers.extract import Box, as_fraction, box, clock_time, last_number
from numerate.answers.metrics import signed_log10
from numerate.checks import check_choice, check_number, choices, nearest

Form = Literal["iou", "giou"]
RewardFunction = Callable[..., list[float]]
T = TypeVar("T")


def exact(completions: Sequence[Any], answer: Sequence[Any], **ignored: Any) -> list[float]:
    """1 where the last number of the completion is the gold number, else 0.

    Numbers are compared, not texts: ``3.50`` and ``7/2`` are the same, exactly and at any length.

    Args:
        completions: texts, or lists of chat messages, of which the last one is read.
        answer: the gold answers, one for each completion: numbers, or texts whose last number is meant.
        ignored: what else the trainer passes: prompts, other columns, its state.

    Example:
        >>> exact(["It is 3.50.", "4", "no idea"], ["7/2", "7/2", "7/2"])
        [1.0, 0.0, 0.0]
    """
    return _rewards(completions, answer, _number, "a number, or text with one", lambda x, y: float(x == y))


def relative_error(
    completions: Sequence[Any], answer: Sequence[Any], *, scale: float = 0.1, floor: float = 0.0, **ignored: Any
) -> list[float]:
    """How near the last number of the completion is to the gold number, by the error relative to it.

    Best near the answer. One that is too large by many orders of magnitude scores next to nothing: there, add
    :func:`log_error`.

    Args:
        completions: see :func:`exact`.
        answer: see :func:`exact`.
        scale: the relative error that scores one half.
        floor: golds smaller than this count as this large. Without it, only 0 scores where the gold is 0; 1 suits whole
            numbers.
        ignored: see :func:`exact`.

    Example:
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

    return _rewards(completions, answer, _number, "a number, or text with one", score)


def log_error(
    completions: Sequence[Any], answer: Sequence[Any], *, scale: float = 0.3, unit: float = 1.0, **ignored: Any
) -> list[float]:
    """How near the last number of the completion is to the gold number, in orders of magnitude.

    Numbers well above ``unit`` are told apart by their ratio: off by a factor of two scores one half, of ten 0.23, of a
    million 0.05. Numbers well below it, zero and those of either sign among them, all lie close together.

    Args:
        completions: see :func:`exact`.
        answer: see :func:`exact`.
        scale: the error that scores one half, as a power of ten; 0.3 is a factor of two.
        unit: the size from which on ratios count. For numbers such as 0.001, set it to the smallest that matters.
        ignored: see :func:`exact`.

    Example:
        >>> [round(reward, 2) for reward in log_error(["1000", "2000", "1e9", "-1000", "no idea"], [1000] * 5)]
        [1.0, 0.5, 0.05, 0.05, 0.0]
    """
    half = _setting("scale", scale, above=0)
    one = _setting("unit", unit, above=0)

    def score(x: Fraction, y: Fraction) -> float:
        return _hyperbola(Fraction(abs(signed_log10(x / one) - signed_log10(y / one))), half)

    return _rewards(completions, answer, _number, "a number, or text with one", score)


def iou(completions: Sequence[Any], answer: Sequence[Any], *, form: Form = "iou", **ignored: Any) -> list[float]:
    """Intersection over union of the last box of the completion with the gold box ``[x1, y1, x2, y2]``.

    Any two opposite corners make a box, in either order. A box without area overlaps with its equal alone.

    Args:
        completions: see :func:`exact`.
        answer: the gold boxes, each four numbers or text with them.
        form: ``"giou"`` tells boxes apart that do not overlap, by how much emptiness lies between them (generalized
            IoU, Rezatofighi et al. 2019, moved from [-1, 1] to [0, 1]).
        ignored: see :func:`exact`.

    Example:
        >>> iou(["[0, 0, 10, 10]", "(0,0),(10,5)", "[10, 0, 20, 10]", "no box"], [[0, 0, 10, 10]] * 4)
        [1.0, 0.5, 0.0, 0.0]
        >>> iou(["[10, 0, 20, 10]", "[30, 0, 40, 10]"], [[0, 0, 10, 10]] * 2, form="giou")
        [0.5, 0.25]
    """
    _refuse_column("form", form)
    check_choice("form", form, choices(Form))

    def score(x: Box, y: Box) -> float:
        return _overlap(x, y, generalized=form == "giou")

    return _rewards(completions, answer, _box, "a box: four numbers x1, y1, x2, y2, or text with them", score)


def time_gap(completions: Sequence[Any], answer: Sequence[Any], *, scale: float = 30.0, **ignored: Any) -> list[float]:
    """How near the last time of the completion is to the gold time, on a 12-hour face.

    The gap goes round the clock: from 11:55 to 12:05 it is 10 minutes. At its largest, 6 hours, the reward is 0.

    Args:
        completions: see :func:`exact`.
        answer: the gold times: text such as ``2_55`` or ``2:55``, or a number of minutes after twelve.
        scale: the gap in minutes that scores about one half.
        ignored: see :func:`exact`.

    Example:
        >>> rewards = time_gap(["2_55", "2:50", "It shows 3:25.", "8:55", "no idea"], ["2_55"] * 5)
        >>> [round(reward, 2) for reward in rewards]
        [1.0, 0.85, 0.46, 0.0, 0.0]
    """
    half = _setting("scale", scale, above=0)

    def score(x: Fraction, y: Fraction) -> float:
        gap = min((x - y) % 720, (y - x) % 720)
        return float((1 - gap / 360) / (1 + gap / half))

    return _rewards(completions, answer, _minutes, "a time such as 2_55 or 2:55, or minutes after twelve as a number", score)


REWARDS: dict[str, RewardFunction] = {
    "exact": exact,
    "relative_error": relative_error,
    "log_error": log_error,
    "iou": iou,
    "time_gap": time_gap,
}


def with_settings(reward: RewardFunction, *, name: str | None = None, **settings: Any) -> RewardFunction:
    """The same reward with other settings, for a trainer: it has a name of its own to be logged under, and can be pickled.

    ``functools.partial`` is logged under the plain function's name, and so are two of them; and a column of the dataset
    that is called like a setting would take its place. Here the settings stand.

    Args:
        reward: one of the rewards above.
        name: what the trainer logs it as; by default its name and settings.
        settings: see the reward.

    Example:
        >>> strict = with_settings(relative_error, scale=0.01)
        >>> strict.__name__, strict(["101"], [100])
        ('relative_error_scale_0.01', [0.5])
    """
    parameters = inspect.signature(reward).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for setting in settings:
        if setting not in known:
            listed = ", ".join(known) or "none"
            raise TypeError(
                f"{setting}={settings[setting]!r} is not a setting of {reward.__name__}: expected one of: "
                f"{listed}.{nearest(setting, known)}"
            )
    reward([], [], **settings)  # a bad value raises here, not in the first step of training
    return _WithSettings(reward, settings, name or "_".join([reward.__name__, *(f"{k}_{v}" for k, v in settings.items())]))


class _WithSettings:
    def __init__(self, reward: RewardFunction, settings: Mapping[str, Any], name: str) -> None:
        self.reward, self.settings, self.__name__ = reward, settings, name

    def __call__(self, completions: Sequence[Any], answer: Sequence[Any], **ignored: Any) -> list[float]:
        return self.reward(completions, answer, **self.settings)

    def __repr__(self) -> str:
        return f"<reward {self.__name__}>"


def _rewards(
    completions: Sequence[Any],
    answer: Sequence[Any],
    read: Callable[[Any], T | None],
    expected: str,
    score: Callable[[T, T], float],
) -> list[float]:
    """Read both sides of each pair and score them; a completion without an answer scores 0."""
    for argument, value in (("completions", completions), ("answer", answer)):
        if isinstance(value, str):
            raise TypeError(f"{argument}={value!r:.80} is one text: expected a list, one entry for each completion.")
    if len(completions) != len(answer):
        raise ValueError(
            f"completions has {len(completions)} entries and answer {len(answer)}: expected one gold answer for each completion."
        )
    rewards = []
    for position, (completion, value) in enumerate(zip(completions, answer, strict=True)):
        gold = read(value)
        if gold is None:
            raise ValueError(
                f"answer[{position}]={value!r:.80} cannot be scored: expected {expected}. Correct that row of the dataset, "
                "or leave it out with dataset.filter(...)."
            )
        given = read(_text(completion, position))
        rewards.append(0.0 if given is None else score(given, gold))
    return rewards


def _text(completion: Any, position: int) -> str:
    """What the model said last; nothing where a tool had the last word."""
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


def _number(value: Any) -> Fraction | None:
    return last_number(value) if isinstance(value, str) else as_fraction(value)


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


def _overlap(first: Box, second: Box, generalized: bool) -> float:
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _sorted_corners(first), _sorted_corners(second)
    if (ax1, ay1, ax2, ay2) == (bx1, by1, bx2, by2):
        return 1.0
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    shared = max(width, Fraction(0)) * max(height, Fraction(0))
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
    ratio = shared / union if union else Fraction(0)
    if not generalized:
        return float(ratio)
    hull = (max(ax2, bx2) - min(ax1, bx1)) * (max(ay2, by2) - min(ay1, by1))
    return float((ratio + union / hull) / 2) if hull else 0.0


def _sorted_corners(sides: Box) -> Box:
    x1, y1, x2, y2 = sides
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def _setting(name: str, value: Any, **bounds: Any) -> Fraction:
    _refuse_column(name, value)
    return Fraction(check_number(name, value, **bounds))


def _refuse_column(name: str, value: Any) -> None:
    if isinstance(value, list):
        raise TypeError(
            f"{name} is a list of {len(value)}: expected one value for all. If the dataset has a column of that name, rename "
            f"it, or use with_settings(..., {name}=...), which does not look at columns."
        )
