"""The clock task: read the time from an analogue clock.

    What time does the clock show? Answer as hour_minute, such as 2_55.       9_15

``task`` has examples, prompt and score; ``face`` the drawing. Real data: the TIME dataset (gpiosenka, Kaggle).
"""

from numerate.lab.data.clock.task import Clock

__all__ = ["Clock"]
