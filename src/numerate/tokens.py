"""The texts of a tokenizer's tokens, read once for vocabularies, token trees and soft labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's spelling of a byte
_PART = "\ufffd"  # text of a byte that is part of a longer character
_READ = WeakKeyDictionary[Any, tuple[int | None, list[tuple[str, int]]]]()  # cache: reading a vocabulary takes up to a second


def known_texts(tokenizer: Any) -> list[tuple[str, int]]:
    """Return text and id of every token that is not special, including all bytes; cached per tokenizer and size."""
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    try:
        known = _READ.get(tokenizer)
        if known is None or known[0] != size or size is None:  # tokens may have been added
            known = _READ[tokenizer] = size, read_texts(tokenizer, skip_special=True, all_bytes=True)[0]
    except TypeError:  # no weak references to this object
        return read_texts(tokenizer, skip_special=True, all_bytes=True)[0]
    return known[1]


def read_texts(tokenizer: Any, *, skip_special: bool, all_bytes: bool = False) -> tuple[list[tuple[str, int]], int]:
    """Return the text and id of every token, and the size of the vocabulary. Bytes (``<0x31>``) come last.

    The text of a token is what the tokenizer's decoder returns for it between two other tokens; without a decoder, it follows
    from the token's spelling. Unless ``all_bytes``, a byte whose character is also a token is left out, since the tokenizer never
    produces it.
    """
    if not hasattr(tokenizer, "get_vocab"):
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__}: expected a Hugging Face tokenizer with get_vocab(); "
            "for any other tokenizer pass {text: token_id} to NumericVocab.from_texts."
        )
    vocab: dict[str | bytes, int] = tokenizer.get_vocab()
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None and hasattr(tokenizer, "get_added_tokens_decoder"):
        added = tokenizer.get_added_tokens_decoder()
    added = added or {}
    special = {i for i, token in added.items() if getattr(token, "special", False)} | set(
        getattr(tokenizer, "all_special_ids", ())
    )
    text_of = _decoded(tokenizer) or _spelled(vocab, added)
    pairs: list[tuple[str, int]] = []
    single: list[tuple[str, int]] = []
    for token, token_id in vocab.items():
        if not (skip_special and token_id in special):
            checked_id(token_id)
            text = token.decode("utf-8", errors="replace") if isinstance(token, bytes) else text_of(token, token_id)
            is_byte = isinstance(token, str) and token != text and _BYTE.fullmatch(token)
            (single if is_byte else pairs).append((text, token_id))
    known = set() if all_bytes else {text for text, _ in pairs} - {_PART}
    pairs += [(text, token_id) for text, token_id in single if text not in known]
    return pairs, max([len(vocab), *(i + 1 for i in vocab.values())])


def _decoded(tokenizer: Any) -> Callable[[str, int], str] | None:
    """Return a function from a token to its text, using the tokenizer's decoder; None if it has none or an unknown one."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "decoder", None)  # of the package tokenizers
    pieces = getattr(tokenizer, "sp_model", None)  # of the package sentencepiece
    decode: Any = getattr(decoder, "decode", None) or getattr(pieces, "decode", None)
    # Decoders may strip white space at the ends, so decode the token between two letters.
    end = {"ab": -1, "a b": -2}.get(decode(["a", "b"])) if decode is not None else None
    return None if end is None else lambda token, _: str(decode(["a", token, "b"]))[1:end]


def _spelled(vocab: Mapping[str | bytes, int], added: Container[int]) -> Callable[[str, int], str]:
    """Return a function from a token to its text, from its spelling in byte-level BPE or SentencePiece."""
    # Ġ is a space and Ċ a newline; a SentencePiece vocabulary may have them as letters.
    byte_level = {"\u0120", "\u010a"} <= vocab.keys() and not {" ", "\u2581"} & vocab.keys()
    bytes_of = byte_alphabet() if byte_level else {}

    def text_of(token: str, token_id: int) -> str:
        if token_id in added:
            return token
        if bytes_of:
            known = all(ord(character) in bytes_of for character in token)
            return bytes(bytes_of[ord(character)] for character in token).decode(errors="replace") if known else token
        return read_piece(token)

    return text_of


def read_piece(token: str) -> str:
    """Return the text of a token in SentencePiece spelling: ``▁5``, ``<0x0A>``; or with Ġ for a leading space."""
    if match := _BYTE.fullmatch(token):
        byte = int(match[1], 16)
        return chr(byte) if byte < 128 else _PART
    return (" " + token[1:] if token[:1] == "\u0120" else token).replace("\u2581", " ")


def byte_alphabet() -> dict[int, int]:
    """Return the byte of each character in byte-level BPE: printable bytes map to themselves, others to 256 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + rank: byte for rank, byte in enumerate(others)}


def checked_id(token_id: Any) -> int:
    """Return a token id as an int; raise unless it is an integer."""
    try:
        return index(token_id)
    except TypeError:
        raise TypeError(f"token id {token_id!r} is a {type(token_id).__name__}: expected an integer >= 0.") from None
