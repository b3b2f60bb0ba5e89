"""The section of a configuration file that names a numeric loss, soft labels, or both. Its keys are the same everywhere.

In YAML::

numerate:
  loss: smmd            # a name of numerate.LOSSES
  weight: 0.3
  normalize: numeric    # or tokens
  settings:             # of the loss
    sigma: 2.0
  soft: 0.05            # labels may be off by 5 %
  numbers: answer       # as in numerate.attach
  format: plain         # as in numerate.attach
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from numerate.checks import check_choice, check_number, check_settings, choices
from numerate.choices import Normalize
from numerate.formats import as_format
from numerate.integrations.asked import tokenizer_of
from numerate.integrations.hugging_face import attach
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.targets.soft_numbers import Where
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from numerate.integrations.attachment import Attachment


@dataclass(frozen=True)
class Section:
    """What a configuration asks for, checked as far as possible without a tokenizer."""

    loss: str | None = None
    weight: float = 0.3
    normalize: Normalize = "numeric"
    settings: Mapping[str, Any] = field(default_factory=dict)
    soft: float | bool | None = None
    numbers: Where | None = None
    format: str = "plain"

    def __post_init__(self) -> None:
        if self.loss is None and self.soft in (None, False):
            raise ValueError(
                f"the section `numerate` asks for neither a loss nor soft labels: expected loss: one of {', '.join(LOSSES)}, "
                "soft: 0.05 if labels may be off by 5 %, or both."
            )
        if self.loss is not None:
            check_choice("loss", self.loss, tuple(LOSSES))
            check_settings(LOSSES[self.loss].__name__, self.settings, LOSSES[self.loss].settings())
        elif self.settings:
            raise ValueError(
                f"settings={dict(self.settings)!r} without a loss, whose they are: expected loss: one of {', '.join(LOSSES)}."
            )
        check_number("weight", self.weight, least=0.0)
        check_choice("normalize", self.normalize, choices(Normalize))
        as_format(self.format)

    @classmethod
    def of(cls, section: Any) -> Section:
        """Read a section: a mapping of these keys."""
        if not isinstance(section, Mapping):
            raise TypeError(
                f"the section `numerate` is {section!r}: expected keys and values, such as loss: smmd and weight: 0.3."
            )
        check_settings("the section `numerate`", section, [known.name for known in fields(cls)])
        return cls(**{name: value for name, value in section.items() if value is not None})

    def objective(self, tokenizer: Any, **options: Any) -> NumericObjective:
        """Build the objective; ``options`` are further ones of :class:`numerate.NumericObjective`."""
        if self.loss is None:
            return NumericObjective(None, **options)
        vocab = NumericVocab.from_tokenizer(tokenizer, format=self.format)
        loss = LOSSES[self.loss](vocab, **self.settings)
        return NumericObjective(loss, weight=self.weight, normalize=self.normalize, **options)

    def refuse_soft(self, framework: str) -> None:
        """Raise if rows were to be changed, for a framework whose rows are out of reach."""
        for name in ("soft", "numbers"):
            if getattr(self, name) not in (None, False):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not supported with {framework}, which gives its loss no more than "
                    f"labels: leave {name} out."
                )

    def attach(self, trainer: Any, by: Callable[..., Attachment] = attach) -> Attachment:
        """Attach to a trainer of the Hugging Face family; ``by`` another function than :func:`numerate.attach`."""
        tokenizer = tokenizer_of(trainer.processing_class, trainer.data_collator)
        loss = None if self.loss is None else self.objective(tokenizer)
        return by(trainer, loss, soft=self.soft, numbers=self.numbers, tokenizer=tokenizer, format=self.format)
