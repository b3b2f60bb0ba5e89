"""The command line: parses, calls, prints; what it prints is worked out elsewhere. One file a command."""

from numerate.cli import bench, compare, inspect, task, train
from numerate.cli.app import app

__all__ = ["app", "bench", "compare", "inspect", "task", "train"]
