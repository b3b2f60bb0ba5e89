"""The command line: parse, call, print. One file per command.

Heavy packages are imported inside the commands, so that ``--help`` and wrong options respond immediately.
"""

from numerate.cli import compare, export, inspect, playground, predict, serve, task, train
from numerate.cli.app import app

__all__ = ["app", "compare", "export", "inspect", "playground", "predict", "serve", "task", "train"]
