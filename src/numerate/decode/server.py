"""CompletionServer: next tokens and samples of a language model from a server with OpenAI's API.

vLLM, SGLang, llama.cpp, TGI and others support this API. Uses only the standard library.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from numerate.checks import check_integer, check_number, one_line
from numerate.tokens import read_piece

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or chat messages."""

Token = str | int
"""The text of a token, or its id."""

LONGEST_PAUSE = 60.0  # seconds before a retry

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class CompletionServer:
    """A model behind ``/v1/completions`` or ``/v1/chat/completions``.

    Args:
        base_url: URL including the version, such as ``http://localhost:8000/v1``.
        model: name of the model on the server.
        chat: use ``/chat/completions``. A prefix of the answer is then sent as an assistant message that the server must
            continue (``continue_final_message``): vLLM, SGLang, TGI and llama.cpp support it, OpenAI does not.
        top: number of most likely tokens to request. Servers limit it: 20 in vLLM (``--max-logprobs``), 5 in OpenAI's
            completions.
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

    base_url: str
    model: str
    _: KW_ONLY
    chat: bool = False
    top: int = 20
    api_key: str | None = field(default=None, repr=False)
    api_key_variable: str | None = None
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 8
    per_request: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        address = urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname or address.username or address.query:
            shown = f"base_url={self.base_url!r}" if "@" not in self.base_url and not address.query else "base_url"
            raise ValueError(
                f"{shown} is not the URL of a server: expected a URL such as 'http://localhost:8000/v1', without a user name "
                "or a query; pass a key as api_key=."
            )
        for name, least in (("top", 1), ("retries", 0), ("concurrency", 1), ("per_request", 1)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), f"an integer >= {least}", least=least))
        check_number("timeout", self.timeout, above=0)
        self._key()

    def next_tokens(self, prompts: Sequence[Prompt], beginnings: Sequence[Any]) -> list[list[tuple[Token, float]]]:
        """Return the most likely next tokens and their log-probabilities after each prompt and prefix of an answer.

        Prompts and prefixes are texts, or lists of token ids; the tokens are then ids too.
        """
        if self.chat:
            return each(self._chat_tokens, [*zip(prompts, beginnings, strict=True)], self.concurrency)
        texts = [prompt + beginning for prompt, beginning in zip(prompts, beginnings, strict=True)]
        parts = [texts[first : first + self.per_request] for first in range(0, len(texts), self.per_request)]
        return [tokens for answers in each(self._text_tokens, parts, self.concurrency) for tokens in answers]

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
            raise ValueError(f"{self._url} returned the choice {self._shown(json.dumps(choice))}: expected one with a text.")
        return text or ""  # a chat may return null

    def _text_tokens(self, texts: Sequence[Any], stop: threading.Event) -> list[list[tuple[Token, float]]]:
        as_ids = not isinstance(texts[0], str)
        prompts = [[*text] if as_ids else text for text in texts]
        body = {"prompt": prompts[0] if len(texts) == 1 else prompts, "max_tokens": 1, "logprobs": self.top}
        if as_ids:
            body["return_tokens_as_token_ids"] = True
        choices = self._post({**body, "temperature": 1, "top_p": 1}, stop)
        if len(choices) != len(texts):
            raise ValueError(
                f"{self._url} returned {len(choices)} choices for {len(texts)} prompts: expected one each; use per_request=1."
            )
        return [self._tokens_of(choice, as_ids) for choice in choices]

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
                f"{self._url} returned no log-probabilities ({self._shown(json.dumps(choice))}): expected "
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

    def _key(self) -> str | None:
        key = self.api_key
        if self.api_key_variable is not None:
            if key is not None:
                raise ValueError("api_key and api_key_variable are both given: expected one of them.")
            if not (key := os.environ.get(self.api_key_variable, "").strip()):
                raise ValueError(f"api_key_variable={self.api_key_variable!r}: expected an environment variable with a key.")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable() and key and " " not in key):
            raise ValueError(
                "api_key contains a space or a character that is invalid in a header: expected a key in plain ASCII."
            )
        return key

    def _post(self, body: Mapping[str, Any], stop: threading.Event) -> list[dict[str, Any]]:
        """Send a request and return its choices, in order."""
        fields = {"model": self.model, **body, **self.options}
        data = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        tries = 0
        while True:
            tries += 1
            pause: float = min(0.5 * 2 ** (tries - 1), LONGEST_PAUSE)
            try:
                return self._choices(self._send(data))
            except HTTPError as error:
                problem: Exception = self._refusal(error, tries)
                if not _passing(error.code):
                    raise problem from None
                pause = _retry_after(error) or pause
            except (OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if isinstance(reason, TimeoutError):
                    raise TimeoutError(
                        f"{self._url} did not respond within timeout={self.timeout:g} seconds: expected a response; raise it "
                        f"or lower concurrency={self.concurrency}."
                    ) from None
                lost = isinstance(reason, ConnectionResetError | ConnectionAbortedError | BrokenPipeError | IncompleteRead)
                why = one_line(reason) if isinstance(reason, Exception) else str(reason)
                problem = ConnectionError(
                    f"{self._url} was not reached in {tries} attempt(s) ({self._shown(why)}): expected a server at "
                    f"base_url={self.base_url!r}; check that it runs."
                )
                if not lost:
                    raise problem from None
            if tries > self.retries or stop.wait(pause):
                raise problem

    def _send(self, data: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        request = Request(self._url, data, headers, method="POST")
        deadline = time.monotonic() + self.timeout
        with _opener().open(request, timeout=self.timeout) as response:
            return _read(response, deadline)

    def _choices(self, answer: bytes) -> list[dict[str, Any]]:
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        # llama.cpp returns a list of responses for several prompts.
        choices: Any = []
        for part in parsed if isinstance(parsed, list) else [parsed]:
            own = part.get("choices") if isinstance(part, dict) else None
            choices += own if isinstance(own, list) else [None]
        if not choices or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError(
                f"{self._url} returned {self._shown(answer.decode(errors='replace'))!r}: expected JSON with choices; check that "
                f"base_url={self.base_url!r} is an OpenAI-compatible API."
            )
        indices = [choice.get("index") for choice in choices]
        if sorted(map(str, indices)) == sorted(map(str, range(len(choices)))):
            choices.sort(key=lambda choice: choice["index"])
        return choices  # type: ignore[no-any-return]

    def _refusal(self, error: HTTPError, tries: int) -> ConnectionError:
        """Return the error for a status that is not 200."""
        try:
            said = error.fp.read1(2000).decode(errors="replace")  # type: ignore[attr-defined]
        except (OSError, HTTPException):
            said = ""
        error.close()
        said = self._shown(said or error.reason, most=500)
        if error.code in (401, 403):
            hint = "expected a key with access to this model; pass api_key= or api_key_variable="
        elif error.code in (404, 405) or error.code < 400:
            hint = f"expected a URL without /completions, and a model that is served; check model={self.model!r}"
        elif _passing(error.code):
            hint = f"expected a response in {tries} attempt(s); lower concurrency={self.concurrency}, or raise retries="
        else:
            hint = f"expected a valid request; top={self.top} may exceed the server's limit, and options= changes fields"
        return ConnectionError(f"{self._url} returned status {error.code} ({said}): {hint}.")

    def _shown(self, text: str, most: int = 200) -> str:
        """Return a text in one line, truncated and without the key."""
        key = self._key()
        return " ".join((text.replace(key, "***") if key else text).split())[:most]


def each(ask: Callable[[_In, threading.Event], _Out], items: Sequence[_In], concurrency: int) -> list[_Out]:
    """Return ``ask(item, stop)`` for each item, concurrently; after an error, no request is started or retried."""
    stop, errors = threading.Event(), list[BaseException]()

    def one(item: _In) -> _Out:
        if stop.is_set():
            raise errors[0]
        try:
            return ask(item, stop)
        except BaseException as error:
            errors.append(error)
            stop.set()
            raise

    with ThreadPoolExecutor(concurrency, thread_name_prefix="numerate-server") as pool:
        try:
            return [*pool.map(one, items)]  # an error cancels items that have not started
        except Exception:
            raise errors[0] from None
        finally:
            stop.set()


class _NoRedirect(HTTPRedirectHandler):
    """Report redirects: urllib would turn the request into a GET and send the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@cache
def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect)


def _passing(status: int) -> bool:
    """Whether a retry may succeed."""
    return status in (408, 429) or status >= 500


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


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """Return the complete body; raise if it is late or truncated."""
    length = None if response.chunked else response.length
    body = bytearray()
    while length is None or len(body) < length:
        part = response.read1(2**16)
        if not part:
            break
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError
    if length is not None and len(body) < length:
        raise ConnectionResetError("the response was truncated")
    return bytes(body)


def _retry_after(error: HTTPError) -> float | None:
    """Return the ``Retry-After`` of a response in seconds, or None."""
    try:
        return min(max(float(error.headers.get("Retry-After", "")), 0.0), LONGEST_PAUSE)
    except ValueError:
        return None
