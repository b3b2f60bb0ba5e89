"""Runs with several members, put together from runs of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path


def gathered(runs: Sequence[Path], folder: Path) -> Path:
    """Return a run of which these are the members, not calibrated."""
    shutil.copytree(runs[0], folder)
    (folder / "model" / "calibration.json").unlink(missing_ok=True)
    for member, run in enumerate(runs[1:], 1):
        shutil.copytree(run / "model", folder / "model" / "members" / str(member))
    for file in (folder / "config.json", folder / "model" / "numerate.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"members": len(runs)}))
    return folder
