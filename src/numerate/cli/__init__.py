"""The command line: parses, calls, prints; what it prints is worked out elsewhere. One file a command.

Everything heavy is imported inside the commands, so that ``--help`` and a wrong flag are answered at once.
"""

from numerate.cli import bench, compare, inspect, task, train
from numerate.cli.app import app

__all__ = ["app", "bench", "compare", "inspect", "task", "train"]
