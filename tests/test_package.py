"""The public names of the package, imported on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import numerate

INTERNAL = {"checks", "choices", "cli", "labels", "marks", "numeric_tokens", "playground", "serve", "tokens", "web"}


def test_every_public_name_resolves() -> None:
    assert set(numerate.__all__) <= set(dir(numerate))
    for name in numerate.__all__:
        assert getattr(numerate, name) is not None
    assert numerate.NumericVocab is numerate.vocab.NumericVocab
    with pytest.raises(AttributeError, match="no attribute 'SMDLoss'"):
        _ = numerate.SMDLoss


@pytest.mark.parametrize("name", ["decode", "integrations", "lab", "targets"])
def test_names_of_a_package_are_imported_on_first_use(name: str) -> None:
    package = import_module(f"numerate.{name}")
    missing = [each for each in package.__all__ if getattr(package, each, None) is None]
    assert not missing
    assert set(package.__all__) == {each for each in dir(package) if not each.startswith("__")}
    with pytest.raises(AttributeError, match=f"^numerate.{name} has no 'decod': expected one of {', '.join(package.__all__)}.$"):
        _ = package.decod


def test_every_public_submodule_resolves() -> None:
    folder = Path(numerate.__file__).parent
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    public = {name for name in found if not name.startswith("_")} - INTERNAL
    assert {"answers", "inspection", "lab", "plotting", "rewards", "tokenizers"} <= public
    script = "import sys, numerate; print([getattr(numerate, name).__name__ for name in sys.argv[1:]])"
    names = sorted(public)
    out = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str([f"numerate.{name}" for name in names])
    assert all(isinstance(getattr(numerate, name), ModuleType) for name in public)


def test_import_is_light() -> None:
    """``import numerate`` loads no other package and none of its submodules."""
    script = "import sys; before = set(sys.modules); import numerate; print(sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = set(eval(out))
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"numerate"}
