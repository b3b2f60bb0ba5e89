"""A model that answers at once, and a run of ``numerate train``, behind the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("httpx2", reason="httpx2, which the test client needs, is not installed")

from starlette.testclient import TestClient
from tests.serve.serving import Ready, client_of, train


@pytest.fixture
def ready() -> Ready:
    return Ready()


@pytest.fixture
def client(ready: Ready) -> Iterator[TestClient]:
    """A client of the model that answers at once; all requests are in one event loop, as in a server."""
    with client_of(ready.api()) as client:
        yield client


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of a table, calibrated on its test rows."""
    from numerate.lab.prediction.calibration import keep_calibration

    folder = train(tmp_path_factory.mktemp("served"))
    keep_calibration(folder)
    return folder
