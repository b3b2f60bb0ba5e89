"""CompletionServer: next tokens and samples of a language model from a server with OpenAI's API.

vLLM, SGLang, llama.cpp, TGI and others support this API. Uses only the standard library.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from numerate.checks import check_choice, check_integer
from numerate.decode.connection import Connection, RejectedError, each
from numerate.tokens import read_piece

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or chat messages."""

Token = str | int
"""The text of a token, or its id."""

_Ask = tuple[Any, Sequence[int]]
"""A text or ids, and the next tokens that are wanted."""

Kind = Literal["auto", "vllm", "sglang", "llama.cpp", "other"]

NAMED = 128  # ids that vLLM accepts in logprob_token_ids
LISTED = 1000  # most likely tokens that llama.cpp lists in place of named ones
MASKED = -9999.0  # log-probability in vLLM of a place of the list that it has not filled


@dataclass(frozen=True)
class CompletionServer(Connection):
    """A model behind ``/v1/completions`` or ``/v1/chat/completions``.

    Args:
        base_url: URL including the version, such as ``http://localhost:8000/v1``.
        model: name of the model on the server.
        chat: use ``/chat/completions``. A prefix of the answer is then sent as an assistant message that the server must
            continue (``continue_final_message``): vLLM, SGLang, TGI and llama.cpp support it, OpenAI does not.
        top: number of most likely tokens to request. Servers limit it: 20 in vLLM (``--max-logprobs``), 5 in OpenAI's
            completions.
        kind: the software of the server, which decides how token ids are searched. vLLM and SGLang are asked for the ids that can
            continue the number, llama.cpp for at least 1,000 tokens, ``"other"`` for ``top``. ``"auto"`` reads it from
            ``/v1/models``.
        api_key: sent as ``Authorization: Bearer``; never shown in messages.
        api_key_variable: environment variable with the key, instead of ``api_key``.
        timeout: timeout of a request in seconds.
        retries: number of retries after status 408, 429 or 5xx, or a lost connection. The pause doubles from half a second, or is
            the server's ``Retry-After``.
        concurrency: number of concurrent requests.
        per_request: texts per request. More than 1 is faster if the server accepts a list of prompts (vLLM and SGLang do).
        options: fields to add to each request or to override; None removes a field.

    Example::

        server = CompletionServer("http://localhost:8000/v1", "Qwen/Qwen2.5-7B", api_key_variable="MY_KEY")
        served_distribution(server, ["Weight of a cat in kg:"])[0].median
    """

    model: str
    _: KW_ONLY
    chat: bool = False
    top: int = 20
    kind: Kind = "auto"
    per_request: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("top", "per_request"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), "an integer >= 1", least=1))
        check_choice("kind", self.kind, get_args(Kind))

    def next_tokens(
        self, prompts: Sequence[Prompt], beginnings: Sequence[Any], wanted: Sequence[Sequence[int]] | None = None
    ) -> list[list[tuple[Token, float]]]:
        """Return the most likely next tokens and their log-probabilities after each prompt and prefix of an answer.

        Prompts and prefixes are texts, or lists of token ids; the tokens are then ids too. ``wanted`` has the ids that the
        caller needs after each; others may then be left out, and these still be missing, depending on the server.
        """
        pairs = [*zip(prompts, beginnings, strict=True)]
        if self.chat:
            return each(self._chat_tokens, pairs, self.concurrency)
        texts = [prompt + beginning for prompt, beginning in pairs]
        names: Sequence[Sequence[int]] = [()] * len(texts) if wanted is None else wanted
        asks = [*zip(texts, names, strict=True)]
        parts = [asks[first : first + self.per_request] for first in range(0, len(asks), self.per_request)]
        ask = self._generated if wanted is not None and self.found_kind == "sglang" else self._text_tokens
        return [tokens for answers in each(ask, parts, self.concurrency) for tokens in answers]

    @cached_property
    def found_kind(self) -> Kind:
        """``kind``, or what the server says of itself in ``/v1/models``: the owner of its models; raise if it is not reached."""
        if self.kind != "auto":
            return self.kind
        try:
            models = json.loads(self.request(f"{self.base_url.rstrip('/')}/models", None, threading.Event()))["data"]
            owner = str(models[0]["owned_by"]).lower()
        except RejectedError as error:
            if error.status in (502, 503, 504):  # the server behind a proxy is not there yet: what it is must not be remembered
                raise
            return "other"
        except (ValueError, LookupError, TypeError, RecursionError):  # the next request reports a server that does not work
            return "other"
        owners: dict[str, Kind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
        return owners.get(owner, "other")

    def samples(
        self, prompts: Sequence[Prompt], n: int = 32, *, max_tokens: int = 32, temperature: float = 1.0
    ) -> list[list[str]]:
        """Return ``n`` sampled answers to each prompt; ``answers.number_distribution`` makes a distribution of them."""

        def draw(prompt: Prompt, stop: threading.Event) -> list[str]:
            body: dict[str, Any] = _chat_body(prompt, "") if self.chat else {"prompt": prompt}
            body |= {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1}
            texts: list[str] = []
            while len(texts) < n:  # some servers return one text regardless of n
                texts += [self._text_of(choice) for choice in self._post({**body, "n": n - len(texts)}, stop)]
            return texts[:n]

        return each(draw, prompts, self.concurrency)

    def _text_of(self, choice: Mapping[str, Any]) -> str:
        try:
            text = choice["message"]["content"] if self.chat else choice["text"]
        except (KeyError, TypeError):
            text = choice
        if not isinstance(text, str | None):
            raise ValueError(f"{self._url} returned the choice {self.shown(json.dumps(choice))}: expected one with a text.")
        return text or ""  # a chat may return null

    def _text_tokens(self, asks: Sequence[_Ask], stop: threading.Event) -> list[list[tuple[Token, float]]]:
        texts, names = [text for text, _ in asks], [*dict.fromkeys(token for _, wanted in asks for token in wanted)]
        as_ids = not isinstance(texts[0], str)
        prompts = [[*text] if as_ids else text for text in texts]
        body: dict[str, Any] = {"prompt": prompts[0] if len(texts) == 1 else prompts, "max_tokens": 1, "logprobs": self.top}
        if as_ids:
            body["return_tokens_as_token_ids"] = True
        if names and self.found_kind == "llama.cpp":  # the bias is that of the sampled token, not of the listed ones
            body |= {"logprobs": max(self.top, LISTED), "logit_bias": [[names[0], 1000]]}
        slices = [names[first : first + NAMED] for first in range(0, len(names), NAMED)] if self.found_kind == "vllm" else []
        found: list[list[tuple[Token, float]]] = []
        for named in slices or [[]]:
            asked = {**body, "logprob_token_ids": named or None, "temperature": 1, "top_p": 1}
            choices = self._post(asked, stop)
            for _ in range(self.retries):
                if not any(map(_ends_within_a_character, choices)):
                    break
                choices = self._post(asked, stop)
            if len(choices) != len(texts):
                raise ValueError(
                    f"{self._url} returned {len(choices)} choices for {len(texts)} prompts: expected one each; use per_request=1."
                )
            rows = [self._tokens_of(choice, as_ids) for choice in choices]
            if not named:  # vLLM fills only the sampled token if it computes others with named ids at the same time
                rows = [[(token, logprob) for token, logprob in row if logprob > MASKED] for row in rows]
            found = [[*{**dict(old), **dict(new)}.items()] for old, new in zip(found, rows, strict=True)] if found else rows
            if named and not all(dict(row).keys() >= {*named} for row in rows):
                break  # a version that lists the most likely tokens instead
        return found

    def _generated(self, asks: Sequence[_Ask], stop: threading.Event) -> list[list[tuple[Token, float]]]:
        """Ask SGLang's own API, which has token ids."""
        url = f"{self.base_url.rstrip('/').removesuffix('/v1')}/generate"
        body = {
            "input_ids": [[*text] for text, _ in asks],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1, "top_p": 1},
            "return_logprob": True,
            "top_logprobs_num": self.top,
            "token_ids_logprob": [[*wanted] for _, wanted in asks],
            **self.options,
        }
        answer = self.request(url, {name: value for name, value in body.items() if value is not None}, stop)
        try:
            rows = [row["meta_info"] for row in json.loads(answer)]
            listed = [[*row["output_top_logprobs"][0], *(row["output_token_ids_logprobs"][0] or ())] for row in rows]
            found = [{int(token): float(logprob) for logprob, token, *_ in row} for row in listed]
            if len(found) != len(asks):
                raise ValueError
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(
                f"{url} returned {self.shown(answer.decode(errors='replace'))!r}: expected {len(asks)} rows with meta_info and "
                "log-probabilities, as SGLang returns them; kind='other' uses its OpenAI-compatible API."
            ) from None
        return [[*row.items()] for row in found]

    def _chat_tokens(self, asked: tuple[Prompt, str], stop: threading.Event) -> list[tuple[Token, float]]:
        body = _chat_body(*asked)
        if asked[1] and "continue_final_message" not in body:
            return []  # chat templates strip trailing white space, so the next token is unknown
        body |= {"max_tokens": 1, "logprobs": True, "top_logprobs": self.top, "temperature": 1, "top_p": 1}
        return self._tokens_of(self._post(body, stop)[0], as_ids=False)

    def _tokens_of(self, choice: Mapping[str, Any], as_ids: bool) -> list[tuple[Token, float]]:
        """Return the tokens listed for the first position of a choice, in the format of completions or chats."""
        try:
            logprobs = choice["logprobs"]
            if logprobs.get("top_logprobs"):
                listed = [{"token": token, "logprob": value} for token, value in logprobs["top_logprobs"][0].items()]
            else:
                listed = logprobs["content"][0]["top_logprobs"]
            found = [(_token(entry, as_ids), entry["logprob"]) for entry in listed]
        except (KeyError, IndexError, TypeError, AttributeError):
            found = []
        if not found:
            raise ValueError(
                f"{self._url} returned no log-probabilities ({self.shown(json.dumps(choice))}): expected "
                "choices[].logprobs with top_logprobs; the server or model may not support them, or not if the answer ends "
                "immediately. server.samples() does not need them."
            )
        for token, logprob in found:
            if not isinstance(logprob, int | float) or math.isnan(logprob):
                raise ValueError(f"{self._url} returned the log-probability {logprob} for {token!r}: expected a number.")
        return [*dict.fromkeys(found)]  # some servers list the sampled token twice

    @property
    def _url(self) -> str:
        return f"{self.base_url.rstrip('/')}/{'chat/completions' if self.chat else 'completions'}"

    def hint(self, status: int) -> str:
        """Return what was expected where the server refuses a request for good."""
        if status in (404, 405) or status < 400:
            return f"expected a URL without /completions, and a model that is served; check model={self.model!r}"
        return f"expected a valid request; top={self.top} may exceed the server's limit, and options= changes fields"

    def _post(self, body: Mapping[str, Any], stop: threading.Event) -> list[dict[str, Any]]:
        """Send a request and return its choices, in order."""
        fields = {"model": self.model, **body, **self.options}
        return self._choices(self.request(self._url, {name: value for name, value in fields.items() if value is not None}, stop))

    def _choices(self, answer: bytes) -> list[dict[str, Any]]:
        try:
            parsed = json.loads(answer)
        except (ValueError, RecursionError):
            parsed = None
        # llama.cpp returns a list of responses for several prompts.
        choices: Any = []
        for part in parsed if isinstance(parsed, list) else [parsed]:
            own = part.get("choices") if isinstance(part, dict) else None
            choices += own if isinstance(own, list) else [None]
        if not choices or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError(
                f"{self._url} returned {self.shown(answer.decode(errors='replace'))!r}: expected JSON with choices; check that "
                f"base_url={self.base_url!r} is an OpenAI-compatible API."
            )
        indices = [choice.get("index") for choice in choices]
        if sorted(map(str, indices)) == sorted(map(str, range(len(choices)))):
            choices.sort(key=lambda choice: choice["index"])
        return choices  # type: ignore[no-any-return]


def _ends_within_a_character(choice: Mapping[str, Any]) -> bool:
    """Whether a sampled token may be why nothing is listed: llama.cpp waits for the rest of the character."""
    return choice.get("logprobs") is None and "\ufffd" in str(choice.get("text"))


def _chat_body(prompt: Any, beginning: str) -> dict[str, Any]:
    """Return chat messages with the prefix of the answer as a message that the server continues."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    written = messages.pop()["content"] if messages and messages[-1].get("role") == "assistant" else ""
    text = written + (beginning if written else beginning.lstrip())
    if not text:
        return {"messages": messages}
    messages.append({"role": "assistant", "content": text})
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _token(entry: Mapping[str, Any], as_ids: bool) -> Token:
    """Return the text or the id of a listed token."""
    text = entry["token"]
    named = text.removeprefix("token_id:") if text.startswith("token_id:") else None
    if not as_ids:
        if named is not None:
            raise ValueError(f"the server returns token ids ({text}): expected texts; pass tokenizer= to search in token ids.")
        return read_piece(text)
    token_id = named if named is not None else entry.get("id")
    if token_id is None:
        raise ValueError(
            f"the server returns the token {text!r} as text only: expected token ids, as vLLM and llama.cpp return them; "
            "leave tokenizer= out to search in texts."
        )
    return int(token_id)
