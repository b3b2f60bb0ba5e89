"""The training objective: cross-entropy plus a numeric term, from logits or from hidden states."""

from numerate.objective.batch import ObjectiveOutput
from numerate.objective.objective import NumericObjective
from numerate.objective.weighting import Normalize, Scale, Weighting

__all__ = ["Normalize", "NumericObjective", "ObjectiveOutput", "Scale", "Weighting"]
