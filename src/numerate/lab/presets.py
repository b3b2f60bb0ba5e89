"""Comparisons by name: the default one, and the tables of the papers on tasks that run on a laptop.

numerate compare --preset ntil-components
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_LOSSES = ("ce", "emd", "ntil", "smmd", "number")
"""Without ``ntl_was``: at default settings it is the formula of ``emd``, and the same loss is compared once."""

DEMO: dict[str, Any] = {
    "name": "demo",
    "losses": list(DEFAULT_LOSSES),
    "tasks": ["arithmetic"],
    "task_settings": {"difficulty": 1, "longest": 2, "operations": "+-", "signed": False, "wording": "bare"},
    "models": ["tiny"],
    "seeds": 3,
    "steps": 600,
    "eval_examples": 500,
}


def _variants(loss: str, name: str, values: list[Any], **fixed: Any) -> list[dict[str, Any]]:
    """Return one loss with several values of one setting."""
    return [{"loss": loss, "label": f"{loss} {name}={value}", "loss_settings": {**fixed, name: value}} for value in values]


def _variant(label: str, loss: str, **settings: Any) -> dict[str, Any]:
    return {"loss": loss, "label": label, "loss_settings": settings}


PRESETS: dict[str, dict[str, Any]] = {
    "demo": DEMO,
    # NTIL, Table 6: the effect of each part.
    "ntil-components": DEMO
    | {
        "name": "ntil-components",
        "losses": [
            "ce",
            _variant("EMD", "ntil", alpha=0.0, beta=0.0, sigma=0.0),
            _variant("EMD + places", "ntil", alpha=0.0, beta=0.0),
            _variant("EMD + places + relative", "ntil", beta=0.0),
            _variant("EMD + places + magnitude", "ntil", alpha=0.0),
            _variant("NTIL", "ntil"),
        ],
    },
    # NTIL, Tables 7 and 8.
    "ntil-alpha-beta": DEMO
    | {
        "name": "ntil-alpha-beta",
        "losses": [
            "ce",
            *(
                _variant(f"ntil alpha={alpha} beta={beta}", "ntil", alpha=alpha, beta=beta)
                for alpha in (0.0, 0.1, 0.2, 0.4)
                for beta in (0.0, 0.1, 0.2, 0.4)
            ),
        ],
    },
    "ntil-sigma-lambda": DEMO
    | {
        "name": "ntil-sigma-lambda",
        "losses": [
            "ce",
            *(
                _variant(f"ntil sigma={sigma} lambda={weight}", "ntil", sigma=sigma) | {"weight": weight}
                for sigma in (0.0, 0.1, 0.2, 0.4)
                for weight in (0.1, 0.2, 0.3, 0.5)
            ),
        ],
    },
    # SMMD: its two terms, and whether the number line matters.
    "smmd-terms": DEMO
    | {
        "name": "smmd-terms",
        "losses": [
            "ce",
            _variant("mmd", "smmd", terms="mmd"),
            _variant("smooth", "smmd", terms="smooth"),
            _variant("both", "smmd"),
            _variant("repaired", "smmd", form="repaired"),
        ],
    },
    "smmd-gram": DEMO
    | {
        "name": "smmd-gram",
        "losses": [
            "ce",
            _variant("value distance", "smmd"),
            _variant("random", "smmd", ablation="random"),
            _variant("shuffled", "smmd", ablation="shuffled"),
            _variant("laplacian", "smmd", gram="laplacian"),
            *_variants("smmd", "sigma", [0.5, 1.0, 4.0]),
            _variant("smmd three sigmas", "smmd", sigma=[1.0, 2.0, 4.0]),
        ],
    },
    "lambda-sweep": DEMO
    | {
        "name": "lambda-sweep",
        "losses": [
            "ce",
            *(
                {"loss": loss, "label": f"{loss} lambda={weight}", "weight": weight}
                for loss in ("smmd", "ntil", "number")
                for weight in (0.03, 0.1, 0.3, 1.0, 3.0)
            ),
        ],
    },
    # One digit per token or three, and where too much smoothing would show.
    "tokenizers": DEMO | {"name": "tokenizers", "models": ["tiny", "tiny-3"], "losses": ["ce", "ntil", "smmd", "number"]},
    "ranges": DEMO
    | {
        "name": "ranges",
        "losses": ["ce", "smmd", _variant("smmd wide", "smmd", sigma=8.0), "gaussian_ce", "ntil", "number"],
        "tasks": [
            {
                "task": "arithmetic",
                "task_settings": DEMO["task_settings"] | {"difficulty": difficulty},
            }
            for difficulty in (1, 2, 3)
        ],
    },
}


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` overridden by ``more``; mappings are merged entry by entry."""
    both = {
        name: merged(values[name], value)
        for name, value in more.items()
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
    }
    return {**values, **more, **both}
