"""The math_vision task: find a length, angle, area or perimeter in a geometric figure.

    Find the area of the trapezoid PQRS. Answer with a number.       496

``task`` has examples, prompt and score; ``problems`` the kinds of problem, ``figures`` the drawing.
Real data: MathVista (Lu et al., ICLR 2024, arXiv:2310.02255) and MathVision (Wang et al., NeurIPS 2024, arXiv:2402.14804).
"""

from numerate.lab.data.math_vision.task import MathVision

__all__ = ["MathVision"]
