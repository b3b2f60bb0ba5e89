"""A fresh process: without the extra lab the tab that asks a model says what is missing; and first requests come at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("httpx2", reason="httpx2, which the test client needs, is not installed")

MISSING = ("transformers", "tokenizers", "accelerate", "datasets", "peft", "trl", "yaml", "scipy", "PIL", "matplotlib", "jinja2")
SCRIPT = f"""
import importlib.machinery, json, sys

find, absent = importlib.machinery.PathFinder.find_spec, {MISSING}
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name.partition(".")[0] in absent else find(name, path, target)
)
from starlette.testclient import TestClient
from numerate.playground.server import create_app
from numerate.playground.tabs import TABS

client = TestClient(create_app(), base_url="http://127.0.0.1")
answers = {{name: client.post(f"/api/{{name}}", json={{}}) for name in TABS}}
print(json.dumps({{name: [answer.status_code, answer.json().get("error", "")] for name, answer in answers.items()}}))
"""


@pytest.mark.launch
def test_the_rest_of_the_page_works():
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    status, error = answers.pop("answer")
    assert status == 400
    assert "transformers" in error
    assert "pip install 'numerate[lab]'" in error
    assert len(answers) >= 3
    assert {status for status, _ in answers.values()} == {200}


AT_ONCE = """
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from numerate.playground import answer, tokens

def ask(k):
    if k % 2:
        return len(answer.compute(answer.AnswerRequest(), Path("nowhere"))["bars"]) > 0
    return tokens.number_tokens("deepseek").encode(["12"])[0][-1] == 0

with ThreadPoolExecutor(4) as pool:
    print(json.dumps([*pool.map(ask, range(4))]))
"""


@pytest.mark.launch
def test_first_requests_at_once():
    """None sees transformers while another thread imports it."""
    pytest.importorskip("transformers", reason="the extra lab is not installed")
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4
