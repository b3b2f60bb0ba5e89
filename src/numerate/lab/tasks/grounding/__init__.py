"""The grounding task."""

from numerate.lab.tasks.grounding.task import Grounding

__all__ = ["Grounding"]
