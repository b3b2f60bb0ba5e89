"""Train and evaluate many small models as one: losses x seeds of an architecture that is built from a configuration.

layers      linear layers, embeddings and norms with weights ``[E, ..]``
model       a stack of models, which transformers takes for one
objective   the loss of each run
fit         training
run         runs as one: the same files as one run at a time
"""

from numerate.lab.training.stacked.model import stack, unstack
from numerate.lab.training.stacked.run import OWN, finish_run, run_stack, stackable, stacks, train_stack

__all__ = ["OWN", "finish_run", "run_stack", "stack", "stackable", "stacks", "train_stack", "unstack"]
