"""The training objective: cross-entropy plus a numeric term, from logits or from hidden states."""

from numerate.objective.objective import Normalize, NumericObjective, ObjectiveOutput, Scale

__all__ = ["Normalize", "NumericObjective", "ObjectiveOutput", "Scale"]
