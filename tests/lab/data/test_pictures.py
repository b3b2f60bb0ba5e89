"""Pictures are drawn once and kept: the same pixels, files and records as without, for every visual task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from numerate.lab.comparison.executors import run_local
from numerate.lab.data import TASKS, Clock, Example, Examples, Picture, pictures
from numerate.lab.data.picture_store import PICTURES, PictureStore
from numerate.lab.data.row_reader import open_image
from numerate.lab.data.settings import make_task
from numerate.lab.files.progress import GridProgress
from numerate.lab.models.encoding import SharedData, collate, encode
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import run_data
from numerate.lab.training.run import run
from numerate.lab.training.stacked.fit import _Steps
from numerate.lab.training.stacked.objective import StackedObjective

VISUAL = [name for name, kind in TASKS.items() if kind.visual]
FEW = {
    "model": "tiny-vlm",
    "steps": 2,
    "batch_size": 2,
    "train_examples": 3,
    "eval_examples": 2,
    "log_every": 1,
    "max_new_tokens": 8,
}
SIDE = 112

every_task = pytest.mark.parametrize("name", VISUAL)


def of(name, n=3, split="train", **settings):
    """Pictures of a task that are not made yet."""
    return [example.picture for example in TASKS[name](**settings).examples(split, n)]


def png(image):
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# The same as drawing each time


@every_task
def test_a_model_sees_the_same_pixels(name, tmp_path):
    """Values, type and memory layout are those of resizing the drawing, before it is kept, when it is, and from PNG alone."""
    loaded, examples = load_model("tiny-vlm"), TASKS[name]().examples("train", 3)
    small = [np.asarray(example.image.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1 for example in examples]
    expected = torch.cat([torch.from_numpy(pixels).permute(2, 0, 1)[None] for pixels in small])
    texts = [f"{'<image>' * 64}{example.prompt}\n" for example in examples]

    def assert_same():
        rows = encode(loaded, examples)
        batch = collate(rows, pad=loaded.pad)
        assert torch.equal(batch["pixel_values"], expected)
        assert (batch["pixel_values"].stride(), batch["pixel_values"].dtype) == (expected.stride(), expected.dtype)
        for row, ids, example in zip(rows, loaded.tokens(texts), examples, strict=True):
            assert row["input_ids"] == [*ids, *loaded.tokens([example.answer])[0], loaded.end]

    assert_same()
    loaded.keep_pictures(tmp_path)
    assert_same()
    kept = contents(tmp_path)
    assert {len(content) for content in kept.values()} == {3 * SIDE**2}
    assert_same()
    assert contents(tmp_path) == kept
    for path in tmp_path.iterdir():
        path.unlink()
    for example in examples:
        loaded.pictures.png(example.picture)
    assert_same()


@every_task
def test_other_models_get_the_picture_as_it_is_drawn(name, tmp_path):
    store, drawn = PictureStore(tmp_path), of(name)
    for _ in range(2):
        for picture, again in zip(of(name), drawn, strict=True):
            image = store.image(picture)
            assert (image.mode, image.size, image.tobytes()) == (again.image.mode, again.image.size, again.image.tobytes())
            assert store.png(picture) == png(again.image)
        assert len(contents(tmp_path)) == len(drawn)


@every_task
def test_a_run_writes_the_same_files_with_and_without(name, tmp_path, monkeypatch):
    config = RunConfig(task=name, validate_every=1, **FEW)
    run(config, tmp_path / "kept")
    monkeypatch.setattr(PictureStore, "_path", lambda *_: None)
    run(config, tmp_path / "drawn")
    for file in ("predictions.jsonl", *(f"images/{split}_{k}.png" for split in ("interpolate", "extrapolate") for k in (0, 1))):
        assert (tmp_path / "kept" / file).read_bytes() == (tmp_path / "drawn" / file).read_bytes()
    curves = [(tmp_path / kind / "curve.jsonl").read_text().splitlines() for kind in ("kept", "drawn")]
    points = [[{**json.loads(line), "seconds": 0} for line in lines] for lines in curves]
    assert points[0] == points[1]
    assert not (tmp_path / "kept" / PICTURES).exists()  # when the run is finished


# Keys


@every_task
def test_examples_that_nobody_looks_at_are_not_drawn(name):
    example = TASKS[name]().examples("interpolate", 1)[0]
    assert example.prompt
    assert example.answer
    assert isinstance(example.picture, Picture)
    assert example.picture.key
    assert "image" not in vars(example.picture)
    assert example.image is example.image


KEYS = """
from numerate.lab.data import TASKS
print(*(e.picture.key for kind in TASKS.values() if kind.visual for e in kind().examples("train", 2)))
"""


def test_keys_are_the_same_in_every_process():
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", KEYS], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [picture.key for name in VISUAL for picture in of(name, 2)]


@every_task
def test_what_changes_a_picture_changes_its_key(name, monkeypatch):
    keys = [picture.key for picture in of(name, 20)]
    assert len(set(keys)) == 20
    assert not {picture.key for picture in of(name, 20, size=512)} & set(keys)
    monkeypatch.setattr(pictures, "_drawing_code", lambda: b"another release")
    assert not {picture.key for picture in of(name, 20)} & set(keys)


def test_the_key_depends_on_the_code_and_the_packages(monkeypatch):
    seen = [pictures._drawing_code()]
    for name in pictures._DRAWN_WITH:
        pictures._drawing_code.cache_clear()
        monkeypatch.setattr(pictures, "version", lambda asked, name=name: "99" if asked == name else "1")
        seen.append(pictures._drawing_code())
    pictures._drawing_code.cache_clear()
    monkeypatch.setattr(type(pictures.Path()), "read_bytes", lambda path: b"" if path.name == "face.py" else b"code")
    seen.append(pictures._drawing_code())
    pictures._drawing_code.cache_clear()
    assert len(set(seen)) == len(seen)


def test_a_photo_that_changes_is_read_again(tmp_path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (9, 9), "red").save(photo)
    store = PictureStore(tmp_path / PICTURES, 2)
    assert store.pixels(Picture(open_image, (photo,)))[:, 0, 0].tolist() == [255, 0, 0]
    assert len(contents(tmp_path / PICTURES)) == 1
    Image.new("RGB", (9, 9), "blue").save(photo)
    os.utime(photo, ns=(1, 1))
    assert store.pixels(Picture(open_image, (photo,)))[:, 0, 0].tolist() == [0, 0, 255]
    assert PictureStore(tmp_path / PICTURES).image(Picture(open_image, (photo,))).getpixel((0, 0)) == (0, 0, 255)
    assert {path.suffix for path in (tmp_path / PICTURES).iterdir()} == {".rgb"}  # a photo is not kept as another file


def test_an_open_image_is_used_but_not_kept(tmp_path):
    image = Image.new("RGB", (9, 9), "red")
    store = PictureStore(tmp_path, 2)
    assert store.pixels(image)[:, 0, 0].tolist() == [255, 0, 0]
    assert contents(tmp_path) == {}
    assert Example("", "", image).image is image


# Files that are missing, broken, or cannot be written


@pytest.mark.parametrize("broken", [b"", b"x", lambda content: content[:-1], lambda content: content + b"x"])
def test_a_broken_file_is_drawn_again(broken, tmp_path):
    (picture,) = of("clock", 1)
    stores = PictureStore(tmp_path, SIDE), PictureStore(tmp_path)
    right = stores[0].pixels(picture), stores[1].image(picture).tobytes(), stores[1].png(picture)
    whole = contents(tmp_path)
    assert {name.rpartition(".")[2] for name in whole} == {"rgb", "png"}
    for name, content in whole.items():
        (tmp_path / name).write_bytes(broken(content) if callable(broken) else broken)
    (fresh,) = of("clock", 1)
    assert torch.equal(stores[0].pixels(fresh), right[0])
    assert (stores[1].image(fresh).tobytes(), stores[1].png(fresh)) == right[1:]
    assert contents(tmp_path) == whole


def test_a_png_with_a_broken_middle_is_not_used(tmp_path):
    (picture,) = of("clock", 1)
    content = bytearray(PictureStore(tmp_path).png(picture))
    content[60:-60] = bytes(len(content) - 120)
    (tmp_path / f"{picture.key}.png").write_bytes(content)
    (fresh,) = of("clock", 1)
    assert PictureStore(tmp_path).image(fresh).tobytes() == picture.image.tobytes()


def test_where_files_cannot_be_written_pictures_are_drawn(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    store, (picture,) = PictureStore(tmp_path / "file" / PICTURES, SIDE), of("clock", 1)
    expected = PictureStore(None, SIDE).pixels(picture)
    seen = []
    store.make_ahead(of("clock", 100), [], lambda *update: seen.append(update[1]))
    assert seen == [0]  # does not draw what it cannot keep
    assert torch.equal(store.pixels(of("clock", 1)[0]), expected)


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path, monkeypatch):
    known, new = of("clock", 2)
    right = PictureStore(tmp_path, SIDE).pixels(known)
    monkeypatch.setattr("numerate.lab.data.picture_store._SPARE", 2**62)
    store = PictureStore(tmp_path, SIDE)
    store.pixels(new)
    assert [*contents(tmp_path)] == [f"{known.key}-{SIDE}.rgb"]
    monkeypatch.setattr(Picture, "image", None)  # what is kept is still read
    assert torch.equal(store.pixels(known), right)


def test_the_folder_may_be_deleted_at_any_time(tmp_path):
    store, (picture,) = PictureStore(tmp_path / PICTURES, SIDE), of("clock", 1)
    first = store.pixels(picture)
    for path in (tmp_path / PICTURES).iterdir():
        path.unlink()
    (tmp_path / PICTURES).rmdir()
    assert torch.equal(store.pixels(of("clock", 1)[0]), first)
    assert len(contents(tmp_path / PICTURES)) == 1


# Drawn ahead, in parallel


def test_drawing_ahead_keeps_the_same_files_and_continues(tmp_path):
    trained, tested = of("clock", 60, size=64), of("clock", 5, "interpolate", size=64)
    one, other = PictureStore(tmp_path / "one", SIDE), PictureStore(tmp_path / "other", SIDE)
    state, seen = torch.get_rng_state(), []
    one.make_ahead(trained, tested, lambda *update: seen.append(update[:3]))
    assert (seen[0], seen[-1]) == (("pictures", 0, 65), ("pictures", 65, 65))
    assert torch.equal(torch.get_rng_state(), state)
    assert all("image" not in vars(picture) for picture in (*trained, *tested))  # no memory
    for picture in (*trained, *tested):
        other.pixels(picture)
    for picture in tested:
        other.png(picture)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    for path in sorted((tmp_path / "one").iterdir())[:40]:
        path.unlink()
    again = []
    one.make_ahead(trained, tested, lambda *update: again.append(update[2]))
    assert 0 < again[0] <= 40
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    one.make_ahead(trained, tested, lambda *_: pytest.fail("nothing is left to draw"))


def test_a_damaged_photo_stops_the_run_that_needs_it_and_not_the_drawing(tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.new("RGB", (9, 9), "red").save(good)
    bad.write_bytes(b"no picture")
    photos = [Picture(open_image, (path,)) for path in (bad, good)]
    PictureStore(tmp_path / PICTURES, SIDE).make_ahead(photos, [])
    assert len(contents(tmp_path / PICTURES)) == 1


# Runs


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Return how many clocks were drawn so far, in all processes that are forked."""
    log = tmp_path / "drawn.txt"
    log.touch()

    def counted(picture):
        with log.open("a") as lines:
            lines.write(f"{picture.key}\n")
        return picture.draw(*picture.args)

    property_ = type(vars(Picture)["image"])(counted)
    property_.__set_name__(Picture, "image")
    monkeypatch.setattr(Picture, "image", property_)
    return lambda: log.read_text().split()


@pytest.mark.parametrize("stacked", [False, True], ids=["local", "stacked"])
def test_a_comparison_draws_each_picture_once(stacked, tmp_path, drawn):
    """For all losses, epochs, validations and evaluations; another loss needs no more, another seed only its own."""
    settings = {**FEW, "steps": 4, "validate_every": 2, "task_settings": {"size": 64}}
    cells = [RunConfig(task="clock", loss=loss, seed=seed, **settings) for seed in (0, 1, 2) for loss in ("ce", "emd", "smmd")]
    fail = lambda cell, error: pytest.fail(str(error)) if error else None  # noqa: E731
    run_local(cells[:4], tmp_path, stacked=stacked, on_done=fail)  # three losses of seed 0, one of seed 1
    first = drawn()
    assert len(first) == len(set(first)) == 2 * 3 + 2 * 2 + 2  # training, test, validation
    run_local(cells[:6], tmp_path, stacked=stacked, on_done=fail)
    assert drawn() == first
    run_local(cells, tmp_path, stacked=stacked, on_done=fail)
    assert len(drawn()) == len(first) + 3
    assert len([path for path in (tmp_path / PICTURES).iterdir() if path.suffix == ".png"]) == 4
    assert not [*tmp_path.glob(f"cells/*/{PICTURES}")]


def test_the_runs_of_a_stack_share_rows_and_no_worker_holds_them_all(tmp_path, monkeypatch):
    """And a picture that several of them need is sent once."""
    monkeypatch.setattr("numerate.lab.models.encoding._RECENT", 4)
    configs = [RunConfig(task="clock", **{**FEW, "train_examples": 20, "batch_size": 4}, seed=seed) for seed in (0, 1, 0)]
    task, loaded, shared = make_task(configs[0]), load_model("tiny-vlm"), SharedData()
    loaded.keep_pictures(tmp_path)
    together = [run_data(config, task, loaded, shared)[0] for config in configs]
    alone = [run_data(config, task, loaded)[0] for config in configs]
    for position in range(8):
        rows = [own[position] for own in together]
        assert rows[0] is rows[2]
        assert len(shared.recent) <= 4
        for row, other in zip(rows, (own[position] for own in alone), strict=True):
            assert row.keys() == other.keys()
            assert (row["input_ids"], row["labels"]) == (other["input_ids"], other["labels"])
            assert torch.equal(row["pixels"], other["pixels"])
    monkeypatch.undo()
    arguments = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    objective = StackedObjective([None] * 3, ["ce"] * 3)
    for step, (batch,) in enumerate(_Steps(together, objective, loaded.pad, arguments, begin=0)):
        assert batch["pixels"].shape == (8, 3, SIDE, SIDE)  # of two seeds
        sent = batch["pixels"][batch["picture_of"]]
        assert sent.dtype == torch.uint8
        assert torch.equal(sent, torch.cat([own[4 * step + at]["pixels"] for own in alone for at in range(4)]))


def test_a_model_that_sees_nothing_needs_no_pictures(tmp_path):
    run_local([RunConfig(**{**FEW, "model": "tiny"})], tmp_path, on_done=lambda *_: None)
    assert not (tmp_path / PICTURES).exists()
    assert load_encoder("tiny-vlm").pictures.side == SIDE


def test_a_comparison_without_a_terminal_says_what_it_draws(capsys):
    from rich.console import Console

    with GridProgress(Console(file=sys.stdout, force_terminal=False)) as display:
        for stage, done in (("pictures", 0), ("pictures", 900), ("pictures", 1800), ("train", 1800)):
            display(stage, done, 1800, {})
    said = capsys.readouterr().out.rstrip("\n")  # older versions of rich end with an empty line
    assert said == "1,800 pictures to draw\n1,800 pictures are drawn"


# Clocks


@pytest.mark.parametrize(("step", "times"), [(5, 144), (1, 720)])
def test_ten_thousand_different_clocks_show_every_time(step, times):
    task = Clock(step=step)
    for n in (1_000, 10_000):
        examples = task.examples("train", n)
        assert len({example.picture.key for example in examples}) == n
    assert len({example.answer for example in examples}) == times
    assert not {example.picture.key for example in task.examples("interpolate", 400)} & {row.picture.key for row in examples}


def test_clocks_of_every_minute_have_no_minutes_between():
    task = Clock(step=1)
    assert task.splits == ("train", "interpolate")
    with pytest.raises(ValueError, match="'extrapolate' has no examples here"):
        task.examples("extrapolate", 1)
    assert Clock(step=2).splits == ("train", "interpolate", "extrapolate")


def test_asking_for_the_same_examples_again_draws_nothing_anew(monkeypatch):
    task = Clock()
    first = task.examples("train", 5)
    assert isinstance(first, Examples)
    monkeypatch.setattr(Clock, "draw", lambda *_: pytest.fail("drawn again"))
    assert task.examples("train", 5).specs is first.specs
    with pytest.raises(pytest.fail.Exception):
        task.examples("train", 6)


def test_tiny_vlm_places_patches():
    """Positions are about as large as patches of a drawing: with much smaller ones, clocks are not learned."""
    loaded, examples = load_model("tiny-vlm"), TASKS["clock"]().examples("train", 4)
    pixels = collate(encode(loaded, examples), pad=loaded.pad)["pixel_values"]
    embeddings = loaded.model.model.vision_tower.embeddings
    ratio = embeddings.position_embedding.weight.std() / embeddings.patch_embedding(pixels).std()
    assert 0.5 < ratio < 3
