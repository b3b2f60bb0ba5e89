"""attach on rows that become tokens in the collator: the batch is that of rows that were tokenised and drawn before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.integrations.test_attach import SEED, options, parameters, rows, same
from tests.integrations.trainers.cases import build, tokenizer
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, MarianTokenizer, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer

import numerate as nm
from numerate.integrations import loop
from numerate.targets import Bell, Ratings, SoftNumbers
from numerate.targets.soft_targets import SOFT_FIELDS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Row = dict[str, Any]
ASKED = [{"soft": 0.3}, {"soft": Ratings("ratings")}, {"loss": "smmd", "numbers": "answer"}]


class Processor:
    """Has a tokenizer, as those of vision-language models do."""

    def __init__(self, side: str) -> None:
        self.tokenizer = tokenizer()
        self.tokenizer.padding_side = side


def padded(side: str, model: Any = None, **settings: Any) -> DataCollatorForSeq2Seq:
    return DataCollatorForSeq2Seq(Processor(side).tokenizer, model=model, **settings)


def tokenised_in(collator: DataCollatorForSeq2Seq) -> Callable[[list[Row]], dict[str, Tensor]]:
    """Return a collator that makes tokens and pictures of texts."""

    def collate(chosen: list[Row]) -> dict[str, Tensor]:
        batch = collator([{name: row["text"][name] for name in ("input_ids", "labels")} for row in chosen])
        return {**batch, "pixel_values": torch.zeros(len(chosen), 3)}

    return collate


def trainers(folder: Any, name: str, asked: dict[str, Any], side: str, **settings: Any) -> tuple[Trainer, Trainer]:
    """Return a trainer whose rows are tokenised in the collator, and one whose rows were tokenised before."""
    made = []
    for late in (True, False):
        model = build(name)
        collator = padded(side, model if name == "t5" else None, **settings)
        data = [{"text": row, "ratings": row["ratings"]} for row in rows(name)] if late else rows(name)
        args = Seq2SeqTrainingArguments(**options(str(folder), remove_unused_columns=False, max_steps=3))
        trainer = Seq2SeqTrainer(model, args, train_dataset=data, data_collator=tokenised_in(collator) if late else collator)
        nm.attach(trainer, **asked, tokenizer=Processor(side), seed=SEED)
        made.append(trainer)
    return made[0], made[1]


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("asked", ASKED)
def test_the_batch_is_that_of_rows_tokenised_before(asked, side, name, tmp_path):
    late, early = trainers(tmp_path, name, asked, side)
    for start in (0, 5):
        found, expected = (made.data_collator([made.train_dataset[i] for i in range(start, start + 5)]) for made in (late, early))
        assert {*found} - {*expected} == {"pixel_values"}
        for field in expected.keys() - {"ratings"}:
            torch.testing.assert_close(found[field], expected[field], rtol=0, atol=0, check_dtype=False, msg=field)
    hard = late.data_collator(late.train_dataset.dataset[:2])
    assert "soft_positions" not in hard


def test_an_encoder_decoder_trains_as_with_rows_tokenised_before(tmp_path):
    late, early = trainers(tmp_path, "t5", {"soft": 0.3}, "right")
    for made in (late, early):  # T5 takes neither of the two
        made.data_collator.collator = lambda chosen, inner=made.data_collator.collator: {
            name: value for name, value in inner(chosen).items() if name not in ("pixel_values", "ratings")
        }
        made.train()
    assert same(parameters(late.model), parameters(early.model))


def test_a_batch_of_pictures_and_labels(tmp_path):
    """As for a model whose encoder reads pictures or sound."""
    late, early = trainers(tmp_path, "t5", {"soft": 0.3}, "right")
    inner = late.data_collator.collator
    late.data_collator.collator = lambda chosen: {name: inner(chosen)[name] for name in ("pixel_values", "labels")}
    found, expected = (made.data_collator([made.train_dataset[i] for i in range(5)]) for made in (late, early))
    assert found.keys() == {"pixel_values", "labels", *SOFT_FIELDS}
    assert all(torch.equal(found[name], expected[name]) for name in ("labels", *SOFT_FIELDS))
    plain = Seq2SeqTrainer(
        build("t5"), late.args, train_dataset=late.train_dataset.dataset, data_collator=late.data_collator.collator
    )
    assert nm.attach(plain, soft=0.3, tokenizer=tokenizer()).summary.endswith("8 of the first 8 rows")


def test_ignored_labels_at_the_start_are_no_padding(tmp_path):
    """A decoder's prompt has no labels; its tokens stay where they are."""
    late, _ = trainers(tmp_path, "t5", {"soft": 0.3}, "right")
    for row in late.train_dataset.dataset:
        row["text"]["labels"] = [-100, -100, *row["text"]["labels"]]
    plain = late.data_collator.collator([*late.train_dataset.dataset])
    drawn = late.data_collator([*map(late.train_dataset.__getitem__, range(len(late.train_dataset)))])
    assert bool((drawn["labels"][:, :2] == -100).all())
    assert torch.equal(drawn["labels"][:, 2], plain["labels"][:, 2])
    assert torch.equal(drawn["decoder_input_ids"][:, :3], plain["decoder_input_ids"][:, :3])
    for line, places in enumerate(drawn["soft_positions"]):
        assert bool((drawn["labels"][line, places[places >= 0]] != -100).all())


@pytest.mark.parametrize(("name", "sequence"), [("t5", "input_ids"), ("llama", "labels")])
def test_soft_numbers_of_the_other_tokens(name, sequence, tmp_path):
    data = [{"text": row} for row in rows(name)]
    args = Seq2SeqTrainingArguments(**options(str(tmp_path)))
    trainer = Seq2SeqTrainer(build(name), args, train_dataset=data, data_collator=tokenised_in(padded("right")))
    with pytest.raises(ValueError, match=f"sequence='{sequence}' of the SoftNumbers: expected SoftNumbers"):
        nm.attach(trainer, soft=SoftNumbers(tokenizer(), Bell(relative=0.1), sequence=sequence))


def test_a_loop_reads_the_tokens_of_its_soft_numbers(capsys):
    loader = DataLoader([{"text": row} for row in rows("t5")], 2, collate_fn=tokenised_in(padded("right")))
    soft = SoftNumbers(tokenizer(), Bell(relative=0.1), sequence="labels")
    loop.attach(loader, build("t5"), soft=soft, tokenizer=tokenizer(), shift=False)
    assert "on the last number of each answer: 8 of the first 8 rows" in capsys.readouterr().err
    batch = loader.collate_fn([loader.dataset[0], loader.dataset[9]])
    for line, places in enumerate(batch["soft_positions"]):
        assert bool((batch["labels"][line, places[places >= 0]] != -100).all())


def test_rows_that_are_joined(tmp_path):
    late, _ = trainers(tmp_path, "llama", {"soft": 0.3}, "right")
    inner = late.data_collator.collator
    late.data_collator.collator = lambda chosen: {name: value.reshape(1, -1) for name, value in inner(chosen).items()}
    with pytest.raises(ValueError, match="made 1 lines of 2 rows that had no tokens: expected a line for each"):
        late.data_collator([late.train_dataset[i] for i in range(2)])


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> MarianTokenizer:
    """Return a tokenizer that splits the digits of targets, and not those of inputs."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    ids = {text: i for i, text in enumerate(("</s>", "<unk>", "<pad>"))}
    for side, text in (("source", "item {0} is high"), ("target", "it costs {0}.5 euros")):
        given = folder / f"{side}.txt"
        given.write_text("\n".join(text.format(37 * i % 1000) for i in range(300)))
        spm.SentencePieceTrainer.train(
            input=given,
            model_prefix=folder / side,
            vocab_size=60,
            hard_vocab_limit=False,
            split_digits=side == "target",
            minloglevel=2,
        )
        pieces = spm.SentencePieceProcessor(str(folder / f"{side}.model"))
        for i in range(pieces.get_piece_size()):
            ids.setdefault(pieces.id_to_piece(i), len(ids))
    (folder / "vocab.json").write_text(json.dumps(ids))
    return MarianTokenizer(str(folder / "source.model"), str(folder / "target.model"), str(folder / "vocab.json"))


def test_targets_with_tokens_of_their_own(marian):
    """Numbers are encoded as targets are."""
    soft = SoftNumbers(marian, Bell(relative=0.1), sequence="labels", strict=True)
    labels = marian(text_target="it costs 250.5 euros")["input_ids"]
    assert labels != marian("it costs 250.5 euros")["input_ids"]
    drawn = {marian.decode(soft({"labels": labels}, rng=np.random.default_rng(i))["labels"]) for i in range(5)}
    assert len(drawn) > 1
    assert all(text.startswith("it costs 2") and text.endswith("euros</s>") for text in drawn), drawn
