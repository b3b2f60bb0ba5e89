"""Options and settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("numerate", derandomize=True, deadline=None, database=None)
settings.load_profile("numerate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-case", action="store_true", help="run each test with its first parameters only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--first-case"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if first[item.nodeid.partition("[")[0]] is not item])
        items[:] = [item for item in items if first[item.nodeid.partition("[")[0]] is item]
