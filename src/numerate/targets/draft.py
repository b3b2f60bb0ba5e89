"""A row while its numbers are replaced, from left to right: tokens, where each comes from, and the soft targets so far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress
from operator import not_

import numpy as np

from numerate.formats.patterns import Span
from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.token_trie import SoftPath, TokenTrie
from numerate.targets.windows import BARRIER, Encoder, Window


class Draft:
    """A row of tokens in which numbers are replaced one after the other.

    Args:
        ids: the tokens of the row.
        trained: which of them are trained.
        encoder: the tokenizer.
    """

    def __init__(self, ids: Sequence[int], trained: Sequence[bool], encoder: Encoder) -> None:
        self.ids, self.sources = [*ids], [*range(len(ids))]
        low = max(trained.index(True) - 1, 0) if True in trained else len(ids)
        pieces = encoder.pieces(self.ids[low:])
        self.text = "".join(pieces)
        """The text of the row as it came, from the token before the first trained one."""
        self._trained, self._encoder = trained, encoder
        self._edges = [0] * low + [*accumulate(map(len, pieces), initial=0)]  # where each token begins in the text
        self._now = [*self._edges]  # of the tokens as they are, from ``_closed`` on, and back from the end of the text
        self._closed = 0  # tokens before this one are done with
        self._locked = [*map(not_, trained)]  # tokens that have to stay: untrained ones, and all up to the number before
        self._soft: dict[int, dict[int, float]] = {}  # by position, in ascending order
        self._meant: list[range] = []
        self._last: tuple[int, list[int], TokenTrie] | None = None  # first token, tokens and all paths of the number before

    def original_text(self, span: Span) -> str:
        """Return characters of the row as it came."""
        return self.text[span[0] : span[1]]

    def trained_text(self) -> str:
        """Return the trained text of the row as it came."""
        return "".join(compress(map(self.text.__getitem__, map(slice, self._edges, self._edges[1:])), self._trained))

    def shown(self) -> str:
        """Return the start of the trained text, for a message."""
        return f"{self.trained_text().strip(BARRIER)!r:.80}"

    def runs(self, docs: Sequence[int]) -> Iterator[tuple[int, str, int]]:
        """Yield stretches of trained tokens of one document: the first character, the text, and the document. ``docs`` ascend."""
        flags, stop, count = [*self._trained, False, True], 0, len(self._trained)
        while (start := flags.index(True, stop)) < count:
            stop = flags.index(False, start)
            while start < stop:
                end = bisect_right(docs, docs[start], start, stop)
                yield self._edges[start], self.text[self._edges[start] : self._edges[end]], docs[start]
                start = end

    def characters(self, start: int, end: int, unit: str) -> Span:
        """Return a span of tokens, or of characters of the trained text, as characters of the row."""
        if unit == "tokens":
            if not 0 <= start < end <= len(self._trained):
                raise ValueError(f"0 <= start < end <= {len(self._trained)}, the number of tokens")
            if not all(self._trained[start:end]):
                raise ValueError("trained tokens, and one of these has the label -100")
            return self._edges[start], self._edges[end]
        places = [k for i, trained in enumerate(self._trained) if trained for k in range(self._edges[i], self._edges[i + 1])]
        if not 0 <= start < end <= len(places):
            raise ValueError(f"0 <= start < end <= {len(places)}, the characters of the trained text")
        if places[end - 1] - places[start] != end - 1 - start:
            raise ValueError("characters that stand together, and tokens that are not trained lie between these")
        return places[start], places[end - 1] + 1

    def put(
        self,
        span: Span,
        answers: Callable[[], AnswerDistribution],
        key: str,
        end_token: int | None,
        rng: np.random.Generator | None,
    ) -> bool:
        """Replace the number at ``span`` of the text as it came, which lies after those before; False if it has to stay.

        Without ``rng`` it is replaced by itself, with its soft targets.
        """
        first, last = self._tokens(span)
        before, length = span[0] - self._now[first], span[1] - span[0]
        window = self._encoder.window(self.ids, (first, last), before, length, self._locked, answers, key, end_token)
        path = None if window is None else self._path(window, answers, rng, span)
        if window is None or path is None:
            self.keep(span)
            return False
        self._replace(window, path, first, last)
        self.keep((self._now[window.start] + window.before, span[1]))
        return True

    def keep(self, span: Span) -> None:
        """Leave the number at ``span`` of the text as it came as it is."""
        first, last = self._tokens(span)
        closed = self._meant[-1].stop if self._meant else 0
        self._locked[closed : last + 1] = [True] * (last + 1 - closed)
        self._meant.append(range(first, last + 1))

    def entries(self) -> tuple[list[int], list[int], list[float]]:
        """Return positions, tokens and probabilities of the soft targets at trained positions."""
        positions: list[int] = []
        token_ids: list[int] = []
        probabilities: list[float] = []
        for place, target in self._soft.items():
            if self._trained[self.sources[place]]:
                positions += [place] * len(target)
                token_ids += target
                probabilities += target.values()
        return positions, token_ids, probabilities

    def meant(self) -> list[bool]:
        """Return which tokens belong to the numbers that were put."""
        inside = [False] * len(self.ids)
        for places in self._meant:
            inside[places.start : places.stop] = [True] * len(places)
        return inside

    def _path(
        self, window: Window, answers: Callable[[], AnswerDistribution], rng: np.random.Generator | None, span: Span
    ) -> SoftPath | None:
        """Return the drawn path, or that of the label; None if it would change what was softened before."""
        if rng is not None:
            path = window.trie.draw(rng)
        else:
            try:
                path = window.trie.path(window.original)
            except ValueError:
                label = self.original_text(span)
                raise ValueError(
                    f"{label!r:.80} has no probability in its own distribution, {answers()!r:.120}: expected one with "
                    "path='fixed'; use path='drawn', hard=0.1 in the target, or bounds that the label keeps."
                ) from None
        if (softened := next(reversed(self._soft), -1)) < window.start:
            return path
        split = next((place for place, target in enumerate(path.targets, window.start) if len(target) > 1), None)
        return None if split is not None and softened > split else path

    def _replace(self, window: Window, path: SoftPath, first: int, last: int) -> None:
        """Put the tokens of a path in place of those of the window, in which the number has tokens ``first`` to ``last``."""
        start, stop, new = window.start, window.stop, path.token_ids[:-1]
        own = window.original[:-1]
        left, most = 0, min(first - start, len(new))
        while left < most and new[left] == own[left]:
            left += 1
        right, most = 0, min(stop - 1 - last, len(new) - left)
        while right < most and new[-1 - right] == own[-1 - right]:
            right += 1
        source, count = self.sources[first], len(new) - left - right
        self.sources[start + left : stop - right] = [source] * count
        self._locked[start + left : stop - right] = [False] * count
        self.ids[start:stop] = new
        lengths = [*map(len, self._encoder.pieces(new))]
        self._now[start : stop + 1] = accumulate(lengths, initial=self._now[stop] - sum(lengths))
        self._closed = start
        if self._last is not None and start < self._last[0] + len(self._last[1]):
            old_and_new = enumerate(zip(window.original, path.targets, strict=False), start)
            if changed := next(((place, target) for place, (old, target) in old_and_new if target != {old: 1.0}), None):
                self._spread(changed, self._last)
        for place, target in enumerate(path.targets, start):
            if len(target) > 1 and place < len(self.ids):
                self._soft.setdefault(place, target)
        self._last = start, path.token_ids, window.trie

    def _spread(self, changed: tuple[int, dict[int, float]], last: tuple[int, list[int], TokenTrie]) -> None:
        """Wherever the number before may end, let the target at a place follow instead of the token that stood there."""
        (place, target), (start, tokens, trie) = changed, last
        tail = tokens[place - start :]  # what follows the number before, from the place on
        for end, options in self._soft.items() if tail else ():
            if end >= start and tail[0] in options and (*tokens[: end - start], *tail) in trie:
                options = self._soft[end] = {**options}  # that of the path is shared
                share = options.pop(tail[0])
                for token_id, p in target.items():
                    options[token_id] = options.get(token_id, 0.0) + share * p

    def _tokens(self, span: Span) -> tuple[int, int]:
        """Return the first and the last token that hold characters of ``span``, which lies after the numbers before."""
        first = bisect_right(self._now, span[0], self._closed) - 1
        return first, bisect_left(self._now, span[1], first) - 1
