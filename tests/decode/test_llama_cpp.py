"""llama.cpp's own server, from the package xllamacpp, with SmolLM2: what it lists is what the model itself says."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import gguf
import numpy as np
import pytest

from numerate import NumberDistribution
from numerate.decode import CompletionServer, NumberGrammar, distribution, served_distribution
from numerate.lab.models.loading import load_model
from numerate.tokenizers import packaged_file

pytestmark = pytest.mark.slow

PROMPTS = ["12 + 30 =", "carat: 0.9, cut: Ideal. price in dollars:"]
SEARCH = {"grammar": NumberGrammar(sign=False, digits=(1, 1), decimals=0), "width": None, "covered": 0.999}  # without draws


@contextmanager
def serving(path: Path) -> Iterator[str]:
    llama = pytest.importorskip("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path, settings.hostnames, settings.n_ctx = str(path), ["127.0.0.1"], 2048
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings.port = free.getsockname()[1]
    server = llama.Server(settings)  # runs until it is deleted
    yield f"http://127.0.0.1:{settings.port}/v1"
    del server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(packaged_file("smollm2")) as found:
        yield found


@pytest.fixture(scope="module")
def dequantised_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the same weights in float32, which are those of the model itself."""
    path = tmp_path_factory.mktemp("model") / "float32.gguf"
    reader = gguf.GGUFReader(packaged_file("smollm2"))
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights.reshape(tensor.shape[::-1].tolist()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with serving(path) as found:
        yield found


def masses(found: NumberDistribution) -> dict[Decimal, float]:
    return {value: p * found.covered for value, p in zip(found.values, found.probabilities, strict=True)}


def variation(one: NumberDistribution, other: NumberDistribution) -> float:
    first, second = masses(one), masses(other)
    return sum(abs(first.get(value, 0) - second.get(value, 0)) for value in first | second) / 2


def test_a_real_server_says_what_the_model_says(url, dequantised_url):
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
    same_weights = CompletionServer(dequantised_url, "smollm2", timeout=300, concurrency=1)
    exact = served_distribution(same_weights, PROMPTS, tokenizer=tokenizer, **SEARCH)
    for one, same, more, less in zip(own, exact, named, listed, strict=True):
        assert variation(one, same) < 0.001
        assert variation(one, more) < 0.05  # the server computes with 4-bit weights
        assert more.not_searched < less.not_searched
    assert np.mean([found.not_searched for found in named]) < 0.5 * np.mean([found.not_searched for found in listed])
