"""Options and settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

settings.register_profile("numerate", derandomize=True, deadline=None, database=None)
settings.load_profile("numerate")


def pytest_configure() -> None:
    """Compute on one thread: tests run on every core at once, small models are faster on one thread, and results are the same."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # by a shell that runs tests in the background; inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if find_spec("transformers") is not None:
        from transformers.utils import logging

        logging.get_logger()  # it writes to the standard error of its first call for good, and tests replace and close theirs


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise triton reports what is left at the end as leaked


@pytest.fixture(autouse=True, scope="module")
def short_collections() -> None:
    """Leave what exists out of garbage collections: every training runs one, and would scan all imports and collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The file that a test module names, in scripts/ or in research/: ``tests/research/test_keep.py`` is about ``keep.py``."""
    name = request.path.stem.removeprefix("test_")
    if request.path.parent.name == "research":  # its modules import each other
        sys.path.insert(0, str(Path(__file__).parents[1] / "research"))
        yield import_module(name)
        return
    spec = spec_from_file_location(f"scripts_{name}", Path(__file__).parents[1] / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "quick: every test with its first parameters, except those that start processes or compile"
    parser.addoption("--cases", choices=("quick",), help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--cases") is None:
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    heavy = [item for item in items if item.get_closest_marker("launch") or item.get_closest_marker("compile")]
    quick = {*first.values()} - {*heavy}
    config.hook.pytest_deselected(items=[item for item in items if item not in quick])
    items[:] = [item for item in items if item in quick]
