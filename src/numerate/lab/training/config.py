"""The configuration of a run: model, task, loss, seed and training settings, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from numerate.checks import check_choice, check_settings
from numerate.choices import Normalize, Scale, loss_names
from numerate.distribution.bell_steps import Shape
from numerate.distribution.decision_rules import RULE_NAMES
from numerate.lab.data import TASKS
from numerate.lab.data.settings import DataSettings, Settings
from numerate.lab.evaluation.settings import DecisionSettings
from numerate.lab.models.names import suitable_rate
from numerate.lab.models.settings import PLAIN, LabelPath, ModelSettings

if TYPE_CHECKING:
    from typing_extensions import Self

CROSS_ENTROPY = "ce"  # cross-entropy alone, the baseline

SOFT: dict[str, LabelPath] = {"soft": "drawn", "soft_fixed": "fixed", "soft_jitter": "jitter"}
"""Names of cross-entropy with soft labels, and their ``soft.path``."""

HEADS = ("scalar_head", "hl_gauss_head", "quantile_head")
"""Names of runs that predict a number instead of writing it (:mod:`numerate.lab.training.heads`)."""

TERM_NUMBERS = ("all", "answer")
"""Numbers that the numeric term reads, beside those that a pattern matches: all of an answer, or the last."""

NO_EFFECT = {"label", "log_every", "save_every", "keep_model", "tensorboard", "trust_remote_code", "gradient_checkpointing"}
"""Settings that do not change the result of a run."""

RULES = tuple(name for name in RULE_NAMES if name != "within")
"""Rules of :meth:`numerate.NumberDistribution.decide` that need no other argument; ``within_5`` has its own tolerance."""


class SoftLabels(BaseModel):
    """Settings of soft labels: the target of an answer is a distribution over answers near it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: LabelPath = Field(
        "drawn",
        description="drawn: the answer is drawn from its distribution each time, with soft targets along it; "
        "fixed: soft targets along the label; jitter: the answer is drawn and its targets are hard.",
    )
    width: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Width of the bell, in units of the answer: how far off would still be fine."
    )
    relative: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Width as a share of the answer. Neither: what suits the task."
    )
    shape: Shape = Field("gaussian", description="Shape of the bell.")
    hard: float = Field(0.0, ge=0, lt=1, description="Weight of the label itself in a mixture with the bell.")
    lowest: float | None = Field(None, allow_inf_nan=False, description="Lower bound of an answer.")
    highest: float | None = Field(None, allow_inf_nan=False, description="Upper bound of an answer.")
    step: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Distance between the answers of the bell. None: the label's last decimal."
    )

    @property
    def spread(self) -> dict[str, float]:
        """Return the width that is set, by its name; empty if none is."""
        return {name: value for name in ("width", "relative") if (value := getattr(self, name)) is not None}

    def times(self, factor: float) -> Self:
        """Return the same settings with another width."""
        return self.model_copy(update={name: scaled(value, factor) for name, value in self.spread.items()})


def scaled(value: float, factor: float) -> float:
    """Return a setting times a factor as one would write it: 0.3 times 3 is 0.9, and not 0.8999999999999999."""
    return float(f"{value * factor:.12g}")


class TrainingSettings(Settings):
    """The objective, the labels and the optimiser."""

    loss: str = Field(
        CROSS_ENTROPY,
        description="ce, or a numeric loss that is added to cross-entropy; soft, soft_fixed and soft_jitter are ce with `soft`; "
        "scalar_head, hl_gauss_head and quantile_head predict the number instead of writing it.",
    )
    loss_settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the numeric loss.")
    weight: float = Field(0.3, ge=0, description="Weight of the numeric term.")
    normalize: Normalize = Field("numeric", description="What the numeric term is divided by: see NumericObjective.")
    scale: Scale = Field("fixed", description="match_ce rescales the numeric term to weight * cross-entropy.")
    term_numbers: str = Field(
        "all",
        description="Numbers that the numeric term reads: all; answer, the last of an answer; or a pattern, whose matches or "
        "first group are read.",
    )
    number_weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Weight of numeric tokens in the cross-entropy; other tokens have 1."
    )
    soft: SoftLabels | None = Field(
        None,
        description="Soft labels: path, width or relative, shape, hard, lowest, highest, step. None or a width of 0: hard ones.",
    )
    members: int = Field(
        1, ge=1, description="Models that are trained on the same rows, with other initial weights, and asked together."
    )
    label: str = Field("", description="Name of the run in tables. Default: the loss.")
    steps: int = Field(600, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, description="Examples per micro-batch and process.")
    accumulation: int = Field(1, ge=1, description="Micro-batches per step.")
    learning_rate: float | None = Field(None, gt=0, description="None: a rate suitable for the model.")
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises.")
    weight_decay: float = Field(0.1, ge=0, description="Weight decay.")
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, about a third more time."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which gradients are clipped.")
    log_every: int = Field(20, ge=1, description="Steps between points of the learning curve.")
    validate_every: int | None = Field(
        None, ge=1, description="Steps between validations, which join the learning curve. None: no validation while training."
    )
    keep_best: bool = Field(False, description="With validate_every: end with the weights that validated best, not the last.")
    choose_by: str | None = Field(
        None, description="Metric whose mean on validation examples chooses weights and tuning trials. None: the headline's."
    )
    save_every: int | None = Field(None, ge=1, description="Steps between checkpoints to resume from. None: no checkpoints.")
    keep_model: bool = Field(False, description="Keep the trained weights.")
    tensorboard: bool = Field(False, description="Also write the learning curve for TensorBoard.")


class RunConfig(DecisionSettings, TrainingSettings, DataSettings, ModelSettings):
    """Settings of one training run and its evaluation.

    It combines the four groups, so that their names are flat on the command line and in files. A stage accepts only the group
    it reads; a ``RunConfig`` is an instance of each.
    """

    model_config = ConfigDict(title="a run")

    @model_validator(mode="before")
    @classmethod
    def _set_learning_rate(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("learning_rate") is not None:
            return values
        model, adapter = (values.get(name, cls.model_fields[name].default) for name in ("model", "adapter"))
        return {**values, "learning_rate": suitable_rate(model, adapter)}

    @model_validator(mode="before")
    @classmethod
    def _set_soft_labels(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Turn the loss ``soft`` into cross-entropy with soft labels, and fill in the width that suits the task."""
        if isinstance(soft := values.get("soft"), SoftLabels):
            values = {**values, "soft": soft.model_dump()}
        values = named_soft(values)
        if (soft := values.get("soft")) is None:
            return values
        if not isinstance(soft, Mapping):
            raise ValueError(f"soft={soft!r} is not a mapping: expected its settings, such as soft.relative=0.05 for 5 %.")
        check_settings("soft labels", soft, SoftLabels.model_fields)
        spread = {name: soft[name] for name in ("width", "relative") if soft.get(name) is not None}
        if len(spread) == 2:
            raise ValueError(f"soft.width={soft['width']!r} and soft.relative={soft['relative']!r} are both set: expected one.")
        if any(isinstance(value, int | float) and value == 0 for value in spread.values()):
            return {**values, "soft": None}
        task, settings = values.get("task", cls.model_fields["task"].default), values.get("task_settings", {})
        if not spread and task in TASKS and isinstance(settings, Mapping):
            soft = {**soft, **TASKS[task](**settings).soft_width}
        return {**values, "soft": soft}

    @field_validator("decide", "eval_splits", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
        listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return tuple(dict.fromkeys(names)) if listed else names

    @field_validator("term_numbers")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            expected = f"expected {', '.join(TERM_NUMBERS)} or a regular expression"
            raise ValueError(f"term_numbers={value!r} is not a pattern ({error}): {expected}.") from None
        return value

    @model_validator(mode="after")
    def _check_task_and_loss(self) -> Self:
        check_choice("task", self.task, tuple(TASKS))
        check_choice("loss", self.loss, (CROSS_ENTROPY, *loss_names(), *SOFT, *HEADS))
        if self.data is None:
            TASKS[self.task](**self.task_settings)
        for rule in self.decide:
            check_choice("decide", rule, RULES)
        if self.choose_by is not None:
            check_choice("choose_by", self.choose_by, TASKS[self.task].measures)
        if self.keep_best and self.validate_every is None:
            raise ValueError("keep_best=True needs validate_every: expected the steps between validations, such as 100.")
        if self.loss in HEADS:
            self._check_head()
        if self.loss == CROSS_ENTROPY and self.loss_settings:
            raise ValueError(f"loss_settings={self.loss_settings!r} is not supported for loss='ce': expected none.")
        return self

    def _check_head(self) -> None:
        check_settings(f"loss_settings of {self.loss}", self.loss_settings, {"log": None})
        if self.keep_model:
            raise ValueError(
                f"loss={self.loss!r} trains a head whose weights are not kept, so that it predicts no other rows: expected "
                "another loss, numerate compare to compare it with others, or keep_model=False (--set keep_model=false)."
            )
        written = {"soft": self.soft is not None, "samples": self.samples > 0}
        written |= {"format": self.format != PLAIN}
        written |= {"number_weight": self.number_weight != 1, "validate_every": self.validate_every is not None}
        if wrong := [name for name, is_set in written.items() if is_set]:
            raise ValueError(f"{wrong[0]} is set, and loss={self.loss!r} writes no answer: leave it out, or choose another loss.")

    @property
    def name(self) -> str:
        """Return the name in tables."""
        return self.label or run_name(self.loss, None if self.soft is None else self.soft.path, self.format)

    def member_seed(self, member: int) -> int:
        """Return the seed of a member's initial weights, order of rows and soft labels; which rows it has is up to ``seed``.

        The first member is the run with one member.

        Examples:
            >>> [RunConfig(seed=3).member_seed(member) for member in range(3)]
            [3, 457190280, 960329833]
        """
        return int(np.random.SeedSequence([self.seed, member]).generate_state(1)[0]) if member else self.seed

    @property
    def without_effect(self) -> dict[str, str]:
        """Return the settings that have no effect beside the others, each with the reason."""
        idle: dict[str, str] = {}
        if self.loss in (CROSS_ENTROPY, *HEADS):
            idle |= dict.fromkeys(("weight", "normalize", "scale", "term_numbers"), "the run has no numeric loss")
        if self.adapter == "none":
            idle["rank"] = "the run has no adapter"
        if not self.decide:
            idle |= dict.fromkeys(("interval", "decide_width"), "no decide is set")
        if self.data is None:
            idle["skip_bad"] = "the examples are generated, because no data are set"
        return idle

    @property
    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide the result."""
        return {name: value for name, value in self.used.items() if name not in NO_EFFECT}

    @property
    def used(self) -> dict[str, Any]:
        """Return the settings as JSON, without those of features that the run does not use, such as soft labels."""
        unused = set() if self.decide else {"decide", "interval", "decide_width"}
        unused |= set() if self.soft else {"soft"}
        unused |= {"term_numbers"} if self.term_numbers == "all" else set()
        unused |= {"number_weight"} if self.number_weight == 1 else set()
        unused |= set() if self.validate_every else {"validate_every", "keep_best"}
        unused |= set() if self.choose_by else {"choose_by"}
        unused |= {"format"} if self.format == PLAIN else set()
        unused |= {"members"} if self.members == 1 else set()
        excluded: dict[str, Any] = {"soft": {"step"}} if self.soft and self.soft.step is None else {}
        return self.model_dump(mode="json", exclude=excluded | dict.fromkeys(unused, True))

    @property
    def hash(self) -> str:
        """Return a hash of the settings that decide the result: the name of the run's folder."""
        return hashlib.blake2b(json.dumps(self.deciding, sort_keys=True).encode(), digest_size=8).hexdigest()


def named_soft(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with the loss ``soft``, ``soft_fixed`` or ``soft_jitter`` as ``ce`` and its ``soft.path``.

    Examples:
        >>> named_soft({"loss": "soft_fixed", "soft": {"relative": 0.1}})
        {'loss': 'ce', 'soft': {'relative': 0.1, 'path': 'fixed'}}
    """
    loss, soft = values.get("loss"), values.get("soft") or {}
    if not isinstance(loss, str) or loss not in SOFT or not isinstance(soft, Mapping):
        return dict(values)
    if soft.get("path", SOFT[loss]) != SOFT[loss]:
        raise ValueError(f"loss={loss!r} has the path {SOFT[loss]!r}, and soft.path={soft['path']!r}: leave out soft.path.")
    return {**values, "loss": CROSS_ENTROPY, "soft": {**soft, "path": SOFT[loss]}}


def run_name(loss: str, path: LabelPath | None, format: str = PLAIN) -> str:
    """Return the name of a loss with soft labels along this path, or with hard ones, in a format.

    Examples:
        >>> run_name("ce", None), run_name("ce", "drawn"), run_name("emd", "fixed"), run_name("ce", "drawn", "padded")
        ('ce', 'soft', 'emd+soft_fixed', 'soft padded')
    """
    soft = [name for name, its in SOFT.items() if its == path]
    return in_format("+".join(([] if soft and loss == CROSS_ENTROPY else [loss]) + soft), format)


def in_format(name: str, format: str) -> str:
    """Return the name of a run in a format: ``ce padded``; in plain text, the name alone."""
    return name if format == PLAIN else f"{name} {format}"


Config = TypeVar("Config", bound=BaseModel)


def checked(kind: type[Config], values: dict[str, Any], source: str = "", *, also: Iterable[str] = ()) -> Config:
    """Return a configuration, or raise one error that names the file ``source`` and each wrong value.

    ``also`` are names of settings that are accepted beside the fields.

    Examples:
        >>> checked(RunConfig, {"loss": "smd"})
        Traceback (most recent call last):
        ...
        ValueError: loss='smd' is not known: expected one of 'ce', 'smmd', ... Did you mean 'smmd'?
    """
    title = kind.model_config.get("title")
    check_settings(f"{title} in {source}" if source else f"{title}", values, dict.fromkeys([*kind.model_fields, *also]))
    try:
        return kind(**values)
    except ValidationError as error:
        text = " ".join(map(_explained, error.errors()))
        raise ValueError(f"{source}: {text}" if source else text) from None


def _explained(error: Any) -> str:
    if error["type"] == "value_error":  # raised by a validator above
        return str(error["ctx"]["error"])
    path = ".".join(map(str, error["loc"]))
    return f"{path}={error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}."


_MOST_BYTES, _MOST_VALUES = 1 << 20, 10_000  # of a file of settings


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings: plain values, of a limited number, and no permission to run code that comes with a model."""
    import yaml

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES >> 20} MiB: expected a YAML file of settings.")
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; expected a YAML file of settings.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        what = "is empty" if values is None else f"holds a {type(values).__name__}"
        raise ValueError(f"{path} {what}: expected settings, such as `task: arithmetic`.")
    seen, waiting = 0, [values]
    while waiting:
        part = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES:  # aliases may repeat a part a billion times, or for ever
            raise ValueError(f"{path} holds more than {_MOST_VALUES:,} values, those that aliases repeat included.")
        if isinstance(part, dict) and part.get("trust_remote_code"):
            raise ValueError(
                f"{path}: trust_remote_code is not read from a file, which may come from somebody else: "
                "leave it out, and pass --set trust_remote_code=true."
            )
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple | set) else ()
    return values
