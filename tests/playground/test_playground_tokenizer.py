"""The tab "your tokenizer": what `numerate inspect` says, and files that are wrong, large or hostile."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra train is not installed")

from pydantic import ValidationError
from starlette.testclient import TestClient

from numerate.inspection import EXAMPLES, inspect_tokenizer
from numerate.lab.models.loading import tiny_tokenizer
from numerate.playground import loading, tokenizer, uploaded
from numerate.playground.server import create_app
from numerate.playground.tokenizer import UPLOAD, TokenizerRequest, choices, compute
from numerate.playground.uploaded import MOST_BYTES, inspect_upload


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(), base_url="http://127.0.0.1")


def _upload(client: TestClient, data: bytes, texts: Any = None, **headers: str) -> Any:
    given = {
        "content-type": "application/octet-stream",
        **({"x-texts": json.dumps(texts)} if texts is not None else {}),
        **headers,
    }
    return client.post(UPLOAD, content=data, headers=given)


def _file(digits: Any = 1, **changes: Any) -> bytes:
    return json.dumps(json.loads(tiny_tokenizer(digits).backend_tokenizer.to_str()) | changes).encode()


@pytest.mark.parametrize("name", choices())
def test_packaged_tokenizers(name):
    shown, expected = compute(TokenizerRequest(name=name)), inspect_tokenizer(choices()[name]())
    assert shown["style"] == expected.style
    assert shown["facts"] == expected.facts
    assert [reading["tokens"] for reading in shown["readings"]] == [list(reading.tokens) for reading in expected.readings]
    assert [reading["numbers"][0] for reading in shown["readings"]] == [f"{one.numbers[0]:.15g}" for one in expected.readings]
    assert [advice["loss"] for advice in shown["advice"]] == [advice.loss for advice in expected.advice]


@pytest.mark.launch
def test_an_upload_says_the_same_as_inspect(client):
    answer = _upload(client, _file(3), ["31415.9", "ä -7"])
    assert answer.status_code == 200, answer.text
    expected = uploaded.described(inspect_tokenizer(tiny_tokenizer(3), ["31415.9", "ä -7"]))
    assert {name: answer.json()[name] for name in expected} == expected
    assert answer.json()["readings"][0]["tokens"] == ["314", "15", ".", "9"]
    assert _upload(client, _file(1)).json()["readings"][0]["text"] == EXAMPLES[0]


@pytest.mark.launch
def test_nothing_of_an_upload_is_kept(client, tmp_path, monkeypatch):
    assert _upload(client, _file()).status_code == 200  # starts the process from which others are forked
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _upload(client, _file()).status_code == 200
    assert [*tmp_path.rglob("*")] == []


@pytest.mark.launch
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a tokenizer.json"),
        (b"[1, 2]", "not a tokenizer.json"),
        (b"hello", "not a tokenizer.json"),
        (gzip.compress(b"{}"), "compressed (gzip)"),
        (b"PK\x03\x04", "compressed (zip)"),
        (b"{", "cannot be inspected"),
        (b"{}", "Model missing"),
        (b"{\xff\xfe", "cannot be inspected"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "cannot be inspected"),
        (b'{"added_tokens":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "cannot be inspected"),
        (_file(model={"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}), "no numeric token"),
        (_file(model={"type": "WordLevel", "vocab": {"1": 0, "9" * 400: 1}, "unk_token": "1"}), "cannot be inspected"),
    ],
    ids=range(12),
)
def test_a_bad_file_gets_a_sentence_and_the_server_lives_on(client, data, message):
    answer = _upload(client, data)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert len(answer.json()["error"]) < 700
    assert client.post("/api/tokenizer", json={}).status_code == 200


@pytest.mark.launch
def test_replacements_that_explode_are_stopped():
    steps = [{"type": "Replace", "pattern": {"String": "1"}, "content": "1" * 100} for _ in range(8)]
    with pytest.raises(ValueError, match="more time or memory than allowed|more than 20 seconds"):
        inspect_upload(_file(normalizer={"type": "Sequence", "normalizers": steps}), ["1"], seconds=20)


@pytest.mark.launch
def test_a_file_with_too_many_numbers_is_read_and_no_loss_takes_it():
    """200,000 numbers: a loss that compares each with each would need a terabyte."""
    words = json.loads(_file())["model"]["vocab"] | {f"{k:07d}": 1000 + k for k in range(200_000)}
    found = inspect_upload(_file(model={"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}), ["1"])
    assert all("at most 20,000" in advice["note"] for advice in found["advice"])


@pytest.mark.launch
def test_a_file_that_takes_long_is_stopped():
    words = json.loads(_file())["model"]["vocab"] | {f"{k:07d}": 1000 + k for k in range(200_000)}
    begin = time.perf_counter()
    with pytest.raises(ValueError, match="than allowed|more than 0.05 seconds|not used"):
        inspect_upload(_file(model={"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}), ["1"], seconds=0.05)
    assert time.perf_counter() - begin < uploaded._STARTING + 5


@pytest.mark.launch
def test_long_texts_are_cut():
    words = {"1": 0, "<unk>": 1, "." + "-" * 100_000: 2, "-": 3}
    found = inspect_upload(_file(model={"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}), ["1" * 200])
    assert len(json.dumps(found)) < 50_000


def test_the_process_has_limits(monkeypatch):
    resource = pytest.importorskip("resource")
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", lambda name, most: limits.update({name: most}))
    uploaded._limit(5)
    assert limits[resource.RLIMIT_DATA] == (uploaded.MEMORY, uploaded.MEMORY)
    assert limits[resource.RLIMIT_FSIZE] == (0, 0)
    assert limits[resource.RLIMIT_CPU][0] >= 5


def test_a_large_file_is_refused_before_it_is_read(client, monkeypatch):
    monkeypatch.setattr(tokenizer, "inspect_file", lambda *_: pytest.fail("was read"))
    answer = _upload(client, b"{" + b" " * MOST_BYTES)
    assert answer.status_code == 413
    assert "at most 32 MiB" in answer.json()["error"]
    with pytest.raises(ValueError, match="at most 32 MiB"):
        inspect_upload(b"{" + b" " * MOST_BYTES, ["1"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),  # what a form of another page could send
        ({"content-type": "multipart/form-data"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"x-texts": "[1]"}, 400),
        ({"x-texts": "["}, 400),
        ({"x-texts": json.dumps(["1"] * 9)}, 400),
        ({"x-texts": json.dumps(["1" * 201])}, 400),
        ({"x-texts": "[" * 5000}, 400),
        ({"host": "evil.example"}, 400),
    ],
)
def test_other_requests_are_refused(client, monkeypatch, headers, status):
    monkeypatch.setattr(tokenizer, "inspect_upload", lambda *_: pytest.fail("was read"))
    assert _upload(client, b"{}", **headers).status_code == status


@pytest.mark.parametrize("changes", [{"texts": []}, {"texts": [""]}, {"texts": ["1"] * 9}, {"name": "x" * 41}])
def test_requests_are_bounded(changes):
    with pytest.raises(ValidationError):
        TokenizerRequest(**changes)


def test_an_unknown_name_is_no_path(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(_file())
    with pytest.raises(ValueError, match="is not here"):
        compute(TokenizerRequest(name=str(tmp_path / "tokenizer.json")[-40:]))


def test_without_transformers_the_tab_names_the_extra(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    for call in (lambda: compute(TokenizerRequest()), lambda: tokenizer.inspect_file(b"{}", TokenizerRequest())):
        with pytest.raises(ValueError, match=r"numerate\[train\]"):
            call()


def test_read_tokenizer_names_the_file():
    from numerate.tokenizers import read_tokenizer

    with pytest.raises(ValueError, match="mine.json"):
        read_tokenizer(b"{}", Path("mine.json"))
