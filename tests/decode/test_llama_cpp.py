"""llama.cpp's own server, from the package xllamacpp, with SmolLM2: what it lists is what the model itself says."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from numerate.decode import CompletionServer, NumberGrammar, distribution, served_distribution
from numerate.lab.models.loading import load_model
from numerate.tokenizers import packaged_file

pytestmark = pytest.mark.slow

PROMPTS = ["12 + 30 =", "carat: 0.9, cut: Ideal. price in dollars:"]
SEARCH = {"grammar": NumberGrammar(sign=False, digits=(1, 1), decimals=0), "width": None, "covered": 1.0}  # without draws


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    llama = pytest.importorskip("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path, settings.hostnames, settings.n_ctx = str(packaged_file("smollm2")), ["127.0.0.1"], 2048
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings.port = free.getsockname()[1]
    server = llama.Server(settings)  # runs until it is deleted
    yield f"http://127.0.0.1:{settings.port}/v1"
    del server


def test_a_real_server_says_what_the_model_says(url):
    loaded = load_model("smollm2")
    tokenizer = loaded.tokenizer
    inputs = [tokenizer([prompt], return_tensors="pt") for prompt in PROMPTS]
    own = [distribution(loaded.model, one, tokenizer, **SEARCH)[0] for one in inputs]
    server = CompletionServer(url, "smollm2", timeout=300, concurrency=1)
    assert server.found_kind == "llama.cpp"
    named = served_distribution(server, PROMPTS, tokenizer=tokenizer, **SEARCH)
    listed = served_distribution(
        CompletionServer(url, "smollm2", timeout=300, kind="other"), PROMPTS, tokenizer=tokenizer, **SEARCH
    )
    for one, more, less in zip(own, named, listed, strict=True):
        values = [
            {value: p * found.covered for value, p in zip(found.values, found.probabilities, strict=True)}
            for found in (one, more)
        ]
        distance = sum(abs(values[0].get(value, 0) - values[1].get(value, 0)) for value in values[0] | values[1]) / 2
        assert distance < 0.05  # the server computes with 4-bit weights
        assert more.not_searched < less.not_searched
    assert np.mean([found.not_searched for found in named]) < 0.5 * np.mean([found.not_searched for found in listed])
