"""A full disk is named with its folder and a remedy, wherever files are written; and folders that are not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from numerate.lab.files.records import DiskFullError, alone, check_folder, naming_full_disk
from numerate.lab.models.names import NAMED, check_model_name
from numerate.lab.prediction.prediction_file import Prediction, PredictionFile

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=str)
@pytest.mark.parametrize("writing", [naming_full_disk, alone])
def test_a_full_disk_is_named(writing, error, tmp_path):
    with (
        pytest.raises(DiskFullError, match=f"no space left on the disk of {tmp_path} .*: free some, or name .*--out"),
        writing(tmp_path),
    ):
        raise error


def test_torch_on_a_full_disk(tmp_path, monkeypatch):
    """torch.save raises a RuntimeError that does not say why."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 100}))
    with pytest.raises(DiskFullError, match="PytorchStreamWriter"), naming_full_disk(tmp_path):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "denied"), RuntimeError("mat1"), ValueError("x")], ids=str)
def test_other_errors_stay(error, tmp_path):
    with pytest.raises(type(error)) as raised, naming_full_disk(tmp_path):
        raise error
    assert raised.value is error


def test_predictions_on_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = PredictionFile(tmp_path / "out.csv", ("area",))
    file.claim({})
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFullError, match=f"disk of {tmp_path}"):
        file.append([{"area": 1}], [Prediction()])


def test_a_folder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/flats-rent-ce-0").mkdir(parents=True)
    for name in ("runs/flats-rnt-ce-0", "flats-rnt-ce-0", "./runs/flats-rent-ce-1", str(tmp_path / "runs/flats-rent-ce1")):
        with pytest.raises(ValueError, match="there is no such folder. Did you mean '.*runs/flats-rent-ce-0'"):
            check_model_name(name)
    with pytest.raises(ValueError, match="flats-rent-ce-0: there is no such folder. Did you mean 'runs/flats-rent-ce-0'"):
        check_model_name("flats-rent-ce-0")
    Path("table.csv").write_text("area,price\n")
    with pytest.raises(ValueError, match=r"model='table\.csv' is a file: expected a folder with a model"):
        check_model_name("table.csv")
    with pytest.raises(ValueError, match="nowhere: there is no such folder. Check the path"):
        check_folder(Path("runs/nowhere"))
    for name in (*NAMED, "gpt2", "HuggingFaceTB/SmolLM2-135M", "runs/flats-rent-ce-0"):
        check_model_name(name)
    monkeypatch.chdir(tmp_path / "runs")  # a wrong folder: runs is not in it
    with pytest.raises(ValueError, match="runs/flats-rent-ce-0: there is no such folder. Did you mean .flats-rent-ce-0"):
        check_model_name("runs/flats-rent-ce-0")
