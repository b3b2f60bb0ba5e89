"""The scene_text task."""

from numerate.lab.tasks.scene_text.task import SceneText

__all__ = ["SceneText"]
