"""Drawn datasets: the same draws for the same seed, epoch and row, in any process and after any break."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset as Table
from scipy.stats import kstest
from tests.targets.small import KINDS, encoded, listed, row_targets, tokenizer
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback, TrainerState

import numerate
from numerate.targets import Bell, DrawnDataset, DrawnTransform, SoftNumbers
from numerate.targets.drawn import generator
from numerate.targets.windows import Pieces


def make_rows(count: int = 12) -> list[dict[str, Any]]:
    tokens = tokenizer("digits")
    return [{"input_ids": [*encoded(tokens, f"x={100 + i}"), 0]} for i in range(count)]


def make_soft() -> SoftNumbers:
    return SoftNumbers(tokenizer("digits"), Bell(width=20))


class Rows(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return make_rows()[index]


def plain(rows: Any) -> list[dict[str, Any]]:
    return [{name: [*row[name]] for name in sorted(row)} for row in rows]


def same(batch: list[Any]) -> list[Any]:
    return batch


@pytest.mark.parametrize("source", [make_rows(), Table.from_list(make_rows()), Rows()], ids=["list", "table", "torch"])
def test_any_dataset_by_index(source):
    data = DrawnDataset(source, make_soft(), seed=5)
    assert len(data) == 12
    first = plain(data[i] for i in range(12))
    assert plain([data[5], data[-7], data[np.int64(5)]]) == [first[5]] * 3
    assert plain(data.__getitems__([3, 1])) == [first[3], first[1]]
    assert first == plain(DrawnDataset(make_rows(), make_soft(), seed=5)[i] for i in range(12))
    with pytest.raises(IndexError, match="index=12 is out of range: expected one below 12"):
        data[12]


@pytest.mark.parametrize("kind", [DrawnDataset, DrawnTransform])
def test_every_seed_epoch_and_row_has_draws_of_its_own(kind: type[DrawnDataset] | type[DrawnTransform]):
    """Epoch 1 of seed 0 is not epoch 0 of seed 1: runs with other seeds share no draws."""
    seen: dict[float, tuple[int, int, int]] = {}

    def soft(row: Any, *, rng: np.random.Generator, path: str) -> dict[str, float]:
        return {"draw": rng.random()}

    for seed, epoch in itertools.product(range(4), range(4)):
        if kind is DrawnDataset:
            data = DrawnDataset([{}] * 4, soft, seed=seed)
            data.set_epoch(epoch)
            draws = [row["draw"] for row in data.__getitems__(range(4))]
        else:
            draw = DrawnTransform(soft, seed=seed)
            draw.set_epoch(epoch)
            draws = draw({"index": range(4)})["draw"]
        for index, value in enumerate(draws):
            assert seen.setdefault(value, (seed, epoch, index)) == (seed, epoch, index)


def test_a_number_is_replaced_without_reading_its_row_again(monkeypatch: pytest.MonkeyPatch):
    """Looking up texts of tokens, by far the most frequent step: once for each token, and for a few around each number."""
    looked: list[int] = []

    class Counted(Pieces):
        def __getitem__(self, token_id: int) -> str:
            looked.append(token_id)
            return super().__getitem__(token_id)

    soft = SoftNumbers(tokenizer("digits"), Bell(width=20), where="all")
    monkeypatch.setattr(soft._encoder, "_pieces", Counted(soft._encoder._pieces))
    counts = []
    for numbers in (10, 20):
        row, other = (
            {"input_ids": [*encoded(tokenizer("digits"), start + ", of some words 1000" * numbers), 0]} for start in "ab"
        )
        soft(other, rng=np.random.default_rng(0))  # now all members are encoded
        looked.clear()
        soft(row, rng=np.random.default_rng(0))
        counts.append(len(looked) - len(row["input_ids"]))
    assert counts[0] <= 10 * 15
    assert counts[1] <= 2.1 * counts[0], "not more for a number in a longer row"


def test_what_bells_of_neighbouring_labels_share_is_encoded_and_checked_once(monkeypatch: pytest.MonkeyPatch):
    soft, sizes = SoftNumbers(tokenizer("digits"), Bell(width=20)), []
    encode, text = soft._encoder.encode, soft._encoder.text
    monkeypatch.setattr(soft._encoder, "encode", lambda texts: (sizes.append(len(texts)), encode(texts))[1])
    spelled: list[Any] = []
    monkeypatch.setattr(soft._encoder, "text", lambda ids: (spelled.append(ids), text(ids))[1])
    for label in (500, 501):
        sizes.clear()
        spelled.clear()
        soft({"input_ids": [*encoded(tokenizer("digits"), f"x={label}"), 0]}, rng=np.random.default_rng(0))
        assert sum(sizes) == {500: 241, 501: 1}[label]
        assert len(spelled) <= sum(sizes) + 4


def test_a_row_that_was_drawn_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch):
    soft, rows = SoftNumbers(tokenizer("digits"), Bell(width=20), where="all"), make_rows()
    first = [listed(soft(row, rng=np.random.default_rng(0))) for row in rows]
    monkeypatch.setattr(soft, "_drawn", None)
    monkeypatch.setattr(soft._encoder, "_pieces", None)
    assert [listed(soft(row, rng=np.random.default_rng(0))) for row in rows] == first
    assert soft.seen == 2 * len(rows)
    assert [listed(soft(row, rng=np.random.default_rng(1))) for row in rows] != first


def test_rows_drawn_before_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch):
    """A row of two thousand tokens may have hundreds of numbers: half a kilobyte each, in every worker."""
    monkeypatch.setattr("numerate.targets.soft_numbers._MOST_HELD", 300_000)
    soft = SoftNumbers(tokenizer("digits"), Bell(width=1), where="all")
    rows = [{"input_ids": [*encoded(tokenizer("digits"), "1 or " * 100 + f"{i}\n"), 0]} for i in range(20)]
    tracemalloc.start()
    for row in [*rows[:3], *rows]:  # three are drawn again
        soft(row, rng=np.random.default_rng(0))
    soft._encoder._tries.clear()
    soft._encoder._known.clear()
    before = tracemalloc.get_traced_memory()[0]
    assert 0 < len(soft._rows) <= 5
    soft._rows.clear()
    held = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.2 * soft._held < held < 1.5 * soft._held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["12 * 30 = 360", "12*9=108", "9 8 7", "x=99, and -8/1000", "only 99", "of 5 and 0 7", "99"])
def test_rows_are_drawn_as_if_they_were_read_for_the_first_time(kind: str, text: str):
    """Also where the tokens of a number depend on the number before: between the two are fewer tokens than it takes."""
    tokens, target = tokenizer(kind), Bell(relative=0.3)
    ids = [*encoded(tokens, text), 0]
    soft = SoftNumbers(tokens, target, where="all", mask=True)
    for labels in (ids, [-100, *ids[1:]], [*ids[:-1], -100]):
        row = {"input_ids": ids, "labels": labels}
        for seed in range(12):
            anew = SoftNumbers(tokens, target, where="all", mask=True)
            assert listed(soft(row, rng=np.random.default_rng(seed))) == listed(anew(row, rng=np.random.default_rng(seed)))


def test_paths_that_were_dropped_are_made_again():
    row = {"input_ids": [*encoded(tokenizer("digits"), "of 100 and 900"), 0]}
    soft = SoftNumbers(tokenizer("digits"), Bell(width=20), where="all")
    first = listed(soft(row, rng=np.random.default_rng(3)))
    tries = soft._encoder._tries
    assert len(tries) == 2
    for context in [*tries]:
        del tries[context]
        assert listed(soft(row, rng=np.random.default_rng(3))) == first, "what is left does not draw before all are there"
        assert len(tries) == 2


def test_a_batch_takes_few_python_calls_for_a_row_and_for_a_number():
    """Counted, as times vary: eight GPUs wait for these rows. A second time, when all members are encoded."""
    folder, calls = str(Path(numerate.__file__).parent), []

    def counted(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            calls.append(frame.f_code.co_name)

    def of_a_row(numbers: int, words: int, rows: int) -> float:
        text = "many words " * words + ", of 1000" * numbers
        ids = [*encoded(tokenizer("digits"), text), 0]
        data = DrawnDataset([{"input_ids": ids}] * rows, SoftNumbers(tokenizer("digits"), Bell(width=20), where="all"))
        data.__getitems__(range(rows))
        calls.clear()
        sys.setprofile(counted)
        data.__getitems__(range(rows))
        sys.setprofile(None)
        return len(calls) / rows

    one, five = of_a_row(1, 1, 8), of_a_row(5, 1, 8)
    assert one <= 70
    assert (five - one) / 4 <= 30
    assert of_a_row(1, 60, 8) == one, "not more for a longer row"
    assert of_a_row(1, 1, 32) < one, "less for each row of a larger batch"


def test_generators_depend_on_their_integers_alone():
    entropies = [*itertools.product([0, 1, 10, 2**32, 2**70 + 5], [0, 3, 2**33], [0, 1, 31, 2**31, 2**64 - 1])]
    states = [generator(*entropy).bit_generator.state["state"] for entropy in entropies]
    assert states == [generator(*entropy).bit_generator.state["state"] for entropy in entropies]
    assert len({state["state"] for state in states}) == len({state["inc"] for state in states}) == len(states)
    assert generator(0, 0, 0).random() == 0.8033938802977312, "draws of earlier runs stay as they are"
    ours, again = generator(1, 2, 3), generator(1, 2, 3)
    for _ in range(2):  # soft labels of one's own may spawn more
        spawned = [child.random() for child in ours.spawn(2)]
        assert spawned == [child.random() for child in again.spawn(2)]
        assert len({*spawned}) == 2


@pytest.mark.parametrize("varied", range(3))
def test_first_draws_of_seeds_epochs_and_rows_are_uniform_and_uncorrelated(varied: int):
    entropies = np.full((4000, 3), 7)
    entropies[:, varied] = range(4000)
    draws = np.array([generator(*map(int, entropy)).random(2) for entropy in entropies])  # [4000, 2]
    for column in draws.T:
        assert kstest(column, "uniform").pvalue > 1e-3
    neighbours = np.stack([draws[:-1, 0], draws[1:, 0], draws[:-1, 1]])
    assert np.abs(np.corrcoef(neighbours) - np.eye(3)).max() < 4 / np.sqrt(4000)


def test_rows_are_fetched_together():
    fetched: list[list[int]] = []

    class Many(Rows):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            fetched.append([*indices])
            return [self[index] for index in indices]

    data = DrawnDataset(Many(), make_soft())
    assert plain(data.__getitems__([3, -1])) == plain([data[3], data[11]])
    assert fetched == [[3, 11], [3], [11]]


@pytest.mark.launch
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_draw_the_same_and_see_the_epoch(context: str):
    data = DrawnDataset(make_rows(), make_soft())
    loader = DataLoader(data, 4, collate_fn=same, num_workers=2, persistent_workers=True, multiprocessing_context=context)
    for epoch in (0, 3, 0):
        data.set_epoch(epoch)
        alone = DrawnDataset(make_rows(), make_soft())
        alone.set_epoch(epoch)
        assert plain(row for batch in loader for row in batch) == plain(alone[i] for i in range(12))


def test_a_resumed_run_sees_the_same_batches():
    """Break off after two batches of the second epoch; a new process continues with the third."""
    accelerate = pytest.importorskip("accelerate", minversion="1.15", reason="accelerate before 1.15 forgets the epoch")

    def batches(epoch: int, skipped: int) -> list[Any]:
        loader = accelerate.data_loader.prepare_data_loader(
            DataLoader(DrawnDataset(make_rows(), make_soft()), 2, collate_fn=same), put_on_device=False
        )
        loader.set_epoch(epoch)
        return [plain(batch) for batch in accelerate.skip_first_batches(loader, skipped)]

    assert batches(1, 0)[2:] == batches(1, 2)
    assert batches(0, 0) != batches(1, 0)


def test_the_callback_sets_the_epoch():
    data = DrawnDataset(make_rows(), make_soft())
    callback = data.callback()
    assert isinstance(callback, TrainerCallback)
    callback.on_epoch_begin(None, TrainerState(epoch=2.0), None)
    assert data.epoch == 2


@pytest.mark.parametrize("path", ["drawn", "fixed", "jitter"])
def test_paths(path):
    rows = make_rows()
    out = [DrawnDataset(rows, make_soft(), path=path)[i] for i in range(12)]
    assert ([row["input_ids"] for row in out] == [row["input_ids"] for row in rows]) == (path == "fixed")
    assert all(("soft_positions" in row) == (path != "jitter") for row in out)
    assert path == "jitter" or all(row_targets(row) for row in out)


class TestTransform:
    def test_draws_as_the_dataset_does(self):
        table = Table.from_list(make_rows())
        table = table.add_column("index", [*range(12)])
        draw = DrawnTransform(make_soft(), seed=2)
        lazy, data = table.with_transform(draw), DrawnDataset(make_rows(), make_soft(), seed=2)
        for epoch in (0, 1):
            draw.set_epoch(epoch)
            data.set_epoch(epoch)
            assert plain([lazy[3]]) == plain([data[3]])
            assert plain(lazy.select([7, 2])[i] for i in (0, 1)) == plain([data[7], data[2]])
        assert "index" not in lazy[0]

    def test_without_an_index(self):
        lazy = Table.from_list(make_rows()).with_transform(DrawnTransform(make_soft()))
        with pytest.raises(ValueError, match=r"no column 'index', only 'input_ids'.*add dataset.add_column\('index'"):
            lazy[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DrawnDataset(iter([]), make_soft()), "dataset is a list_iterator: expected rows by index"),
        (lambda: DrawnDataset({"train": []}, make_soft()), "dataset is a dict: expected rows by index.*dataset..train.."),
        (lambda: DrawnDataset([], None), "soft=None cannot be called: expected SoftNumbers"),
        (lambda: DrawnDataset([], make_soft(), seed=-1), "seed=-1 is out of range"),
        (lambda: DrawnDataset([], make_soft(), path="draw"), "Did you mean 'drawn'"),
        (lambda: DrawnDataset([], make_soft()).set_epoch(0.5), "epoch=0.5 is out of range"),
    ],
)
def test_settings_are_checked(call, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize(("installed", "step", "warned"), [("1.14.0", 5, True), ("1.14.0", 0, False), ("1.15.0", 5, False)])
def test_a_resumption_that_accelerate_draws_otherwise_is_said(installed: str, step: int, warned: bool, monkeypatch):
    monkeypatch.setattr("numerate.targets.drawn.version", lambda name: {"accelerate": installed}[name])
    callback = DrawnDataset(make_rows(), make_soft()).callback()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback.on_train_begin(None, TrainerState(global_step=step), None)
    assert [("accelerate 1.14.0 forgets the epoch" in str(one.message)) for one in caught] == [True] * warned
