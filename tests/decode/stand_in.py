"""A server on loopback that answers like vLLM, llama.cpp and others do, from a model that is small enough to enumerate."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from tests.decode.models import small_llama

END = "</s>"
DIGITS = [*"0123", "-", " ", ".", "x", "=", END]
CHUNKS = [*DIGITS, "10", "12", "2.", "23", "123", " 1", " 12", "=1"]


class Toy:
    """A language model over given token texts: random scores that depend on the last tokens, or a small Llama."""

    def __init__(self, texts: Sequence[str], *, llama: bool = False, seed: int = 0) -> None:
        self.texts, self.seed = [*texts], seed
        self.ids = {text: token_id for token_id, text in enumerate(self.texts)}
        self.end = self.ids[END]
        self.model = small_llama(len(self.texts), self.end, spread=0.6) if llama else None
        self.logprobs = cache(self._logprobs)
        self._lock = threading.Lock()

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of the longest tokens from left to right, as a server's tokenizer would."""
        found: list[int] = []
        while text:
            token = max((token for token in self.texts if text.startswith(token)), key=len)
            found.append(self.ids[token])
            text = text[len(token) :]
        return tuple(found)

    def _logprobs(self, ids: tuple[int, ...]) -> np.ndarray:
        if self.model is None:
            scores = torch.from_numpy(np.random.default_rng([self.seed, len(ids), *ids[-3:]]).normal(0, 1.5, len(self.texts)))
        else:
            with self._lock, torch.no_grad():
                scores = self.model(torch.tensor([ids])).logits[0, -1]
        return scores.double().log_softmax(-1).numpy()

    def top(self, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
        logprobs = self.logprobs(tuple(ids))
        return [(int(i), float(logprobs[i])) for i in np.argsort(-logprobs, kind="stable")[:count]]

    def next_texts(self, texts: Sequence[str]) -> list[list[tuple[str, float]]]:
        """The function that a user would write: the next token's log-probabilities for each text."""
        return [[(self.texts[i], p) for i, p in self.top(self.tokens(text), len(self.texts))] for text in texts]

    def write(self, ids: Sequence[int], most: int, random: np.random.Generator) -> str:
        """Return a sampled continuation."""
        written: list[int] = []
        while len(written) < most:
            p = np.exp(self.logprobs((*ids, *written)))
            if (token := int(random.choice(len(p), p=p / p.sum()))) == self.end:
                break
            written.append(token)
        return "".join(self.texts[i] for i in written)


Turn = Callable[["_Handler"], bool]
"""What a request meets before it is answered; False: it is answered as usual."""


OWNERS = {"vllm": "vllm", "old vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp", "other": "someone"}
"""Styles of a server, and what it says of its models. Old versions of vLLM ignore the ids that a request names."""


class StandIn(ThreadingHTTPServer):
    """The server. ``turns`` are taken from the left, one per request; ``asked`` has the requests."""

    daemon_threads = True

    def __init__(self, toy: Toy, style: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.toy, self.style = toy, style
        self.turns: deque[Turn] = deque()
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_choices = 1000
        self.most_named = 128
        self.looks = 0  # at the list of models
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent where a client has hung up."""


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def send(self, status: int, body: Any, **headers: str) -> bool:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        return True

    def do_GET(self) -> None:
        self.server.looks += 1
        found = self.path == "/v1/models"
        models = {"data": [{"id": "toy", "owned_by": OWNERS[self.server.style]}]}
        self.send(200 if found else 404, models if found else {"error": "no such path"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers["Authorization"])
        if self.server.turns and self.server.turns.popleft()(self):
            return
        if self.path == "/generate" and self.server.style == "sglang":
            self.send(200, [self.generated(body, row) for row in range(len(body["input_ids"]))])
            return
        chat = self.path.endswith("/chat/completions")
        if not chat and not self.path.endswith("/v1/completions"):
            self.send(404, {"error": "no such path"})
            return
        if len(body.get("logprob_token_ids", ())) > self.server.most_named:
            self.send(400, {"error": "too many logprob_token_ids"})
            return
        prompts = [self.rendered(body)] if chat else body["prompt"]
        if isinstance(prompts, str) or isinstance(prompts[0], int):
            prompts = [prompts]
        toy = self.server.toy
        rows = [tuple(prompt) if isinstance(prompt, list) else toy.tokens(prompt) for prompt in prompts]
        choices = [
            self.choice(body, ids, chat, copy) for ids in rows for copy in range(min(body.get("n", 1), self.server.most_choices))
        ]
        for index, choice in enumerate(choices):
            choice["index"] = index
        self.send(200, {"choices": choices[::-1]})  # in any order

    def sampled(self, ids: tuple[int, ...]) -> int:
        p = np.exp(self.server.toy.logprobs(ids))
        return int(np.random.default_rng([*ids, len(self.server.asked)]).choice(len(p), p=p / p.sum()))

    def generated(self, body: dict[str, Any], row: int) -> dict[str, Any]:
        """Answer as SGLang's own API does: triples of log-probability, id, and a text that is left out."""
        assert body["return_logprob"]
        assert body["sampling_params"] == {"max_new_tokens": 1, "temperature": 1, "top_p": 1}
        toy, ids, named = self.server.toy, tuple(body["input_ids"][row]), body["token_ids_logprob"][row]
        logprobs = toy.logprobs(ids)
        return {
            "text": toy.texts[self.sampled(ids)],
            "meta_info": {
                "output_top_logprobs": [[[p, i, None] for i, p in toy.top(ids, body["top_logprobs_num"])]],
                "output_token_ids_logprobs": [[[float(logprobs[i]), i, None] for i in named] or None],
            },
        }

    @staticmethod
    def rendered(body: dict[str, Any]) -> str:
        *before, last = body["messages"]
        written = ""
        if last["role"] == "assistant":
            assert body["continue_final_message"] is True
            assert body["add_generation_prompt"] is False
            written, last = last["content"], before[-1]
        return str(last["content"]) + "=" + written

    def choice(self, body: dict[str, Any], ids: tuple[int, ...], chat: bool, copy: int) -> dict[str, Any]:
        toy = self.server.toy
        text = toy.write(ids, body["max_tokens"], np.random.default_rng([*ids, copy, len(self.server.asked)]))
        choice: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
        if not body.get("logprobs"):
            return choice
        top = toy.top(ids, body["top_logprobs"] if chat else body["logprobs"])
        if self.server.style == "vllm" and (named := body.get("logprob_token_ids")):
            top = [(i, float(toy.logprobs(ids)[i])) for i in dict.fromkeys([self.sampled(ids), *named])]
        if chat or self.server.style == "llama.cpp":
            listed = [{"id": i, "token": toy.texts[i], "logprob": p, "bytes": [*toy.texts[i].encode()]} for i, p in top]
            listed.append(listed[0])  # the sampled token once more
            choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
        else:
            as_ids = body.get("return_tokens_as_token_ids")
            choice["logprobs"] = {"top_logprobs": [{f"token_id:{i}" if as_ids else toy.texts[i]: p for i, p in top}]}
        return choice


@contextmanager
def serving(toy: Toy, style: str = "vllm") -> Iterator[StandIn]:
    """Run a server in a thread."""
    with StandIn(toy, style) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
