"""Numbers in tokenised rows: found, drawn, replaced, with targets that are exact for any tokenizer."""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tests.samples import real_tokenizer, shared_tokenizers
from tests.targets.small import KINDS, conditionals, encoded, listed, row_targets, tokenizer

from numerate.formats.patterns import NUMBER
from numerate.targets import AnswerDistribution, Bell, CircularBell, Ratings, SoftNumbers
from numerate.targets.answer_distribution import Target

NEAR = Bell(width=1, shape="uniform")
REAL = ("smollm2", "deepseek", "mistral", "llama3", "qwen2_5", "gpt2")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_row(tokens: Any, prompt: str, answer: str, end: bool = True) -> dict[str, Any]:
    """A row that was encoded as one text, with the prompt untrained; borders of tokens and of the prompt must meet."""
    ids, start = encoded(tokens, prompt + answer), len(encoded(tokens, prompt))
    ids += [tokens.eos_token_id] if end else []
    return {"input_ids": ids, "labels": [-100] * start + ids[start:], "attention_mask": [1] * len(ids)}


def real(name: str) -> Any:
    if name in ("llama3", "qwen2_5", "gpt2") and name not in shared_tokenizers():
        pytest.skip("no shared/tokenizers here")
    return real_tokenizer(name)


def begins_with_another(label: str) -> AnswerDistribution:
    """The label, the label with a 0 behind it, and a neighbour, which may have a minus."""
    return AnswerDistribution([label, f"{label}0", str(int(label) - 2)], [0.5, 0.3, 0.2])


def certain_if_even(label: str) -> AnswerDistribution:
    """One number, which is not the label, for an even label; the label and one that begins with it for an odd one."""
    even = int(label) % 2 == 0
    return AnswerDistribution([str(int(label) + 4)] if even else [label, f"{label}7"], [1.0] if even else [0.6, 0.4])


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("The 2 of 84.50 and -7, 1,250.", ["2", "84.50", "-7", "1,250"]),
            ("x=-5, (3,5) [10,20,30] $4 5kg 6%", ["-5", "3", "5", "10", "20", "30", "4", "5", "6"]),
            ("1e5 -.5 .25 1.5.", ["1e5", "-.5", ".25", "1.5"]),
            ("A380 COVID-19 2024-11-14 14:55 555-1234 1.2.3 5th 2_55 x1 0x1F 3/4 10.0.0.1", []),
            ("a b c", []),
        ],
    )
    def test_quantities_and_what_only_looks_like_one(self, text: str, found: list[str]):
        assert [match[0] for match in NUMBER.finditer(text)] == found


class TestTokens:
    """The tokens of a drawn row are those of its text, and its targets are those of brute force over all texts."""

    @pytest.mark.parametrize("target", [NEAR, begins_with_another, certain_if_even])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("text", ["x 9 10 1", "[9,10]\n", "x 2 3 4", "x=9\n", "x 99.", "x-1 =0", "x=5 and x", "x 100"])
    def test_tokens_and_targets(self, kind: str, text: str, target: Target):
        """Also where the next number's first token, which is soft itself, ends a number: `` 2`` `` 3``, `` 2`` ``0`` `` 3``."""
        tokens = tokenizer(kind)
        soft = SoftNumbers(tokens, target, where="all")
        row, spans = make_row(tokens, "", text), [match.span() for match in NUMBER.finditer(text)]
        choices = [soft.target(text[start:end]) for start, end in spans]
        sequences, masses = [], []
        for members in itertools.product(*(zip(c.texts, c.probabilities.tolist(), strict=True) for c in choices)):
            pieces, last = "", 0
            for (start, end), (member, _) in zip(spans, members, strict=True):
                pieces, last = pieces + text[last:start] + member, end
            sequences.append([*encoded(tokens, pieces + text[last:]), 0])
            masses.append(np.prod([p for _, p in members]))
        for seed in range(12):
            drawn = soft(row, rng=rng(seed))
            assert drawn["input_ids"] in sequences
            assert drawn["labels"] == drawn["input_ids"]
            assert len(drawn["attention_mask"]) == len(drawn["input_ids"])
            expected = conditionals(drawn["input_ids"], sequences, masses)
            assert row_targets(drawn) == {
                place: pytest.approx(options, abs=1e-9) for place, options in enumerate(expected) if len(options) > 1
            }
        assert soft.left_hard == 0

    @pytest.mark.parametrize("target", [NEAR, begins_with_another, certain_if_even])
    @pytest.mark.parametrize("kind", KINDS)
    def test_labels_that_are_a_sequence_of_their_own(self, kind: str, target: Target):
        """As of an encoder-decoder: targets are those of brute force, ``decoder_input_ids`` follow, and the question stays."""
        tokens = tokenizer(kind)
        soft = SoftNumbers(tokens, target, sequence="labels")
        text, label = "x 3 99.", "99"
        labels = [*encoded(tokens, text), 0]
        row = {"input_ids": [5] * len(labels), "attention_mask": [1] * len(labels), "labels": labels}
        row |= {"decoder_input_ids": [7, *labels[:-1]], "token_weights": [0.5] * len(labels)}
        choice = soft.target(label)
        sequences = [[*encoded(tokens, text.replace(label, member)), 0] for member in choice.texts]
        for seed in range(12):
            drawn = soft({**row, "labels": [*labels, -100], "decoder_input_ids": [7, *labels]}, rng=rng(seed))
            assert drawn["labels"][-1] == -100
            drawn = soft(row, rng=rng(seed))
            assert drawn["labels"] in sequences
            assert drawn["decoder_input_ids"] == [7, *drawn["labels"][:-1]]
            assert (drawn["input_ids"], drawn["attention_mask"]) == (row["input_ids"], row["attention_mask"])
            assert len(drawn["token_weights"]) == len(drawn["labels"])
            expected = conditionals(drawn["labels"], sequences, choice.probabilities.tolist())
            assert row_targets(drawn) == {
                place: pytest.approx(options, abs=1e-9) for place, options in enumerate(expected) if len(options) > 1
            }
        assert soft.left_hard == 0
        with pytest.raises(ValueError, match="are not the labels moved by one to the right"):
            soft({**row, "decoder_input_ids": labels}, rng=rng())
        with pytest.raises(ValueError, match="expected raw labels.*For an encoder-decoder.*sequence='labels'"):
            SoftNumbers(tokens, target)(row, rng=rng())

    @pytest.mark.parametrize("name", REAL)
    def test_real_tokenizers(self, name: str):
        tokens = real(name)
        soft = SoftNumbers(tokens, Bell(width=3), where="all", end_token=tokens.eos_token_id or 0)
        for text in (
            *("The price is 99.", "x=-5, y = 3", "84.50", "It costs $1,250.00\nDone", "a (-7) b", "Temperature: -0.5°C today"),
            *("1 2 3 10 11", "[10,20,30,40]", "价格 99 元", "12\n13\n14"),
        ):
            ids = encoded(tokens, text)
            for seed in range(3):
                drawn = soft({"input_ids": ids}, rng=rng(seed))["input_ids"]
                assert encoded(tokens, tokens.decode(drawn)) == drawn
        assert soft.left_hard == 0

    @pytest.mark.parametrize("name", REAL)
    def test_prompt_and_answer_encoded_apart(self, name: str):
        """As trainers do it: the seam need not be where the tokenizer would cut the whole text."""
        tokens = real(name)
        soft, end = SoftNumbers(tokens, Bell(width=3)), tokens.eos_token_id or 0
        for prompt, answer in (("Price:", "99"), ("Price: ", "-1.5"), ("What is 3+4?\n", " 7 apples"), ("5=", "-1")):
            first, second = encoded(tokens, prompt), encoded(tokens, answer)
            label = NUMBER.search(answer)[0]
            texts = {answer.replace(label, text) for text in soft.target(label).texts}
            row = {"input_ids": [*first, *second, end], "labels": [-100] * len(first) + [*second, end]}
            for seed in range(5):
                drawn = soft(row, rng=rng(seed))
                assert drawn["input_ids"][: len(first)] == first
                assert drawn["labels"][: len(first)] == [-100] * len(first)
                assert drawn["input_ids"][-1] == end
                assert tokens.decode(drawn["input_ids"][len(first) : -1]).strip() in {text.strip() for text in texts}
        assert soft.left_hard == 0

    def test_draws_have_the_frequencies_of_the_distribution(self):
        tokens = tokenizer("triples")
        soft, generator = SoftNumbers(tokens, AnswerDistribution.from_pairs, column="pairs"), rng()
        row = {**make_row(tokens, "x=", "99"), "pairs": {"99": 0.5, "100": 0.25, "1000": 0.25}}
        drawn = Counter(tokens.decode(soft(row, rng=generator)["input_ids"][2:-1]) for _ in range(4000))
        assert {text: count / 4000 for text, count in drawn.items()} == pytest.approx(
            {"99": 0.5, "100": 0.25, "1000": 0.25}, abs=0.03
        )


class TestPaths:
    def test_width_0_leaves_the_row_as_it_is(self):
        tokens = tokenizer("triples")
        row = make_row(tokens, "x=", "0099.50")
        for path in ("drawn", "fixed"):
            out = listed(SoftNumbers(tokens, Bell(width=0))(row, rng=rng(), path=path))
            assert out == {**row, "soft_positions": [], "soft_token_ids": [], "soft_probabilities": []}
        assert SoftNumbers(tokens, Bell(width=0))(row, rng=rng(), path="jitter") == row

    def test_fixed_keeps_the_tokens(self):
        tokens = tokenizer("digits")
        row = make_row(tokens, "x=", "99")
        out = SoftNumbers(tokens, NEAR)(row, path="fixed")
        assert {name: out[name] for name in row} == row
        ids = dict(zip("0189", encoded(tokens, "0189"), strict=True))
        third = pytest.approx(1 / 3)
        assert row_targets(out) == {2: {ids["9"]: pytest.approx(2 / 3), ids["1"]: third}, 3: {ids["8"]: 0.5, ids["9"]: 0.5}}

    def test_jitter_is_the_drawn_number_without_soft_targets(self):
        tokens = tokenizer("digits")
        soft, row = SoftNumbers(tokens, Bell(width=9)), make_row(tokens, "x=", "99")
        drawn, jitter = soft(row, rng=rng(3)), soft(row, rng=rng(3), path="jitter")
        assert jitter.keys() == row.keys()
        assert jitter == {name: drawn[name] for name in row}
        assert jitter["input_ids"] != row["input_ids"]

    def test_a_number_at_the_end_of_a_row_may_have_been_cut(self):
        tokens = tokenizer("digits")
        row = {"input_ids": encoded(tokens, "x=12")}
        soft = SoftNumbers(tokens, NEAR)
        with pytest.warns(UserWarning, match="the number '12' in 'x=12' stays as it is.*end_token.*left_hard counts them"):
            assert soft(row, rng=rng())["input_ids"] == row["input_ids"]
        soft(row, rng=rng())  # warns once
        assert (soft.left_hard, soft.seen) == (2, 2)
        with pytest.raises(ValueError, match="strict=True, and the number '12'.*a token must not hold digits of two numbers"):
            SoftNumbers(tokens, NEAR, strict=True)(row, rng=rng())
        assert row_targets(SoftNumbers(tokens, NEAR, strict=True, end_token=0)(row, rng=rng()))

    def test_a_label_outside_its_own_distribution(self):
        tokens = tokenizer("digits")
        soft, row = SoftNumbers(tokens, Bell(width=5, lowest=3)), make_row(tokens, "x=", "1")
        assert row_targets(soft(row, rng=rng()))
        with pytest.raises(ValueError, match="'1' has no probability in its own distribution.*use path='drawn', hard=0.1"):
            soft(row, path="fixed")

    def test_the_row_given_is_left_alone_and_repeated_calls_agree(self):
        tokens = tokenizer("joined")
        soft, row = SoftNumbers(tokens, NEAR, where="all"), make_row(tokens, "", "x 9 10 9")
        before = pickle.dumps(row)
        first = listed(soft(row, rng=rng(1)))
        soft(row, rng=rng(2))
        assert listed(soft(row, rng=rng(1))) == first
        assert pickle.dumps(row) == before
        assert listed(pickle.loads(pickle.dumps(soft))(row, rng=rng(1))) == first


class TestWhere:
    TEXT = "id 7: 40 of 50\n"

    def changed(self, soft: SoftNumbers, row: dict[str, Any]) -> list[str]:
        """Numbers of the text that are drawn, each as the label has it."""
        places = {place for seed in range(12) for place in row_targets(soft(row, rng=rng(seed), path="fixed"))}
        kept = soft(row, path="fixed")["input_ids"]
        text = tokenizer("digits").decode(kept)
        return [match[0] for match in re.finditer(r"\d+", text) if places & {*range(*match.span())}]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"where": "answer"}, ["50"]),
            ({"where": "all"}, ["7", "40", "50"]),
            ({"where": "all", "keep": r"id \d+"}, ["40", "50"]),
            ({"where": "answer", "keep": re.compile("50")}, ["40"]),
            ({"where": re.compile(r": (\d+)")}, ["40"]),
            ({"where": re.compile(r"\d0")}, ["40", "50"]),
        ],
    )
    def test_which_numbers_are_meant(self, options, expected: list[str]):
        tokens = tokenizer("digits")
        assert self.changed(SoftNumbers(tokens, NEAR, **options), make_row(tokens, "", self.TEXT)) == expected

    @pytest.mark.parametrize(("unit", "spans"), [("characters", [[2, 5]]), ("tokens", [[6, 8]])])
    def test_marked_spans(self, unit, spans):
        tokens = tokenizer("digits")
        soft = SoftNumbers(tokens, NEAR, where="marked", unit=unit)
        row = {**make_row(tokens, "id 7", self.TEXT[4:]), "number_spans": spans}
        assert soft.text(row)[1:5] == " 40 "
        out = soft(row, path="fixed")
        assert "number_spans" not in out
        assert self.changed(soft, row) == ["40"]

    @pytest.mark.parametrize(
        ("unit", "spans", "message"),
        [
            ("characters", [[0, 99]], "number_spans holds .0, 99.: expected 0 <= start < end <= 12"),
            ("tokens", [[0, 1]], "expected trained tokens, and one of these has the label -100"),
            ("tokens", [[6, 8], [7, 8]], "is empty or overlaps another"),
            ("characters", None, "the row has no column 'number_spans'"),
        ],
    )
    def test_marked_spans_are_checked(self, unit, spans, message: str):
        tokens = tokenizer("digits")
        row = {**make_row(tokens, "id 7", self.TEXT[4:]), "number_spans": spans}
        with pytest.raises(ValueError, match=message):
            SoftNumbers(tokens, NEAR, where="marked", unit=unit)(row, rng=rng())

    def test_a_number_of_the_prompt_is_never_meant(self):
        tokens = tokenizer("digits")
        soft = SoftNumbers(tokens, NEAR, where="all")
        row = make_row(tokens, "40 and 4", "0 or 50\n")  # the mask cuts a number
        assert self.changed(soft, row) == ["50"]

    def test_masks_instead_of_labels(self):
        tokens = tokenizer("digits")
        ids = encoded(tokens, "5+4=9\n")
        row = {"input_ids": ids, "completion_mask": [0, 0, 0, 0, 1, 1], "assistant_masks": [1] * 6}
        out = SoftNumbers(tokens, NEAR, where="all")(row, rng=rng(1))
        assert "labels" not in out
        assert tokens.decode(out["input_ids"]).startswith("5+4=")
        assert set(row_targets(out)) <= {4, 5}
        assert len(out["completion_mask"]) == len(out["assistant_masks"]) == len(out["input_ids"])

    def test_times(self):
        tokens = tokenizer("triples")
        soft = SoftNumbers(tokens, CircularBell.clock(2, hours=24, shape="uniform"))
        row = make_row(tokens, "At ", "23:59.")
        drawn = {tokens.decode(soft(row, rng=rng(seed))["input_ids"][:-1]) for seed in range(40)}
        assert drawn == {f"At {time}." for time in ("23:57", "23:58", "23:59", "00:00", "00:01")}

    def test_raters_of_a_column(self):
        tokens = tokenizer("triples")
        soft = SoftNumbers(tokens, Ratings(), column="ratings")
        row = {**make_row(tokens, "good: ", "2.2"), "ratings": [1, 3, 3]}
        drawn = [listed(soft(row, rng=rng(seed))) for seed in range(30)]
        assert "ratings" not in drawn[0]
        assert {tokens.decode(out["input_ids"][6:-1]) for out in drawn} == {"1", "3"}
        assert [listed(SoftNumbers(tokens, Ratings("ratings"))(row, rng=rng(seed))) for seed in range(30)] == drawn
        many = SoftNumbers(tokens, Ratings(), where="all", column="ratings")
        row = {**make_row(tokens, "a ", "2 and 5\n"), "ratings": [[1, 1], [4, 4]]}
        assert tokens.decode(many(row, rng=rng())["input_ids"][:-1]) == "a 1 and 4\n"
        with pytest.raises(ValueError, match="for 2 numbers: expected a list of one entry for each"):
            many({**row, "ratings": [[1]]}, rng=rng())
        with pytest.raises(ValueError, match="the row has no column 'ratings', only 'input_ids'"):
            many(make_row(tokens, "a ", "2"), rng=rng())

    def test_labels_of_a_column_that_look_alike(self):
        """The texts of long arrays and of distributions leave out what differs."""
        tokens = tokenizer("triples")
        row = make_row(tokens, "good: ", "2")
        raters = SoftNumbers(tokens, Ratings("ratings"))
        made = SoftNumbers(tokens, lambda answers: answers, column="answers")
        answers = [AnswerDistribution([*"12345"], p) for p in ([1, 1, 1, 1, 4], [1, 1, 1, 1, 4.0001])]
        assert repr(answers[0]) == repr(answers[1])
        for score, drawn in ((3, answers[0]), (4, answers[1])):
            ratings = np.array([2] * 3 + [score] * 2000 + [2] * 3)
            targets = row_targets(raters({**row, "ratings": ratings}, rng=rng()))
            assert {tokens.decode(token_id) for found in targets.values() for token_id in found} == {"2", str(score)}
            found = made({**row, "answers": drawn}, rng=rng())["soft_probabilities"]
            np.testing.assert_allclose(found, drawn.probabilities, rtol=1e-12)
        assert [*raters({**row, "ratings": [5] * 9}, rng=rng())["soft_positions"]] == []

    def test_labels_of_a_column_that_cannot_be_told_apart(self):
        soft = SoftNumbers(tokenizer("digits"), lambda scale: Bell(scale())("5"), column="scale")
        with pytest.raises(TypeError, match=r"'scale' that cannot be pickled \(.*lambda.*\): expected plain values"):
            soft({**make_row(tokenizer("digits"), "x=", "5"), "scale": lambda: 1}, rng=rng())


class TestRows:
    def test_columns_with_an_entry_for_each_token_follow(self):
        tokens = tokenizer("digits")
        ids = encoded(tokens, "x=9;y=9\n")
        row = {
            "input_ids": torch.tensor(ids),
            "labels": np.array([-100, -100, *ids[2:]]),
            "attention_mask": [1] * 8,
            "token_weights": torch.tensor([0.0, 0.0, 2.0, 1.0, 1.0, 1.0, 3.0, 1.0]),
            "position_ids": [*range(8)],
            "image": "as it is",
            "other": [1, 2],
        }
        soft = SoftNumbers(tokens, AnswerDistribution.from_pairs, where="all", column="pairs", mask=True)
        out = soft({**row, "pairs": [{"1000": 1.0}, {"10": 1.0}]}, rng=rng())
        text = "x=1000;y=10\n"
        assert tokens.decode(out["input_ids"]) == text
        assert isinstance(out["input_ids"], torch.Tensor)
        assert isinstance(out["labels"], np.ndarray)
        assert out["labels"].tolist() == [-100, -100, *encoded(tokens, text)[2:]]
        assert out["token_weights"].tolist() == [0, 0, 2, 2, 2, 2, 1, 1, 1, 3, 3, 1]
        assert out["position_ids"] == [*range(12)]
        assert out["position_weights"] == [0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0]
        assert (out["image"], out["other"], out["attention_mask"]) == ("as it is", [1, 2], [1] * 12)

    def test_numbers_that_get_shorter(self):
        tokens = tokenizer("digits")
        row = {**make_row(tokens, "x=", "1000;y", end=False), "position_ids": [3, 4, 5, 6, 7, 8, 9, 10]}
        out = SoftNumbers(tokens, lambda label: AnswerDistribution.point("7"))(row, rng=rng())
        assert tokens.decode(out["input_ids"]) == "x=7;y"
        assert out["position_ids"] == [3, 4, 5, 6, 7]

    @pytest.mark.parametrize("known", ["seq_lengths", "position_ids"])
    def test_packed_rows_have_an_answer_for_each_document(self, known: str):
        tokens = tokenizer("digits")
        parts = [encoded(tokens, text) for text in ("1+8=9\n", "a 9 b 99\n")]
        row: dict[str, Any] = {"input_ids": [*parts[0], *parts[1]]}
        row |= {"seq_lengths": [6, 9]} if known == "seq_lengths" else {"position_ids": [*range(6), *range(9)]}
        soft = SoftNumbers(tokens, lambda label: AnswerDistribution.point({"9": "10", "99": "100"}[label]))
        out = soft(row, rng=rng())
        assert tokens.decode(out["input_ids"]) == "1+8=10\na 9 b 100\n"
        assert out[known] == ([7, 10] if known == "seq_lengths" else [*range(7), *range(10)])

    def test_a_mask_covers_hard_numbers_too(self):
        tokens = tokenizer("digits")
        row = {**make_row(tokens, "x=", "99;", end=False), "position_weights": [5.0] * 5}
        out = SoftNumbers(tokens, Bell(width=0), mask=True)(row, rng=rng())
        assert out["position_weights"] == [0, 0, 5, 5, 0]

    def test_targets_only_where_the_row_is_trained(self):
        """An end token without a label gets no target, and still counts in that of the digits."""
        tokens = tokenizer("digits")
        row = make_row(tokens, "x=", "9")
        row["labels"][-1] = -100
        soft = SoftNumbers(tokens, AnswerDistribution.from_pairs, column="pairs")
        outs = [soft({**row, "pairs": {"9": 0.5, "99": 0.5}}, rng=rng(seed)) for seed in range(8)]
        long = next(out for out in outs if len(out["input_ids"]) == 5)
        short = next(out for out in outs if len(out["input_ids"]) == 4)
        assert row_targets(long) == {3: {0: 0.5, encoded(tokens, "9")[0]: 0.5}}
        assert row_targets(short) == {}

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"labels": [1]}, "the row has no 'input_ids', only 'labels'"),
            ({"input_ids": [5, 6], "labels": [6, -100]}, "labels has 6 at position 0, where input_ids has 5: expected raw"),
            ({"input_ids": [5, 6], "labels": [5]}, "labels has 1 entries and input_ids 2"),
            ({"input_ids": [[5, 6]]}, "has more than one dimension"),
            ({"input_ids": [5, 6], "seq_lengths": [1]}, "seq_lengths=.1. sums to 1: expected 2"),
            ({"input_ids": [5, 6], "position_ids": [0]}, "position_ids has 1 entries for 2 tokens"),
        ],
    )
    def test_rows_are_checked(self, row, message: str):
        with pytest.raises(ValueError, match=message):
            SoftNumbers(tokenizer("digits"), NEAR)(row, rng=rng())


class TestHard:
    def test_tokens_that_the_tokenizer_does_not_make(self):
        tokens = tokenizer("triples")
        ids = [*encoded(tokens, "x="), *encoded(tokenizer("digits"), "99"), 0]
        soft = SoftNumbers(tokens, NEAR)
        with pytest.warns(UserWarning, match="stays as it is: the tokenizer does not reproduce"):
            assert soft({"input_ids": ids}, rng=rng())["input_ids"] == ids

    def test_a_row_without_a_number(self):
        soft = SoftNumbers(tokenizer("digits"), NEAR)
        with pytest.warns(UserWarning, match="no number in the trained text 'hm"):
            out = soft(make_row(tokenizer("digits"), "5: ", "hm"), rng=rng())
        assert len(out["soft_positions"]) == 0

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda t: SoftNumbers("gpt2", NEAR), "tokenizer is a str: expected a Hugging Face tokenizer"),
            (lambda t: SoftNumbers(t, 5), "target=5 cannot be called"),
            (lambda t: SoftNumbers(t, NEAR, where="anser"), "Did you mean 'answer'"),
            (lambda t: SoftNumbers(t, NEAR, end_token=-1), "end_token=-1 is out of range: expected a token id"),
            (lambda t: SoftNumbers(t, NEAR)({"input_ids": [5]}), "rng=None: expected np.random.default_rng"),
            (lambda t: SoftNumbers(t, NEAR)({"input_ids": [5]}, rng=rng(), path="x"), "path='x' is not known"),
            (lambda t: SoftNumbers(t, str)(make_row(t, "", "5"), rng=rng()), "is a str: expected an AnswerDistribution"),
        ],
    )
    def test_settings_are_checked(self, call, message: str):
        with pytest.raises((TypeError, ValueError), match=message):
            call(tokenizer("digits"))


def test_numbers_are_read_without_being_drawn():
    tokens = tokenizer("digits")
    soft, row = SoftNumbers(tokens, NEAR, where="all"), make_row(tokens, "40 and ", "7 of 50\n")
    assert soft.numbers(row) == ["7", "50"]
    assert soft.seen == 0
