"""The grounding task: find the box of the shape that an expression refers to.

    Find the circle. Answer with its bounding box [x1, y1, x2, y2]: ...       [0.217, 0.785, 0.440, 0.952]

``task`` has examples, prompt and score; ``scenes`` the shapes, the expressions and the drawing. Real data: RefCOCO, RefCOCO+ and
RefCOCOg (Yu et al., ECCV 2016, arXiv:1608.00272; Mao et al., CVPR 2016, arXiv:1511.02283).
"""

from numerate.lab.data.grounding.task import Grounding

__all__ = ["Grounding"]
