"""Comparisons by name: the demo, and the tables of the papers on tasks that run on a laptop.

numerate compare --preset ntil-components
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

DEMO = "demo"
DEFAULT_LOSSES = ("ce", "emd", "ntil", "smmd", "number")
"""Without ``ntl_was``, which at default settings is the same formula as ``emd``."""

GENERAL: dict[str, Any] = {"losses": list(DEFAULT_LOSSES), "models": ["tiny"], "seeds": 3, "steps": 600, "eval_examples": 500}
"""Settings of a comparison of your own task or data."""

_DEMO: dict[str, Any] = {
    "name": DEMO,
    "losses": ["ce", "soft"],
    "soft": {"width": 0.5},
    "tasks": ["regression"],
    "task_settings": {"target": "logSolubility", "wording": "bare"},
    "data": "esol",
    "models": ["tiny"],
    "seeds": 4,
    "steps": 800,
    "batch_size": 32,
    "eval_examples": 200,
    "decide": ["median"],
}
"""Text in, number out: the solubility of a molecule from its SMILES. None of it applies to another task or other data."""

_EASY = {"difficulty": 1, "longest": 2, "operations": "+-", "signed": False, "wording": "bare"}
_SOME = (0.0, 0.1, 0.2, 0.4)


def _variant(label: str, loss: str, **settings: Any) -> dict[str, Any]:
    return {"loss": loss, "label": label, "loss_settings": settings}


_LOSSES: dict[str, list[Any]] = {
    "sums": list(DEFAULT_LOSSES[1:]),
    # NTIL, Table 6: the effect of each part.
    "ntil-components": [
        _variant("EMD", "ntil", alpha=0.0, beta=0.0, sigma=0.0),
        _variant("EMD + places", "ntil", alpha=0.0, beta=0.0),
        _variant("EMD + places + relative", "ntil", beta=0.0),
        _variant("EMD + places + magnitude", "ntil", alpha=0.0),
        _variant("NTIL", "ntil"),
    ],
    # NTIL, Tables 7 and 8.
    "ntil-alpha-beta": [_variant(f"ntil alpha={a} beta={b}", "ntil", alpha=a, beta=b) for a, b in product(_SOME, _SOME)],
    "ntil-sigma-lambda": [
        _variant(f"ntil sigma={sigma} lambda={weight}", "ntil", sigma=sigma) | {"weight": weight}
        for sigma, weight in product(_SOME, (0.1, 0.2, 0.3, 0.5))
    ],
    # SMMD: its two terms, and whether the number line matters.
    "smmd-terms": [
        _variant("mmd", "smmd", terms="mmd"),
        _variant("smooth", "smmd", terms="smooth"),
        _variant("both", "smmd"),
        _variant("repaired", "smmd", variant="repaired"),
    ],
    "smmd-kernels": [
        _variant("value distance", "smmd"),
        _variant("random", "smmd", ablation="random"),
        _variant("shuffled", "smmd", ablation="shuffled"),
        _variant("laplacian", "smmd", kernel="laplacian"),
        *(_variant(f"smmd sigma={sigma}", "smmd", sigma=sigma) for sigma in (0.5, 1.0, 4.0)),
        _variant("smmd three sigmas", "smmd", sigma=[1.0, 2.0, 4.0]),
    ],
    # Is it the number line, or only more weight on numbers?
    "controls": [
        "smmd",
        _variant("smmd shuffled", "smmd", ablation="shuffled"),
        "emd",
        _variant("1 - p(label)", "emd", ablation="equal"),
        {"loss": "ce", "label": "ce, numbers x3", "number_weight": 3.0},
    ],
    "lambda-sweep": [
        {"loss": loss, "label": f"{loss} lambda={weight}", "weight": weight}
        for loss, weight in product(("smmd", "ntil", "number"), (0.03, 0.1, 0.3, 1.0, 3.0))
    ],
    # One digit per token or three, and where too much smoothing would show.
    "tokenizers": ["ntil", "smmd", "number"],
    "ranges": ["smmd", _variant("smmd wide", "smmd", sigma=8.0), "gaussian_ce", "ntil", "number"],
}
PRESETS: dict[str, dict[str, Any]] = {DEMO: _DEMO} | {
    name: GENERAL | {"name": name, "losses": ["ce", *losses], "tasks": ["arithmetic"], "task_settings": _EASY}
    for name, losses in _LOSSES.items()
}
PRESETS["tokenizers"]["models"] = ["tiny", "tiny-3"]
PRESETS["ranges"]["tasks"] = [
    {"task": "arithmetic", "task_settings": _EASY | {"difficulty": difficulty}} for difficulty in (1, 2, 3)
]


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` overridden by ``more``; mappings are merged entry by entry."""
    both = {
        name: merged(values[name], value)
        for name, value in more.items()
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
    }
    return {**values, **more, **both}
