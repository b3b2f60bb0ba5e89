"""The training objective: cross-entropy plus a numeric term, from logits or from hidden states."""

from numerate.checks import public_dir
from numerate.objective.batch import ObjectiveOutput
from numerate.objective.cut_sequence import CutSequence
from numerate.objective.objective import NumericObjective

__all__ = ["CutSequence", "NumericObjective", "ObjectiveOutput"]
__dir__ = public_dir(globals())
