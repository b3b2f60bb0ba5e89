"""Judge: a rubric, a scale and a model become distributions over scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy.typing as npt

from numerate.decode.members import NoNumberError
from numerate.decode.token_tree import text_tokenizer
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Number
from numerate.judge.scale import ScoreScale
from numerate.judge.scored import Calibration, Scores, calibrate
from numerate.rewards import last_text

Item = str | Mapping[str, Any]
"""What is judged: a text, or named texts such as ``{"question": ..., "answer": ...}``."""

Chat = Sequence[Mapping[str, Any]]

ANSWER = "Score:"
"""How the judge's answer begins; the score is next."""


class Judge:
    r"""A language model that scores items by a rubric, with the probability of every score.

    The prompt is the rubric, the item and how to answer, and ends right before the score. It is a chat if the tokenizer has a
    chat template, or the server is one of chats; otherwise a text.

    Args:
        rubric: what the score means: ``"How helpful is the answer?"``. The more it says about low and high scores, the better.
        scale: see :meth:`ScoreScale.of`: ``"1 to 10"``, ``"0 to 100"``, ``"A to E"``, labels, or labels with their values.
        model: a model of transformers, as :func:`numerate.decode.distribution` takes it; or a
            :class:`~numerate.decode.CompletionServer` or a function, as :func:`numerate.decode.served_distribution` takes it. A
            list is a jury: the pool of their distributions.
        tokenizer: the model's tokenizer; optional for a server.
        prompt: a function from an item to a text or chat that ends right before the score, instead of the usual prompt.
        **search: further arguments of that function, such as ``width``, ``batch_size``, ``weights`` or ``temperature``.

    Examples:
        >>> from math import log
        >>> def complete(texts):  # a model that says 10 in 60 % of all cases, and 1 in 30 %
        ...     after = {":": {" ": 0.9, "I": 0.1}, " ": {"1": 1.0}, "1": {"0": 2 / 3, "\n": 1 / 3}, "0": {"\n": 1.0}}
        ...     return [[(token, log(p)) for token, p in after[text[-1]].items()] for text in texts]
        >>> judge = Judge("How helpful is the answer?", scale="1 to 10", model=complete)
        >>> scores = judge.scores([{"question": "Why is the sky blue?", "answer": "It scatters blue light."}])
        >>> scores.mean.round(3).tolist(), scores.median.tolist(), scores.refused.round(3).tolist()
        ([7.0], [10.0], [0.1])
        >>> print(judge.prompt({"answer": "Because."}))
        How helpful is the answer?
        <BLANKLINE>
        Answer: Because.
        <BLANKLINE>
        Answer with a number from 1 (lowest) to 10 (highest), and nothing else.
        Score:
    """

    def __init__(
        self,
        rubric: str,
        *,
        scale: ScoreScale | str | Sequence[str] | Mapping[str, Number] = "1 to 10",
        model: Any,
        tokenizer: Any = None,
        prompt: Callable[[Any], str | Chat] | None = None,
        **search: Any,
    ) -> None:
        if not isinstance(rubric, str) or not rubric.strip():
            raise ValueError(
                f"rubric={rubric!r}: expected a text that says what is scored, such as 'How helpful is the answer?'."
            )
        for name in {"grammar", "format"} & {*search}:
            raise TypeError(f"{name}={search[name]!r} is not a setting of Judge: the scale says how scores are written.")
        self.rubric, self.scale, self.model, self.tokenizer = rubric.strip(), ScoreScale.of(scale), model, tokenizer
        self.search, self._prompt = search, prompt
        self.calibration: Calibration | None = None
        first = model[0] if isinstance(model, list | tuple) and model else model
        self.served = not hasattr(first, "generate")
        if self.served and not callable(first) and not hasattr(first, "next_tokens"):
            raise TypeError(
                f"model is a {type(first).__name__}: expected a model of transformers, a CompletionServer, or a function from "
                "texts to the most likely next tokens of each."
            )
        if not self.served and tokenizer is None:
            raise ValueError("tokenizer=None with a local model: expected the tokenizer or processor that belongs to it.")
        self._chats = bool(getattr(first, "chat", False)) if self.served and tokenizer is None else _has_template(tokenizer)

    def prompt(self, item: Item) -> str | Chat:
        """Return the text or chat that the model continues with the score."""
        if self._prompt is not None:
            return self._prompt(item)
        if isinstance(item, str):
            shown = item
        elif isinstance(item, Mapping) and item:
            shown = "\n\n".join(
                f"{str(name)[:1].upper()}{str(name)[1:].replace('_', ' ')}: {text}" for name, text in item.items()
            )
        else:
            raise TypeError(
                f"items contains {item!r:.80}: expected texts, or mappings such as {{'question': ..., 'answer': ...}}."
            )
        text = f"{self.rubric}\n\n{shown}\n\n{self.scale.instruction}"
        if self._chats:
            return [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
        return f"{text}\n{ANSWER}"

    def scores(self, items: Sequence[Item], *, progress: Callable[[int, int], object] | None = None) -> Scores:
        """Return the scores of items.

        Args:
            items: texts, or mappings from names to texts.
            progress: called with the number of items done, and of all.
        """
        if isinstance(items, str | Mapping):
            raise TypeError(f"items is a {type(items).__name__}: expected a list of items; use [item] for one.")
        prompts = [self.prompt(item) for item in items]
        search = {**self.search, "grammar": self.scale, **({} if progress is None else {"progress": progress})}
        try:
            found: Sequence[NumberDistribution | None] = self._ask(prompts, search) if prompts else []
        except NoNumberError as error:
            found = error.found
        if self.calibration is not None:
            found = [None if one is None else one.tempered(self.calibration.temperature) for one in found]
        return Scores(self.scale, tuple(found), self.calibration)

    def calibrated(
        self, items: Sequence[Item], human: npt.ArrayLike, *, progress: Callable[[int, int], object] | None = None
    ) -> Judge:
        """Return a judge whose means, medians and intervals are calibrated on items that people have scored on the same scale.

        Items come from the same source as those to be judged, and are not among them. 10 are the minimum, 100 to 200 are better:
        as for :func:`numerate.calibration.conformal`, the coverage of a single fit varies by a few points.

        Args:
            items: as in :meth:`scores`.
            human: the scores that people gave, numbers on the judge's scale (means of several people too); NaN for none.
            progress: as in :meth:`scores`.
        """
        return self.with_calibration(calibrate(self.with_calibration(None).scores(items, progress=progress), human))

    def with_calibration(self, calibration: Calibration | None) -> Judge:
        """Return the same judge with a calibration from elsewhere, such as a file; None for none."""
        other = copy(self)
        other.calibration = calibration
        return other

    def __repr__(self) -> str:
        return f"Judge({self.rubric!r:.60}, {self.scale}{', calibrated' if self.calibration else ''})"

    def _ask(self, prompts: list[str | Chat], search: dict[str, Any]) -> list[NumberDistribution]:
        if not self.served:
            from numerate.decode.model import distribution

            return distribution(self.model, prompts, self.tokenizer, **search)
        from numerate.decode.served import served_distribution

        asked: list[Any] = prompts
        if self.tokenizer is not None and self._chats:
            from numerate.decode.prompts import token_ids_of

            asked = [token_ids_of(index, prompt, self.tokenizer) for index, prompt in enumerate(prompts)]
        return served_distribution(self.model, asked, tokenizer=self.tokenizer, **search)


class JudgeReward:
    """A reward function for TRL's ``GRPOTrainer``: the judge's mean, from 0 for the lowest score to 1 for the highest.

    The judge sees the last message of the user as ``question`` and the completion as ``answer``.

    Args:
        judge: the judge; calibrated or not.
        columns: columns of the dataset that the judge sees too, such as ``("reference",)``.
        missing: reward where the judge gives no score; by default None, which TRL leaves out.
        most_refused: a probability of no score above this counts as none.
        name: name in the trainer's logs.

    Example::

        GRPOTrainer(model, reward_funcs=[JudgeReward(judge)], train_dataset=dataset)
    """

    def __init__(
        self,
        judge: Judge,
        *,
        columns: Sequence[str] = (),
        missing: float | None = None,
        most_refused: float = 0.5,
        name: str = "judge",
    ) -> None:
        self.judge, self.columns, self.missing, self.most_refused, self.__name__ = judge, columns, missing, most_refused, name

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return one reward per completion."""
        if absent := [name for name in self.columns if name not in columns]:
            raise ValueError(f"columns={self.columns!r}: the dataset has no {absent[0]!r}; expected one of {', '.join(columns)}.")
        items = [
            {
                "question": _question(prompt),
                **{name: columns[name][row] for name in self.columns},
                "answer": last_text(completion, row),
            }
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        return [self.missing if share is None else share for share in shares_of(self.judge.scores(items), self.most_refused)]


def deepeval_metric(
    judge: Judge,
    *,
    threshold: float = 0.5,
    name: str = "Numerate judge",
    fields: Mapping[str, str] | None = None,
    most_refused: float = 0.5,
) -> Any:
    """Return a metric of DeepEval: the judge's mean, from 0 for the lowest score to 1 for the highest.

    Its ``reason`` has the mean and the 90 % interval on the judge's scale. A test case without a score is an error, as for other
    metrics: DeepEval counts it, or passes it over with ``ignore_errors``.

    Args:
        judge: the judge; calibrated or not.
        threshold: the metric at which a test case passes.
        name: of the metric in reports.
        fields: what the judge sees: names, and the attributes of a test case. By default ``question`` is ``input``, ``answer``
            is ``actual_output``, and ``reference`` is ``expected_output`` if the test case has one.
        most_refused: a probability of no score above this counts as none.

    Example::

        evaluate(test_cases, metrics=[deepeval_metric(judge, threshold=0.7)])
    """
    from deepeval.metrics import BaseMetric

    shown = {"question": "input", "reference": "expected_output", "answer": "actual_output"} if fields is None else fields
    wanted = threshold

    class JudgeMetric(BaseMetric):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.threshold = wanted
            self.async_mode = False

        def measure(self, test_case: Any, *args: Any, **kwargs: Any) -> float:
            self.score = self.success = self.reason = self.error = None
            item = {key: text for key, field in shown.items() if (text := getattr(test_case, field)) is not None}
            scores = judge.scores([item])
            (share,) = shares_of(scores, most_refused)
            if share is None:
                self.error = f"The judge gave no score with a probability of {scores.refused[0]:.2f}."
                raise ValueError(f"{self.error} Say in the rubric what to do with such an answer, or raise most_refused.")
            low, high = scores.interval(0.9)[0]
            self.score, self.success = share, share >= self.threshold
            self.reason = f"{scores.mean[0]:.3g} on a scale of {judge.scale}, 90 % between {low:g} and {high:g}"
            return share

        async def a_measure(self, test_case: Any, *args: Any, **kwargs: Any) -> float:
            return self.measure(test_case)

        def is_successful(self) -> bool:
            return bool(self.success)

        @property
        def __name__(self) -> str:
            return name

    return JudgeMetric()


def shares_of(scores: Scores, most_refused: float) -> list[float | None]:
    """Return where means are on the scale, from 0 to 1; None for items that are refused."""
    low, high = float(scores.scale.values[0]), float(scores.scale.values[-1])
    pairs = zip(scores.mean.tolist(), scores.refused.tolist(), scores.distributions, strict=True)
    return [None if one is None or refused > most_refused else (mean - low) / (high - low) for mean, refused, one in pairs]


def _has_template(tokenizer: Any) -> bool:
    """Whether chats can be written with a tokenizer; those of a jury are asked in texts, as their templates differ."""
    return any(getattr(it, "chat_template", None) for it in (tokenizer, text_tokenizer(tokenizer)))


def _question(prompt: Any) -> str:
    """Return the text of a prompt, or of the user's last message in a chat."""
    if isinstance(prompt, str):
        return prompt
    asked = [message for message in prompt if message.get("role") == "user"]
    return last_text([{**asked[-1], "role": "assistant"}], 0) if asked else ""
