"""Axolotl: a numeric loss, soft labels or both, from the YAML of a run.

In the YAML::

    plugins:
      - numerate.integrations.axolotl.NumericPlugin
    numerate:
      loss: smmd
      weight: 0.3

The plugin calls :func:`numerate.attach` on Axolotl's trainer, so head and loss are fused. ``axolotl`` is imported with it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any

from numerate.checks import public_dir
from numerate.integrations.section import Section

__all__: list[str] = []  # NumericPlugin exists where axolotl does
__dir__ = public_dir(globals())

_FUSED = ("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy")


def __getattr__(name: str) -> Any:
    """Return the plugin, or the schema of its section, which Axolotl imports by name."""
    if name not in ("NumericPlugin", "NumericArgs"):
        raise AttributeError(f"{__name__} has no {name!r}: expected NumericPlugin.")
    return _classes()[name]


def _section(section: Any) -> Any:
    """Check a section when Axolotl reads the YAML, before it loads a model."""
    Section.of(section)
    return section


@cache
def _classes() -> dict[str, type]:
    base: Any = import_module("axolotl.integrations.base").BasePlugin
    pydantic: Any = import_module("pydantic")

    class NumericPlugin(base):  # type: ignore[misc]
        """Attaches what the section ``numerate`` says to the trainer."""

        def get_input_args(self) -> str:
            return f"{__name__}.NumericArgs"

        def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
            for name in _FUSED:
                if cfg.get(name):
                    raise ValueError(
                        f"{name} computes the loss inside the model, without the numeric term: expected no {name}; leave it out, "
                        "numerate fuses head and loss."
                    )
            if (cfg.get("context_parallel_size") or 1) > 1:
                raise NotImplementedError(
                    f"context_parallel_size={cfg['context_parallel_size']} cuts sequences, and the numbers in them, outside of "
                    "the trainer: expected 1; use data parallelism (DDP, FSDP2)."
                )
            Section.of(cfg["numerate"]).attach(trainer)

    checked = pydantic.BeforeValidator(_section)
    args = pydantic.create_model("NumericArgs", __module__=__name__, numerate=(Annotated[dict[str, Any], checked], ...))
    return {"NumericPlugin": NumericPlugin, "NumericArgs": args}
