"""SoftNumbers: find the numbers of a tokenised row, draw each from its distribution, and say how likely every token was."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, cast

import numpy as np

from numerate.checks import check_choice, check_integer, choices
from numerate.formats import NumberFormat, as_format
from numerate.formats.patterns import NUMBER, Span, find_spans
from numerate.labels import IGNORE_INDEX
from numerate.targets.answer_distribution import AnswerDistribution, Target
from numerate.targets.draft import Draft, Number, ReadDraft
from numerate.targets.token_trie import TokenTrie
from numerate.targets.tokenised_rows import COLUMNS, TokenColumn, as_ids, documents, rebuilt, rebuilt_labels, trained_tokens
from numerate.targets.windows import Encoder, Window, trim

Where = Literal["answer", "all", "marked"]
PathKind = Literal["drawn", "fixed", "jitter"]
_PATHS = choices(PathKind)
_MOST_HELD = 1 << 28  # bytes of rows drawn before, in each process
_OF_NUMBER = 500  # bytes


class SoftNumbers:
    r"""Turns a tokenised row into one whose numbers are drawn from their distributions, with soft targets.

    A number that is meant is replaced by a member of its distribution, in ``input_ids`` and ``labels``; columns with an entry for
    each token follow. Targets are exact for any tokenizer: all members are encoded in their place in the text, and a number for
    which that does not reproduce the row's own tokens stays as it is, and is counted in ``left_hard``.

    Args:
        tokenizer: a Hugging Face tokenizer, or a processor that has one: the one that made the rows.
        target: from a label's text to its distribution: :class:`Bell`, :class:`CircularBell`, :class:`Ratings`, or any function
            that returns an :class:`AnswerDistribution`.
        where: which numbers are meant. ``"answer"``: the last of the trained text, of each document in a packed row; ``"all"``:
            all of the trained text; a pattern (``re.compile(r"price: (\d+)")``): its matches, or its first group; ``"marked"``:
            the spans in the column ``spans``. What looks like a number is up to ``target.pattern``; digits within words, dates,
            versions and phone numbers are none.
        keep: a pattern of texts that stay as they are, such as ids: numbers that touch a match are not meant.
        column: a column of the row from which the target is made instead of the number's text, such as several people's ratings.
            It holds one entry for ``where="answer"``, and a list of one for each number otherwise. Default: ``target.column``, if
            it has one, as ``Ratings("ratings")`` does.
        spans: the column of ``where="marked"``: a list of ``(start, end)``.
        unit: what the spans count: ``"characters"`` of the trained text, which :meth:`text` returns, or ``"tokens"`` of the row.
        mask: whether to add ``position_weights``: 1 at the tokens of the numbers that are meant, 0 elsewhere. Other losses then
            count these numbers alone.
        end_token: what ends a number at the very end of a row, where the row has no end token. Without it such a number, which
            may have been cut, stays as it is.
        strict: raise for a number that would stay as it is, instead of a warning for the first.
        sequence: the tokens in which numbers are drawn: ``"input_ids"``, with labels that repeat them, or ``"labels"`` for an
            encoder-decoder, whose labels are a sequence of their own; ``decoder_input_ids`` follow.
        format: how the numbers of the rows are written, if not as usual: a :class:`~numerate.formats.NumberFormat`, or a kind
            such as ``"spaced"``. The target gets and returns ordinary numbers; those that do not fit are written with as many
            digits as they have. Of clock times, ``padded`` pads the hour.

    Examples:
        >>> from numerate.targets import Bell
        >>> from numerate.tokenizers import load_tokenizer
        >>> tokenizer = load_tokenizer("smollm2")
        >>> ids = tokenizer("The price is 99.")["input_ids"]
        >>> soft = SoftNumbers(tokenizer, Bell(width=1, shape="uniform"))
        >>> row = soft({"input_ids": ids, "labels": ids}, rng=np.random.default_rng(1))
        >>> tokenizer.decode(row["input_ids"]), row["soft_positions"].tolist()
        ('The price is 98.', [4, 4, 5, 5])
        >>> tokenizer.convert_ids_to_tokens(row["soft_token_ids"]), row["soft_probabilities"].round(3).tolist()
        (['1', '9', '8', '9'], [0.333, 0.667, 0.5, 0.5])
    """

    def __init__(
        self,
        tokenizer: Any,
        target: Target,
        *,
        where: Where | re.Pattern[str] = "answer",
        keep: str | re.Pattern[str] | None = None,
        column: str | None = None,
        spans: str = "number_spans",
        unit: Literal["characters", "tokens"] = "characters",
        mask: bool = False,
        end_token: int | None = None,
        strict: bool = False,
        sequence: TokenColumn = "input_ids",
        format: NumberFormat | str | None = None,
    ) -> None:
        if not callable(target):
            raise TypeError(f"target={target!r:.80} cannot be called: expected Bell(...), Ratings() or a function of the label.")
        if not isinstance(where, re.Pattern):
            check_choice("where", where, choices(Where))
        check_choice("unit", unit, ("characters", "tokens"))
        check_choice("sequence", sequence, choices(TokenColumn))
        if end_token is not None:
            expected = "a token id such as tokenizer.eos_token_id, or None"
            end_token = check_integer("end_token", end_token, expected, least=0)
        self.target, self.where, self.sequence = target, where, sequence
        self.column: str | None = getattr(target, "column", None) if column is None else column
        self.keep = re.compile(keep) if isinstance(keep, str) else keep
        self.spans, self.unit, self.mask, self.end_token = spans, unit, mask, end_token
        self.strict = strict
        self.seen = 0
        """Numbers that were meant."""
        self.left_hard = 0
        """Those of them that stayed as they are since no window fits."""
        self._encoder = Encoder(tokenizer, targets=sequence == "labels")
        self.format = NumberFormat() if format is None else as_format(format)
        self._pattern: re.Pattern[str] = getattr(target, "pattern", NUMBER)
        self._parts = None if self._pattern is NUMBER else self._pattern  # the format is that of a part of the label
        if self._parts is not None and self.format.kind not in ("plain", "padded"):
            raise ValueError(
                f"format={format!r} for target={target!r:.80}, whose labels are no plain numbers: expected a padded format, such "
                "as NumberFormat('padded', digits=2, decimals=0) for clock times."
            )
        self._pattern = self.format.pattern if self._parts is None else self._parts
        self._only: dict[str, str | None] = {}  # the answer of labels that have a single one
        self._rows: dict[bytes, tuple[bytes, list[Number]]] = {}  # what is trained, and the numbers, of rows drawn before
        self._held = 0  # bytes of these, about
        columns = ("labels",) if sequence == "labels" else COLUMNS
        given = self.column, spans if where == "marked" else None
        self._own_columns = [name for name in given if name is not None]
        self._columns = (*columns, *self._own_columns)  # all that is read of a row
        self._last = "", AnswerDistribution.point("")  # the one needed next is most often the same
        self._warned: set[str] = set()

    def __call__(
        self, row: Mapping[str, Any], *, rng: np.random.Generator | None = None, path: PathKind = "drawn"
    ) -> dict[str, Any]:
        """Return the row with drawn numbers and soft targets.

        Args:
            row: ``input_ids``, and ``labels`` or the masks that say which tokens are trained; all are if there is neither.
            rng: draws the members; needed unless ``path="fixed"``.
            path: ``"drawn"``: a drawn number, with soft targets; ``"fixed"``: the label's own number, with soft targets;
                ``"jitter"``: a drawn number as a hard label.

        Returns:
            The row, with arrays ``soft_positions``, ``soft_token_ids`` and ``soft_probabilities`` unless ``path="jitter"``, and
            without the columns that ``column`` and ``spans`` name.
        """
        if path not in _PATHS:
            check_choice("path", path, _PATHS)
        if rng is None and path != "fixed":
            raise ValueError(
                f"rng=None: expected np.random.default_rng(...), as path={path!r} draws; DrawnDataset seeds one per row."
            )
        drawing, name = None if path == "fixed" else rng, self._name(row)
        draft = self._redrawn(name, row, drawing) or self._drawn(name, row, drawing)
        if self.sequence == "labels":
            out = rebuilt_labels(row, draft.ids, draft.sources)
        else:
            out = rebuilt(row, draft.ids, draft.sources, draft.trained)
        for read in self._own_columns:
            out.pop(read, None)
        if path != "jitter":
            out |= draft.entries()
        if self.mask:
            given = out.get("position_weights")
            meant = draft.meant(self._encoder)
            weights = map(float, meant if given is None else given)
            out["position_weights"] = [w if inside else 0.0 for w, inside in zip(weights, meant, strict=True)]
        return out

    def _drawn(self, name: bytes, row: Mapping[str, Any], rng: np.random.Generator | None) -> Draft:
        """Return a row with its numbers drawn, and keep where they are."""
        draft = self._draft(row)
        spans = self._spans(row, draft)
        if not spans and self.where == "answer" and any(draft.trained):
            self._warn("none", f"no number in the trained text {draft.shown()}: expected one for where='answer'.", 4)
        texts = [*map(draft.original_text, spans)]
        for span, original, label in zip(spans, texts, self._labels(row, texts), strict=True):
            key = f"{label!r}{self._own(original)}" if self.column is None else self._digest([label]).hex()
            answers = partial(self._distribution, label, key, original)
            self.seen += 1
            if self.column is None and label is None:
                draft.leave(span)
                self._leave(f"the number {original!r} in {draft.shown()} stays as it is: it is not written in {self.format!r}.")
                continue
            if key not in self._only:
                trim(self._only)
                found = answers().texts
                self._only[key] = found[0] if len(found) == 1 else None
            if self._only[key] == original:
                draft.keep_text(span)
            elif not draft.put(span, answers, key, self.end_token, rng):
                self._leave(
                    f"the number {original!r} in {draft.shown()} stays as it is: the tokenizer does not reproduce the tokens of "
                    "the row, or the row ends with the number (see end_token)."
                )
        if (numbers := draft.numbers) is not None:
            size = len(draft.trained) + _OF_NUMBER * (1 + len(numbers))
            if self._held + size > _MOST_HELD:
                self._rows, self._held = {}, 0
            self._rows[name], self._held = (draft.trained, numbers), self._held + size
        return draft

    def _redrawn(self, name: bytes, row: Mapping[str, Any], rng: np.random.Generator | None) -> Draft | None:
        """Return a row that was drawn before with its numbers drawn anew; None if it has to be read."""
        if rng is None or name not in self._rows:
            return None
        trained, numbers = self._rows[name]
        tries = [self._encoder.trie(number.context) for number in numbers if isinstance(number, Window)]
        if None in tries:  # dropped since
            return None
        draft, left = Draft(as_ids(row, self.sequence), trained), iter(tries)
        for number in numbers:
            if isinstance(number, Window):
                draft.replace(number, cast(TokenTrie, next(left)).draw(rng))
            else:
                draft.keep(number)
        self.seen += len(numbers)
        return draft

    def _name(self, row: Mapping[str, Any]) -> bytes:
        """Return a digest of all that says where a row has numbers and what they are; equal rows of a dataset may be others."""
        return self._digest(map(row.get, self._columns))

    def _digest(self, values: Iterable[Any]) -> bytes:
        """Return a digest of all that values hold; the texts of long arrays and of distributions leave some out."""
        given = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        try:
            held = pickle.dumps(given)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"the row has a value in {', '.join(map(repr, self._columns))} that cannot be pickled ({error}): expected plain "
                "values, such as numbers, texts, lists of them, or an AnswerDistribution."
            ) from None
        return blake2b(held, digest_size=16).digest()

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the trained text of a row, in which spans of ``unit="characters"`` count; a special token is one character."""
        return self._draft(row).trained_text()

    def numbers(self, row: Mapping[str, Any]) -> list[str]:
        """Return the numbers of a row that are meant, in ordinary notation; nothing is drawn or counted."""
        draft = self._draft(row)
        read = (self._read(draft.original_text(span)) for span in self._spans(row, draft))
        return [number for number in read if number is not None]

    def _draft(self, row: Mapping[str, Any]) -> ReadDraft:
        """Return the tokens in which numbers are drawn, with their text."""
        ids = as_ids(row, self.sequence)
        own_labels = self.sequence == "labels"
        trained = bytes(token_id != IGNORE_INDEX for token_id in ids) if own_labels else trained_tokens(row, ids)
        return ReadDraft(ids, trained, self._encoder)

    def _spans(self, row: Mapping[str, Any], draft: ReadDraft) -> list[Span]:
        """Return where the numbers that are meant stand in the text of the row."""
        if self.where == "marked":
            return self._marked(row, draft)
        length = len(draft.trained)
        docs = [0] * length if self.sequence == "labels" else documents(row, length)
        pattern = self.where if isinstance(self.where, re.Pattern) else self._pattern
        group = 1 if isinstance(self.where, re.Pattern) and pattern.groups else 0
        found: dict[int, list[Span]] = {}
        for start, text, number in draft.runs(docs):
            cut = start > 0 and draft.text[start - 1].isdigit() and text[:1].isdigit()
            for begin, end in find_spans(text, pattern, group, self.keep):
                if not (cut and begin == 0):
                    found.setdefault(number, []).append((start + begin, start + end))
        if self.where == "answer":
            return [spans[-1] for _, spans in sorted(found.items())]
        return [span for _, spans in sorted(found.items()) for span in spans]

    def _marked(self, row: Mapping[str, Any], draft: ReadDraft) -> list[Span]:
        if row.get(self.spans) is None:
            raise ValueError(
                f"the row has no column {self.spans!r}: expected a list of (start, end) for where='marked'; name it in spans."
            )
        spans: list[Span] = []
        for start, end in sorted(map(tuple, row[self.spans])):
            try:
                begin, stop = draft.characters(int(start), int(end), self.unit)
            except ValueError as error:
                raise ValueError(f"{self.spans} holds {(start, end)}: expected {error}.") from None
            text = draft.text[begin:stop]
            begin, stop = begin + len(text) - len(text.lstrip()), stop - (len(text) - len(text.rstrip()))
            if begin >= stop or (spans and begin < spans[-1][1]):
                raise ValueError(
                    f"{self.spans} holds {(start, end)}, which is empty or overlaps another: expected one span per number."
                )
            spans.append((begin, stop))
        return spans

    def _labels(self, row: Mapping[str, Any], texts: list[str]) -> Iterable[Any]:
        """Return what the target of each number, of these texts in the row, is made from."""
        if self.column is None:
            return map(self._read, texts)
        if self.column not in row:
            raise ValueError(
                f"the row has no column {self.column!r}, only {', '.join(map(repr, row))}: expected the one of `column`."
            )
        values = row[self.column]
        if len(texts) == 1 and self.where == "answer":
            return [values]
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(texts):
            raise ValueError(f"{self.column}={values!r:.80} for {len(texts)} numbers: expected a list of one entry for each.")
        return cast(Iterable[Any], values)

    def _read(self, text: str) -> str | None:
        """Return the label that a text of a row stands for, in ordinary notation; None if it is not in the format."""
        if self.format.kind == "plain":
            return text
        return self.format.read(text) if self._parts is None else self.format.read_text(text, self._parts)

    def _own(self, original: str) -> str:
        """Return the part of a number's key that says how the row has it."""
        return "" if self.format.kind == "plain" or self.column is not None else f" {original}"

    def _written(self, answers: AnswerDistribution, label: Any, original: str) -> AnswerDistribution:
        """Return answers in the format; the label itself as the row has it."""
        if self.format.kind == "plain":
            return answers
        write = self.format.write if self._parts is None else partial(self.format.write_text, numbers=self._parts)
        own = label if self.column is None else None
        return AnswerDistribution(
            [original if text == own else write(text, strict=False) for text in answers.texts], answers.probabilities
        )

    def _distribution(self, label: Any, key: str, original: str) -> AnswerDistribution:
        if self._last[0] != key:
            answers = self.target(label)
            if not isinstance(answers, AnswerDistribution):
                raise TypeError(f"target({label!r:.80}) is a {type(answers).__name__}: expected an AnswerDistribution.")
            self._last = key, self._written(answers, label, original)
        return self._last[1]

    def _leave(self, problem: str) -> None:
        """Count a number that stays as it is, and warn of the first, or raise."""
        self.left_hard += 1
        if self.strict:
            raise ValueError(
                f"strict=True, and {problem} Expected tokens in whose place other numbers can stand: a token must not hold "
                "digits of two numbers; use hard labels, or a tokenizer that splits digits from what is beside them."
            )
        self._warn("hard", f"{problem} It is the first of {self.seen} numbers so far; SoftNumbers.left_hard counts them.", 5)

    def _warn(self, kind: str, message: str, level: int = 3) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"SoftNumbers: {message}", stacklevel=level)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_only": {}, "_rows": {}, "_held": 0}
