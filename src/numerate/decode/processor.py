"""Restrict ``generate`` of transformers to numbers: a ``LogitsProcessor`` that allows only the tokens of a grammar."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from numerate.checks import check_integer, check_tensor
from numerate.decode.format_grammar import check_grammar
from numerate.decode.grammar import Grammar, NumberGrammar, TextGrammar
from numerate.decode.token_tree import TokenTree, end_ids, token_texts
from numerate.formats import NumberFormat

__all__ = ["NumbersOnly", "numbers_only"]

_OVER, _BROKEN = "over", "broken"  # after an end token; not a number of the grammar
_MOST_TEXTS = 100_000  # size of the cache


class NumbersOnly(LogitsProcessor):  # type: ignore[misc]
    """Restrict ``generate`` to one number of ``grammar`` and then an end token, as a ``LogitsProcessor``.

    Tokens that do not extend the text after the prompt to a prefix of a number of the grammar get a score of -inf, and so do end
    tokens after an incomplete number. ``max_new_tokens=grammar.max_length + 2`` is always enough, including one leading space and
    the end token.

    Supports greedy decoding, sampling, beam search, left padding and encoder-decoders. A processor can be reused, but not by
    concurrent ``generate`` calls.

    Args:
        tokens: a Hugging Face tokenizer, a processor that has one, a :class:`NumericVocab`, or ``{text: token_id}``.
        grammar: form and range of the number; default ``NumberGrammar()``.
        format: how numbers are written, see :func:`numerate.decode.distribution`; ``processor.grammar`` has both.
        end_token_ids: ids of the tokens that may end a number; default: the tokenizer's ``eos_token_id``.
        prompt_length: columns of ``input_ids`` before the number: ``input_ids.shape[1]``, or the length of the decoder's prompt
            for an encoder-decoder. Default: the length at the first step. Required for assisted generation.
        leading_space: whether one space may precede the number, as a token or as part of one.

    Example::

        grammar = NumberGrammar(decimals=2, lowest=0, highest=100)
        processor = numbers_only(tokenizer, grammar)
        model.generate(**inputs, logits_processor=[processor], max_new_tokens=grammar.max_length + 2)
    """

    supports_continuous_batching = False

    def __init__(
        self,
        tokens: Any,
        grammar: Grammar | None = None,
        *,
        format: NumberFormat | str | None = None,
        end_token_ids: int | Iterable[int] | None = None,
        prompt_length: int | None = None,
        leading_space: bool = True,
    ) -> None:
        grammar = check_grammar(grammar, format, NumberGrammar())
        if isinstance(grammar, TextGrammar):
            raise TypeError("grammar is a TextGrammar: expected a NumberGrammar, such as NumberGrammar(decimals=2), or None.")
        if prompt_length is not None:
            expected = "an integer >= 0, such as input_ids.shape[1], or None"
            prompt_length = check_integer("prompt_length", prompt_length, expected, least=0)
        self.grammar, self.prompt_length = grammar, prompt_length
        self.end_token_ids = end_ids(tokens, end_token_ids)
        self._texts = self._usable(tokens, leading_space)
        pairs = [(text, token_id) for token_id, text in self._texts.items()]
        self._tree = TokenTree(pairs, grammar, most_spaces=int(leading_space), spaces=" ", looks_past=False)
        self._least_vocab = 1 + max(*self._texts, *self.end_token_ids)
        self._states: dict[str, Hashable] = {}
        ended = torch.tensor(self.end_token_ids)
        self._allowed: dict[Hashable, Tensor] = {_OVER: ended, _BROKEN: ended}
        self._prompt: Tensor | None = None  # of the current generation
        self._last_length, self._last_rows = -1, set[tuple[int, ...]]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return ``scores [B, V]`` with -inf for the tokens that the grammar forbids after ``input_ids [B, T]``."""
        self._check(input_ids, scores)
        first = input_ids.shape[1] != self._last_length + 1
        start = self._start(input_ids) if self.prompt_length is None else self.prompt_length
        rows = input_ids[:, start:].tolist()
        self._last_length, self._last_rows = input_ids.shape[1], {tuple(row) for row in rows}
        states = [self._state_of(row) for row in rows]
        # Beam search pads its beams with forbidden tokens at a score of -inf, but not in the first step.
        if first and states and all(state is _BROKEN for state in states):
            raise ValueError(
                f"prompt_length={start} leaves the token ids {rows[0][:8]}, which are not a prefix of a number: "
                f"expected the length of the prompt, of {input_ids.shape[1]} columns or fewer; pass "
                "prompt_length=input_ids.shape[1] of the prompt."
            )
        allowed = [self._tokens_after(state, row) for state, row in zip(states, rows, strict=True)]
        counts = torch.tensor([len(token_ids) for token_ids in allowed])
        columns = torch.cat(allowed).to(scores.device)  # [K]
        index = torch.arange(len(rows)).repeat_interleave(counts).to(scores.device)  # [K]
        kept = scores[index, columns]
        self._check_kept(kept, index, states)
        masked = torch.full_like(scores, -torch.inf)
        masked[index, columns] = kept
        return masked

    def text_of(self, token_ids: Iterable[int]) -> str | None:
        """Return the text of the tokens up to an end token; None if one of them is not a token of the grammar."""
        texts: list[str] = []
        for token_id in token_ids:
            if token_id in self.end_token_ids:
                break
            if token_id not in self._texts:
                return None
            texts.append(self._texts[token_id])
        return "".join(texts)

    def _usable(self, tokens: Any, leading_space: bool) -> dict[int, str]:
        """Return the texts of the tokens that can be part of a number of the grammar."""
        alphabet = self.grammar.alphabet
        characters = {*alphabet, *" " * leading_space}
        usable = {int(token_id): text for text, token_id in token_texts(tokens) if text and set(text) <= characters}
        for token_id in self.end_token_ids:
            if (text := usable.get(token_id)) == " ":
                del usable[token_id]
            elif text is not None:
                raise ValueError(
                    f"end_token_ids holds {token_id}, whose text {text!r} can be part of a number of {self.grammar!r}: expected "
                    "tokens that end one, such as the end of sequence or a newline; change the grammar (decimals=0 for a full "
                    "stop, thousands=False for a comma) or leave it out."
                )
        if missing := [character for character in alphabet if character not in usable.values()]:
            raise ValueError(
                f"tokens={type(tokens).__name__} has no token for {', '.join(map(repr, missing))}: expected one token for each "
                f"character of {alphabet!r}; use another tokenizer, or a grammar without them (sign=False, decimals=0, "
                "thousands=False)."
            )
        return usable

    def _start(self, input_ids: Tensor) -> int:
        """Return the length of the prompt. Rows that do not extend those of the last step by one token are a new prompt."""
        prompt, length = self._prompt, input_ids.shape[1]
        if prompt is not None and prompt.shape[0] == input_ids.shape[0] and prompt.shape[1] <= length <= self._last_length + 1:
            size = prompt.shape[1]
            if torch.equal(prompt, input_ids[:, :size].to(prompt.device)):
                if length == size:
                    return size
                if length <= self._last_length:
                    raise ValueError(
                        f"prompt_length=None, and {length} columns of input_ids after {self._last_length} may be a step back or "
                        f"a new, longer prompt that begins with the last one of {size} columns: expected one more column per "
                        "step; pass prompt_length=input_ids.shape[1] to numbers_only."
                    )
                if all(tuple(row) in self._last_rows for row in input_ids[:, size:-1].tolist()):
                    return size
        self._prompt = input_ids.clone()
        return length

    def _state_of(self, row: list[int]) -> Hashable:
        text = self.text_of(row)
        if text is None:
            return _BROKEN
        if text not in self._states:
            if len(self._states) >= _MOST_TEXTS:
                self._states.clear()
            self._states[text] = _BROKEN if (state := self._tree.state(text)) is None else state
        state = self._states[text]
        return _OVER if state is not _BROKEN and any(token_id in self.end_token_ids for token_id in row) else state

    def _tokens_after(self, state: Hashable, row: list[int]) -> Tensor:
        """Return the sorted ids of the tokens allowed in a state; ``row`` is one that leads there."""
        if state not in self._allowed:
            text = self.text_of(row) or ""
            ends = torch.tensor(self.end_token_ids if self.grammar.accepts(text.removeprefix(" ")) else (), dtype=torch.long)
            self._allowed[state] = torch.cat([self._tree.fork(text, state).token_ids, ends]).sort().values
        return self._allowed[state]

    def _check(self, input_ids: Tensor, scores: Tensor) -> None:
        check_tensor("input_ids", input_ids, "[B, T]")
        check_tensor("scores", scores, "[B, V]")
        if input_ids.dim() != 2 or scores.dim() != 2 or input_ids.shape[0] != scores.shape[0]:
            raise ValueError(
                f"input_ids has shape {tuple(input_ids.shape)} and scores {tuple(scores.shape)}: expected [B, T] and [B, V]."
            )
        if self.prompt_length is not None and self.prompt_length > input_ids.shape[1]:
            raise ValueError(
                f"prompt_length={self.prompt_length} is longer than input_ids with {input_ids.shape[1]} columns: expected the "
                "length of the prompt; for an encoder-decoder that is the decoder's prompt, often 1, and for inputs_embeds 0."
            )
        if scores.shape[1] < self._least_vocab:
            raise ValueError(
                f"scores has V={scores.shape[1]} columns, but token id {self._least_vocab - 1} is needed: expected "
                f"V >= {self._least_vocab}; use the tokenizer that belongs to this model."
            )

    def _check_kept(self, kept: Tensor, index: Tensor, states: list[Hashable]) -> None:
        """Raise if no allowed token has a finite score."""
        if bool((wrong := kept.isnan()).any()):
            raise ValueError(
                f"scores of row {int(index[wrong][0])} are NaN for tokens of a number: expected numbers; the model's logits are "
                "NaN, often from float16 overflow (use bfloat16 or float32) or from a row without attention."
            )
        best = torch.full((len(states),), -torch.inf, device=kept.device).scatter_reduce_(0, index, kept.float(), "amax")
        for row, value in enumerate(best.tolist()):
            if value == -torch.inf and states[row] not in (_OVER, _BROKEN):
                raise ValueError(
                    f"scores of row {row} are -inf for every token that the grammar allows: expected at least one; remove other "
                    "processors that forbid them (min_new_tokens, bad_words_ids, suppress_tokens, no_repeat_ngram_size)."
                )


numbers_only = NumbersOnly
"""Return a :class:`NumbersOnly`: the same, under the name of a function."""
