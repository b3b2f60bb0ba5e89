"""The tasks of the papers, generated or read from the datasets' own files, and a task on your own data.

``TASKS["arithmetic"](difficulty=2).examples("interpolate", 100)`` returns examples; ``.score(example, output)`` scores one.
"""

from numerate.lab.tasks.arithmetic import Arithmetic
from numerate.lab.tasks.base import Example, Examples, Split, Task
from numerate.lab.tasks.charts import Charts
from numerate.lab.tasks.clock import Clock
from numerate.lab.tasks.grounding import Grounding
from numerate.lab.tasks.math_vision import MathVision
from numerate.lab.tasks.pictures import Picture
from numerate.lab.tasks.regression import Regression
from numerate.lab.tasks.scene_text import SceneText
from numerate.lab.tasks.word_problems import WordProblems

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
    "Picture",
    "Regression",
    "SceneText",
    "Split",
    "Task",
    "WordProblems",
]
