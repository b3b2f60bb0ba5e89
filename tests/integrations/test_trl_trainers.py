"""attach on the trainers of TRL: each but SFTTrainer is refused, with what to use instead."""

from __future__ import annotations

import importlib
import pkgutil
import warnings

import pytest

pytest.importorskip("trl")
from tests.integrations.trainers.cases import Case
from transformers import Trainer

from numerate.integrations.hugging_face import attach, of_trl


def trainers() -> dict[str, type]:
    """Return every trainer that trl and its experimental packages export."""
    found: dict[str, type] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experimental = importlib.import_module("trl.experimental")
        packages = ["trl", *(f"trl.experimental.{module.name}" for module in pkgutil.iter_modules(experimental.__path__))]
        for package in packages:
            try:
                module = importlib.import_module(package)
                names = [name for name in dir(module) if name.endswith("Trainer")]
                classes = [getattr(module, name) for name in names]
            except (ImportError, RuntimeError):  # needs a package that is not installed
                continue
            found |= {cls.__name__: cls for cls in classes if isinstance(cls, type) and issubclass(cls, Trainer)}
    return found


def test_every_other_trainer_of_trl_is_refused_with_what_to_use_instead() -> None:
    found = trainers()
    assert {"SFTTrainer", "DPOTrainer", "GRPOTrainer", "RewardTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer"} <= found.keys()
    for name, cls in found.items():
        for kind in (cls, type("Mine", (cls,), {})):
            if issubclass(kind, found["SFTTrainer"]) and of_trl(kind) == "SFTTrainer":
                continue
            with pytest.raises(TypeError, match=rf"trainer is a {kind.__name__} of TRL, .* not a cross-entropy.*use SFTTrainer"):
                attach(object.__new__(kind), Case().objective)
            assert name != "SFTTrainer"
