"""Train and evaluate many small models as one: losses x seeds of an architecture that is built from a configuration.

layers      linear layers, embeddings and norms with weights ``[E, ..]``
model       a stack of models, which transformers takes for one
objective   the loss of each run
fit         training
train       which runs and members are trained as one
run         runs as one: the same files as one run at a time
"""

from numerate.lab.training.stacked.model import stack, unstack
from numerate.lab.training.stacked.run import finish_run, run_stack, train_stack
from numerate.lab.training.stacked.train import OWN, most_stacked, stackable, stacks

__all__ = ["OWN", "finish_run", "most_stacked", "run_stack", "stack", "stackable", "stacks", "train_stack", "unstack"]
