"""A row while its numbers are replaced, from left to right: tokens, where each comes from, and the soft targets so far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress
from operator import not_
from typing import Any

import numpy as np
import numpy.typing as npt

from numerate.formats.patterns import Span
from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.token_trie import Options, SoftPath, TokenTrie, entries
from numerate.targets.windows import BARRIER, Encoder, Window

Number = Window | range
"""Where a number is in a row as it came, if it is replaced; else its tokens."""


class Draft:
    """A row of tokens in which numbers are replaced one after the other.

    Args:
        ids: the tokens of the row.
        trained: which of them are trained.
    """

    def __init__(self, ids: Sequence[int], trained: bytes) -> None:
        self.ids, self.sources = [*ids], [*range(len(ids))]
        self.trained = trained
        self._soft: dict[int, Options] = {}  # by position, in ascending order
        self._numbers: list[tuple[Number, list[int]]] = []  # in the row as it came, and the tokens in the place of a window

    @property
    def shift(self) -> int:
        """How far the tokens after the numbers so far were moved to the right."""
        return len(self.ids) - len(self.trained)

    def keep(self, tokens: range) -> None:
        """Leave a number of the row as it came as it is."""
        self._numbers.append((tokens, []))

    def replace(self, window: Window, path: SoftPath) -> tuple[int, int]:
        """Put the tokens of a path in place of those of a window of the row as it came; return the start and stop of new ones."""
        shift, new, own = self.shift, path.token_ids[:-1], window.context.tokens
        start, stop = window.start + shift, window.stop + shift
        left, most = 0, min(window.first - window.start, len(new))
        while left < most and new[left] == own[left]:
            left += 1
        right, most = 0, min(window.stop - 1 - window.last, len(new) - left)
        while right < most and new[-1 - right] == own[-1 - right]:
            right += 1
        self.sources[start + left : stop - right] = [self.sources[window.first + shift]] * (len(new) - left - right)
        self.ids[start:stop] = new
        for place, options in path.forks.items():
            if start + place < len(self.ids):
                self._soft.setdefault(start + place, options)
        self._numbers.append((window, new))
        return start + left, start + len(new) - right

    def meant(self, encoder: Encoder) -> list[bool]:
        """Return which tokens belong to the numbers."""
        inside, shift = [False] * len(self.ids), 0
        for number, new in self._numbers:
            if isinstance(number, range):
                first, stop = number.start + shift, number.stop + shift
            else:
                tokens, start = number.context.tokens, number.start + shift
                edges = [*accumulate(map(len, encoder.pieces(new)), initial=0)]
                end = edges[-1] - len(encoder.text(tokens)) + number.context.end
                first, stop = start + bisect_right(edges, number.context.begin) - 1, start + bisect_left(edges, end)
                shift += len(new) - len(tokens)
            inside[first:stop] = [True] * (stop - first)
        return inside

    def entries(self) -> dict[str, npt.NDArray[Any]]:
        """Return the soft targets at trained positions as ``SOFT_FIELDS``."""
        return entries({place: options for place, options in self._soft.items() if self.trained[self.sources[place]]})


class ReadDraft(Draft):
    """A draft whose text is read, to find its numbers and the windows in which they can be replaced.

    Args:
        ids: as for :class:`Draft`.
        trained: as for :class:`Draft`.
        encoder: the tokenizer.
    """

    def __init__(self, ids: Sequence[int], trained: bytes, encoder: Encoder) -> None:
        super().__init__(ids, trained)
        low = max(trained.index(1) - 1, 0) if 1 in trained else len(ids)
        pieces = encoder.pieces(self.ids[low:])
        self.text = "".join(pieces)
        """The text of the row as it came, from the token before the first trained one."""
        self._encoder = encoder
        self._edges = [0] * low + [*accumulate(map(len, pieces), initial=0)]  # where each token begins in the text
        self._now = [*self._edges]  # of the tokens as they are, from ``_closed`` on, and back from the end of the text
        self._closed = 0  # tokens before this one are done with
        self._locked = [*map(not_, trained)]  # tokens that have to stay: untrained ones, and all up to the number before
        self._open = 0  # tokens before this one are locked
        self._last: tuple[int, list[int], TokenTrie] | None = None  # first token, tokens and all paths of the number before
        self._settled = True

    @property
    def numbers(self) -> list[Number] | None:
        """All numbers of the row as it came; None if one depends on what was drawn before, or has no window."""
        return [number for number, _ in self._numbers] if self._settled else None

    def original_text(self, span: Span) -> str:
        """Return characters of the row as it came."""
        return self.text[span[0] : span[1]]

    def trained_text(self) -> str:
        """Return the trained text of the row as it came."""
        return "".join(compress(map(self.text.__getitem__, map(slice, self._edges, self._edges[1:])), self.trained))

    def shown(self) -> str:
        """Return the start of the trained text, for a message."""
        return f"{self.trained_text().strip(BARRIER)!r:.80}"

    def runs(self, docs: Sequence[int]) -> Iterator[tuple[int, str, int]]:
        """Yield stretches of trained tokens of one document: the first character, the text, and the document. ``docs`` ascend."""
        flags, stop, count = [*self.trained, False, True], 0, len(self.trained)
        while (start := flags.index(True, stop)) < count:
            stop = flags.index(False, start)
            while start < stop:
                end = bisect_right(docs, docs[start], start, stop)
                yield self._edges[start], self.text[self._edges[start] : self._edges[end]], docs[start]
                start = end

    def characters(self, start: int, end: int, unit: str) -> Span:
        """Return a span of tokens, or of characters of the trained text, as characters of the row."""
        if unit == "tokens":
            if not 0 <= start < end <= len(self.trained):
                raise ValueError(f"0 <= start < end <= {len(self.trained)}, the number of tokens")
            if not all(self.trained[start:end]):
                raise ValueError("trained tokens, and one of these has the label -100")
            return self._edges[start], self._edges[end]
        places = [k for i, trained in enumerate(self.trained) if trained for k in range(self._edges[i], self._edges[i + 1])]
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
        found = self._encoder.window(self.ids, (first, last), before, length, self._locked, answers, key, end_token)
        path = None if found is None else self._path(*found, answers, rng, span)
        if found is None or path is None:
            self.leave(span)
            return False
        window, trie = found
        alike = trie.starts_with(window.context.tokens[:1])
        self._settled = self._settled and window.lowest >= self._ended() + (not alike)
        self._spread(window, path)
        self.replace(window.moved(-self.shift), path)
        self._last = window.start, path.token_ids, trie
        self._close(self._tokens((self._now[window.start] + window.context.begin, span[1]))[1])
        return True

    def leave(self, span: Span) -> None:
        """Leave the number at ``span`` of the text as it came, which cannot be replaced, as it is."""
        self._settled = False
        self.keep_text(span)

    def keep_text(self, span: Span) -> None:
        """Leave the number at ``span`` of the text as it came as it is."""
        first, last = self._tokens(span)
        self._settled = self._settled and first >= self._ended()
        self.keep(range(first - self.shift, last + 1 - self.shift))
        self._close(last)

    def replace(self, window: Window, path: SoftPath) -> tuple[int, int]:
        """Do so, and move the places of the text along."""
        start, old, new = window.start + self.shift, window.stop + self.shift, path.token_ids[:-1]
        changed, same = super().replace(window, path)
        self._locked[changed : old - len(new) + (same - start)] = [False] * (same - changed)
        lengths = [*map(len, self._encoder.pieces(new))]
        self._now[start : old + 1] = accumulate(lengths, initial=self._now[old] - sum(lengths))
        self._closed = start
        return changed, same

    def _ended(self) -> int:
        """Return the token that ends the last number that was replaced."""
        return -1 if self._last is None else self._last[0] + len(self._last[1]) - 1

    def _path(
        self,
        window: Window,
        trie: TokenTrie,
        answers: Callable[[], AnswerDistribution],
        rng: np.random.Generator | None,
        span: Span,
    ) -> SoftPath | None:
        """Return the drawn path, or that of the label; None if it would change what was softened before."""
        if rng is not None:
            path = trie.draw(rng)
        else:
            try:
                path = trie.path(_original(window))
            except ValueError:
                label = self.original_text(span)
                raise ValueError(
                    f"{label!r:.80} has no probability in its own distribution, {answers()!r:.120}: expected one with "
                    "path='fixed'; use path='drawn', hard=0.1 in the target, or bounds that the label keeps."
                ) from None
        if (softened := next(reversed(self._soft), -1)) < window.start:
            return path
        return path if softened <= window.start + next(iter(path.forks), softened) else None

    def _spread(self, window: Window, path: SoftPath) -> None:
        """Wherever the number before may end, let what follows be the target of the first place that changes, not its token."""
        if self._last is None or window.start >= self._last[0] + len(self._last[1]):
            return
        start, tokens, trie = self._last
        old_and_new = enumerate(zip(_original(window), path.targets, strict=False), window.start)
        changed = next(((place, target) for place, (old, target) in old_and_new if target != {old: 1.0}), None)
        if changed is None:
            return
        place, target = changed
        tail = tokens[place - start :]  # what follows the number before, from the place on
        for end, (token_ids, shares) in self._soft.items() if tail else ():
            if end >= start and tail[0] in token_ids and (*tokens[: end - start], *tail) in trie:
                options = dict(zip(token_ids.tolist(), shares.tolist(), strict=True))
                share = options.pop(tail[0])
                for token_id, p in target.items():
                    options[token_id] = options.get(token_id, 0.0) + share * p
                self._soft[end] = np.array([*options], dtype=np.int32), np.array([*options.values()])

    def _close(self, last: int) -> None:
        """Lock all tokens up to the last of a number."""
        self._locked[self._open : last + 1] = [True] * (last + 1 - self._open)
        self._open = last + 1

    def _tokens(self, span: Span) -> tuple[int, int]:
        """Return the first and the last token that hold characters of ``span``, which lies after the numbers before."""
        first = bisect_right(self._now, span[0], self._closed) - 1
        return first, bisect_left(self._now, span[1], first) - 1


def _original(window: Window) -> tuple[int, ...]:
    return (*window.context.tokens, window.context.ender)
