"""First requests at once: whatever they ask, none sees transformers while another thread imports it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pydantic", reason="the extra playground is not installed")
pytest.importorskip("transformers", reason="the extra train is not installed")

SCRIPT = """
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
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4
