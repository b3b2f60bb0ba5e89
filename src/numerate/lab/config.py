"""What a run is: a model, a task, a loss, a seed, and how long; checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from numerate.lab.models import Adapter, suitable_rate
from numerate.lab.tasks import TASKS
from numerate.lab.tasks.base import Split
from numerate.losses import LOSSES
from numerate.messages import check_choice, nearest
from numerate.objective import Normalize, Scale

PLAIN = "ce"  # cross-entropy alone, the baseline


NO_EFFECT = frozenset({"label", "log_every", "save_every", "keep_model", "tensorboard", "trust_remote_code"})  # on the result


class RunConfig(BaseModel):
    """One training run and its evaluation. Everything that decides the result is here, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field("tiny", description="tiny, tiny-3, tiny-vlm, smollm2, a folder, or a Hub id.")
    adapter: Adapter = Field("none", description="lora or qlora train an adapter instead of all weights.")
    rank: int = Field(16, ge=1, description="Of the adapter.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")

    task: str = Field("arithmetic", description="A task by name.")
    task_settings: dict[str, Any] = Field(default_factory=dict, description="Its settings.")
    data: str | None = Field(None, description="Real data: a file or folder. None: generated.")
    skip_bad: bool = Field(False, description="Leave out rows of the data that cannot be read.")

    loss: str = Field(PLAIN, description="ce, or a numeric loss that is added to it.")
    loss_settings: dict[str, Any] = Field(default_factory=dict, description="Its settings.")
    weight: float = Field(0.3, ge=0, description="Of the numeric term.")
    normalize: Normalize = "numeric"
    scale: Scale = "fixed"
    label: str = Field("", description="What the run is called in tables; the loss unless given.")

    seed: int = Field(0, ge=0, description="Of weights and data.")
    steps: int = Field(600, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, description="Examples of a micro-batch, on each process.")
    accumulation: int = Field(1, ge=1, description="Micro-batches of a step.")
    learning_rate: float = Field(0.0, gt=0, description="What suits the model unless given.")
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises.")
    weight_decay: float = Field(0.1, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    train_examples: int = Field(20_000, ge=1, description="Different examples to train on, at most.")
    max_length: int = Field(1024, ge=8, description="Tokens of an example, at most; longer ones are left out and counted.")
    bf16: bool = Field(False, description="Compute in bfloat16.")
    log_every: int = Field(20, ge=1, description="Steps between two points of the learning curve.")
    save_every: int | None = Field(None, ge=1, description="Steps between two checkpoints to resume from. None: no checkpoints.")
    keep_model: bool = Field(False, description="Keep the trained weights.")
    tensorboard: bool = Field(False, description="Write the learning curve for TensorBoard, too.")

    eval_splits: tuple[Split, ...] = Field(("interpolate", "extrapolate"), description="Those that the data has are evaluated.")
    eval_examples: int = Field(200, ge=1, description="Test examples of each split, at most.")
    eval_batch_size: int = Field(128, ge=1)
    max_new_tokens: int | None = Field(None, ge=1, description="Of an answer. None: what the gold answers need, and some more.")
    samples: int = Field(0, ge=0, description="Answers to sample of each test example, for measures of the distribution.")
    validation: bool = Field(False, description="Evaluate on a validation split in place of the test: for tuning.")

    @model_validator(mode="before")
    @classmethod
    def _rate_that_suits(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("learning_rate") is not None:
            return values
        fields = cls.model_fields
        rate = suitable_rate(values.get("model", fields["model"].default), values.get("adapter", fields["adapter"].default))
        return {**values, "learning_rate": rate}

    @field_validator("task")
    @classmethod
    def _known_task(cls, name: str) -> str:
        check_choice("task", name, tuple(TASKS))
        return name

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, name: str) -> str:
        check_choice("loss", name, (PLAIN, *LOSSES))
        return name

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.data is None:
            TASKS[self.task](**self.task_settings)
        if self.loss == PLAIN and self.loss_settings:
            raise ValueError(f"loss_settings={self.loss_settings!r} has no meaning for loss='ce': expected none.")
        return self

    @property
    def name(self) -> str:
        """In tables."""
        return self.label or self.loss

    @property
    def hash(self) -> str:
        """Of what decides the result: the name of the run's folder."""
        text = json.dumps(self.model_dump(mode="json", exclude=set(NO_EFFECT)), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


Config = TypeVar("Config", bound=BaseModel)


def checked(kind: type[Config], values: dict[str, Any], source: str = "") -> Config:
    """A configuration of these values, or one plain error that names each wrong key, and the nearest valid one.

    Example:
        >>> checked(RunConfig, {"los": "smmd"})
        Traceback (most recent call last):
        ...
        ValueError: los='smmd' is not a setting: expected one of model, adapter, rank, ... Did you mean 'loss'?
    """
    try:
        return kind(**values)
    except ValidationError as error:
        said = " ".join(_explained(kind, one) for one in error.errors())
        raise ValueError(f"{source}: {said}" if source else said) from None


def _explained(kind: type[BaseModel], error: Any) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = list(kind.model_fields)
        shown = ", ".join(known) if len(known) <= 3 else f"{', '.join(known[:3])}, ..."
        return f"{path}={error['input']!r} is not a setting: expected one of {shown}.{nearest(path, known)}"
    if error["type"] == "value_error":  # one of ours, which says all there is to say
        return str(error["ctx"]["error"])
    return f"{path}={error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}."


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of settings."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; expected a YAML file of settings.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}: expected settings, such as `task: arithmetic`.")
    return values
