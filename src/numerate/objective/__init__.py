"""The training objective: cross-entropy plus a numeric term, from logits or from hidden states."""

from numerate.choices import Normalize, Scale
from numerate.objective.batch import ObjectiveOutput
from numerate.objective.objective import NumericObjective
from numerate.objective.weighting import Weighting

__all__ = ["Normalize", "NumericObjective", "ObjectiveOutput", "Scale", "Weighting"]
