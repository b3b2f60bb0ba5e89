"""The tasks of the papers, generated or read from the datasets' own files, and a task on your own data.

``TASKS["arithmetic"](difficulty=2).examples("interpolate", 100)`` returns examples; ``.score(example, output)`` scores one.
"""

from numerate.lab.data.arithmetic import Arithmetic
from numerate.lab.data.base import Example, Examples, Split, Task
from numerate.lab.data.charts import Charts
from numerate.lab.data.clock import Clock
from numerate.lab.data.grounding import Grounding
from numerate.lab.data.math_vision import MathVision
from numerate.lab.data.number_skills import NumberSkills
from numerate.lab.data.pictures import Picture
from numerate.lab.data.regression import Regression
from numerate.lab.data.scene_text import SceneText
from numerate.lab.data.times import Times
from numerate.lab.data.word_problems import WordProblems

_KINDS = (Arithmetic, WordProblems, Clock, Charts, Grounding, SceneText, MathVision, Regression, NumberSkills, Times)
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in _KINDS}
TABLE_TASK = Regression.name

__all__ = [
    "TABLE_TASK",
    "TASKS",
    "Arithmetic",
    "Charts",
    "Clock",
    "Example",
    "Examples",
    "Grounding",
    "MathVision",
    "NumberSkills",
    "Picture",
    "Regression",
    "SceneText",
    "Split",
    "Task",
    "Times",
    "WordProblems",
]
