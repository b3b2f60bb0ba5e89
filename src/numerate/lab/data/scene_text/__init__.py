"""The scene_text task: find all words in an image, each with its position and text.

    Find all words. Answer with a JSON list of {"box": [x1, y1, x2, y2], "text": ...} in reading order; ...
    [{"box": [0.315, 0.041, 0.937, 0.170], "text": "PIZZA"}]

``task`` has examples, prompt and score; ``signs`` the drawing; ``annotations`` reads the datasets: ICDAR 2015 (Karatzas et al.,
ICDAR 2015), Total-Text (Ch'ng and Chan, ICDAR 2017, arXiv:1710.10400) and SCUT-CTW1500 (Liu et al., arXiv:1712.02170).
"""

from numerate.lab.data.scene_text.task import SceneText

__all__ = ["SceneText"]
