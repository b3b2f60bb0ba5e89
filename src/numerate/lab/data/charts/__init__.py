"""The charts task: answer a question about a bar, line or pie chart with a number.

    What is the rainfall in Feb in Porto? Answer with a number.       15

``task`` has examples, prompt and score; ``topics`` the subjects, ``questions`` the questions, ``figure`` the drawing, and
``page`` the paper with its texts.
Real data: ChartQA (Masry et al., Findings of ACL 2022, arXiv:2203.10244).
"""

from numerate.lab.data.charts.task import Charts

__all__ = ["Charts"]
