"""Axolotl: a numeric term in the loss of a YAML run.

Copy this file beside the YAML (or anywhere on ``PYTHONPATH``) and name it there::

    plugins:
      - axolotl_plugin.NumeratePlugin
    numerate:
      loss: smmd            # a name of numerate.LOSSES
      weight: 0.3
      normalize: numeric    # or tokens
      settings:             # of the loss
        sigma: 2.0
      soft: 0.05            # labels may be off by 5 %: soft labels

    axolotl train config.yml

For supervised training. numerate fuses head and loss, so Axolotl's fused cross-entropies are refused; so is context
parallelism, which cuts numbers in two. The logs gain ``loss/numeric``. If they do not, look for "Failed to load plugin" above
them: Axolotl goes on without a plugin that it cannot import.

Written against axolotl 0.19.0 (transformers 5.16.1). Run with it on a CPU: full training (one micro-batch and four gave the same
losses and gradient norms), and LoRA with packed samples. Not run: a GPU, several processes, QLoRA, vision-language models.
"""

from typing import Any, Literal

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, ConfigDict, Field

REFUSED = ("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "liger_fused_linear_cross_entropy")


class NumerateSettings(BaseModel):
    """The section ``numerate:`` of the YAML."""

    model_config = ConfigDict(extra="forbid")

    loss: str = "smmd"
    weight: float = 0.3
    normalize: Literal["numeric", "tokens"] = "numeric"
    settings: dict[str, Any] = Field(default_factory=dict)
    soft: float | bool = False


class NumerateArgs(BaseModel):
    """The plugin's addition to the YAML's schema."""

    numerate: NumerateSettings = Field(default_factory=NumerateSettings)


class NumeratePlugin(BasePlugin):
    """Attaches a numeric objective to the trainer."""

    def get_input_args(self) -> str:
        """Return the name of the schema."""
        return f"{__name__}.NumerateArgs"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Attach; Axolotl calls this before training."""
        import numerate as nm

        for name in REFUSED:
            if cfg.get(name):
                raise ValueError(f"{name} computes the loss inside the model: leave it out, numerate fuses head and loss.")
        if (cfg.get("context_parallel_size") or 1) > 1:
            raise NotImplementedError(f"context_parallel_size={cfg['context_parallel_size']} cuts numbers in two: expected 1.")
        settings = NumerateSettings(**dict(cfg["numerate"]))
        vocab = nm.NumericVocab.from_tokenizer(trainer.processing_class)
        loss = nm.LOSSES[settings.loss](vocab, **settings.settings)
        nm.attach(trainer, nm.NumericObjective(loss, weight=settings.weight, normalize=settings.normalize), soft=settings.soft)
