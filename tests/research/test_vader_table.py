"""research/vader_table.py on a lexicon of a few words, the runs of its experiment, and records whose scores are known."""

from __future__ import annotations

LEXICON = "good\t2.0\t0.6\t[1, 2, 3]\nbad\t-2.0\t0.0\t[-2, -2, -2]\ngood\t2.0\t0.6\t[3, 3, 3]\n"
SURE = {"values": ["2"], "probabilities": [1.0]}
TORN = {"values": ["1", "3"], "probabilities": [0.5, 0.5]}


def record(index, word, distribution, error):
    decisions = {"median": {"answer": "1", "measures": {"absolute_error": error}}}
    measures = {"absolute_error": error, "exact": 0.0}
    about = {"split": "interpolate", "index": index, "prompt": f"word: {word}. rating?", "gold": 1.0}
    return about | {"measures": measures, "decisions": decisions, "distribution": distribution}


def test_words_and_their_ratings(script, tmp_path):
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    assert script.words(tmp_path / "lexicon.txt") == {"good": [1, 2, 3], "bad": [-2, -2, -2]}  # a word keeps its first ones
    script.write_table({"good": [1, 2, 3]}, tmp_path / "vader.csv")
    assert (tmp_path / "vader.csv").read_text().splitlines() == ["word,rating", 'good,"[1, 2, 3]"']


def test_a_distribution_against_every_rating(script):
    sure = script.against_ratings(record(0, "good", SURE, 1.0), [1, 2, 3])
    assert sure == {
        "CRPS_of_the_ratings": "0.66667",  # the mean of 1, 0 and 1
        "CRPS_of_their_mean": "1",
        "ratings_in_the_90_%_interval": "0.33333",
        "mean_error": "1",
        "median mean_error": "1",
    }
    torn = script.against_ratings(record(0, "good", TORN, 1.0), [1, 2, 3])
    assert torn["CRPS_of_the_ratings"] == "0.5"  # E|X - r| is 1 for each of the three, less half of E|X - X'|
    assert torn["ratings_in_the_90_%_interval"] == "1"
    assert script.against_ratings(record(0, "good", None, None), [1, 2]) == {"mean_error": "", "median mean_error": ""}
