"""The sets of versions are tested one after the other, whatever becomes of one of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.mark.parametrize("broken", ["install", "tests", None])
def test_every_set_is_tested(broken: str | None, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = []

    def install(folder: Path, versions: Any, uv: Path) -> str:
        if broken == "install" and folder.name == "oldest":
            raise subprocess.CalledProcessError(2, "uv")
        return folder.name

    def run(command: list[Any], **_: Any) -> Any:
        if "pytest" in command:
            tested.append(command[0])
        return subprocess.CompletedProcess(command, int(broken == "tests" and command[:3] == ["oldest", "-m", "pytest"]))

    monkeypatch.setattr(script, "install", install)
    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.main(tmp_path, []) == (0 if broken is None else 1)
    assert tested == [name for name in script.SETS if broken != "install" or name != "oldest"]
