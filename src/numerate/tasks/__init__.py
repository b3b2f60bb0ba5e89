"""The tasks that the papers evaluate on, generated or read from the datasets' own files, and your own data.

``TASKS["arithmetic"](difficulty=2).examples("interpolate", 100)`` gives examples; ``.score(example, output)`` scores.
"""

from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.base import Example, Examples, Split, Task
from numerate.tasks.charts import Charts
from numerate.tasks.clock import Clock
from numerate.tasks.grounding import Grounding
from numerate.tasks.math_vision import MathVision
from numerate.tasks.regression import Regression
from numerate.tasks.scene_text import SceneText
from numerate.tasks.word_problems import WordProblems

_KINDS = (Arithmetic, WordProblems, Clock, Charts, Grounding, SceneText, MathVision, Regression)
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "TASKS",
    "Arithmetic",
    "Charts",
    "Clock",
    "Example",
    "Examples",
    "Grounding",
    "MathVision",
    "Regression",
    "SceneText",
    "Split",
    "Task",
    "WordProblems",
]
