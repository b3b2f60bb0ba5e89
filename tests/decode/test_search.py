"""The search on trees given by tables, and the thinning of its nodes: nothing is lost, and nothing is biased."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numerate.decode.search import Answers, Branches, Node, search, thin_out

Weights = hnp.arrays(np.float64, st.integers(2, 60), elements=st.floats(1e-9, 1.0))


class _Offset(np.random.Generator):
    """A generator whose one draw is known."""

    def __init__(self, offset: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.offset = offset

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self.offset


@settings(max_examples=20)
@given(hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(0.01, 1.0)), st.data())
def test_thinning_is_unbiased(weights: np.ndarray, data: st.DataObject) -> None:
    """The mean over all offsets of the one draw is the weight of each node."""
    width, offsets = data.draw(st.integers(1, len(weights) - 1)), 400
    mean = np.zeros(len(weights))
    for offset in range(offsets):
        index, kept, _ = thin_out(weights, width, _Offset((offset + 0.5) / offsets))
        mean[index] += kept / offsets
    np.testing.assert_allclose(mean, weights, atol=weights.sum() / offsets * 2)


def _tree(tables: Mapping[str, Mapping[str, float]]) -> Callable[[list[Node]], list[Branches]]:
    """Branches from tables: a text that is a key goes on, ``$`` ends it, ``?`` is nothing, ``+`` is too long."""

    def expand(nodes: list[Node]) -> list[Branches]:
        found = []
        for node in nodes:
            table = tables[node.text]
            pieces = sorted(piece for piece in table if piece not in "$?+")
            answers = [(node.text, table["$"])] if "$" in table else []
            shares = np.array([table[piece] for piece in pieces])
            found.append(Branches(pieces, shares, answers, table.get("?", 0.0), table.get("+", 0.0)))
        return found

    return expand


TABLES = {
    "": {"1": 0.5, "2": 0.3, "-": 0.1, "?": 0.1},
    "1": {"$": 0.5, "0": 0.25, "5": 0.25},
    "2": {"$": 0.9, "+": 0.1},
    "-": {"3": 0.5, "?": 0.5},
    "10": {"$": 0.8, "+": 0.2},
    "15": {"$": 1.0},
    "-3": {"$": 1.0},
}


def _search(width: int | None = None, covered: float = 1.0, rest: str = "draw", seed: int = 0) -> Answers:
    return search([""], _tree(TABLES), width=width, covered=covered, rest=rest, seeds=[(seed,)])[0]  # type: ignore[arg-type]


def _total(found: Answers) -> float:
    return sum(found.leaves.values()) + found.more_digits + found.no_number + found.not_searched


def test_a_table_by_hand() -> None:
    found = _search()
    assert found.leaves == pytest.approx({"1": 0.25, "10": 0.1, "15": 0.125, "2": 0.27, "-3": 0.05})
    assert (found.more_digits, found.no_number) == pytest.approx((0.055, 0.15))
    assert found.not_searched == found.drawn == 0
    distribution = found.distribution(int)
    assert distribution is not None
    assert distribution.covered == pytest.approx(0.795)
    assert [int(value) for value in distribution.values] == [-3, 1, 2, 10, 15]


@pytest.mark.parametrize("width", [1, 2])
def test_drawn_nodes_are_right_on_average(width: int) -> None:
    exact, repeats = _search(), 1000
    mean = dict.fromkeys(exact.leaves, 0.0)
    for seed in range(repeats):
        found = _search(width, seed=seed)
        assert found.not_searched == 0
        assert _total(found) == pytest.approx(1)
        for text, mass in found.leaves.items():
            mean[text] += mass / repeats
    assert mean == pytest.approx(exact.leaves, abs=0.04)  # 4 standard errors


def test_a_text_that_stands_for_nothing_is_no_number() -> None:
    distribution = _search().distribution(lambda text: None if text == "2" else int(text))
    assert distribution is not None
    assert distribution.no_number == pytest.approx(0.15 + 0.27)


ROUNDED = hnp.arrays(np.float64, st.integers(2, 60), elements=st.sampled_from([1.0, 1 / 3, 1e-8, 1e-16, 1e-30]))
HALF_TINY = np.array([1.0, 1.0, 1e-16, 1e-16, 1.0, 1e-16, 1e-16, 1.0, 1.0, 1.0, 1e-16, 1.0])


@example(np.array([1.0, 1e-30, 1e-30]), 1, 0.0)  # the light ones vanish beside the heavy one
@example(np.array([1.0, 0.5, 1e-30]), 2, 0.0)
@example(np.ones(3), 2, np.nextafter(1, 0))  # the last point is rounded up to the sum
@example(HALF_TINY * 0.83598805, 7, np.nextafter(1, 0))  # two points fall on one node
@given(ROUNDED | Weights, st.integers(1, 59), st.sampled_from([0.0, 0.5, np.nextafter(1, 0)]))
def test_thinning_keeps_the_sum_and_the_heavy_ones(weights: np.ndarray, width: int, offset: float) -> None:
    width = min(width, len(weights) - 1)
    index, kept, exact = thin_out(weights, width, _Offset(offset))
    assert 0 < len(index) <= width
    assert (np.diff(index) > 0).all()
    assert 0 <= index[0] <= index[-1] < len(weights)
    assert kept.sum() == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_array_equal(kept[exact], weights[index[exact]])
    lightest = kept[exact].min() if exact.any() else np.inf
    assert (kept[~exact] <= lightest * (1 + 1e-9)).all()  # only what is lighter than a drawn one is drawn
    left_out = np.setdiff1d(np.arange(len(weights)), index)
    assert not len(left_out) or weights[left_out].max() <= (kept.min() * (1 + 1e-9))


Table = dict[str, dict[str, float]]


def _random_tree(seed: int) -> Table:
    """Tables as ``TABLES``: a text of up to four characters goes on, ends, is nothing or too long, with any probabilities."""
    random = np.random.default_rng(seed)
    tables: Table = {}
    texts = [""]
    while texts:
        text = texts.pop()
        pieces = [*"12", *("?+" if not text else "$?+")] if len(text) < 4 else ["$", "?"]
        masses = random.choice([0.0, 0.01, 0.3, 1.0, 7.0], len(pieces))
        masses[0] += not masses.any()
        tables[text] = dict(zip(pieces, (masses / masses.sum()).tolist(), strict=True))
        texts += [text + piece for piece in pieces if piece in "12"]
    return tables


def _by_brute_force(tables: Table) -> tuple[dict[str, float], dict[str, float]]:
    """The probability of each text as a beginning, and as an answer."""
    begun = {"": 1.0}
    for text in sorted(tables, key=len):
        begun |= {text + piece: begun[text] * p for piece, p in tables[text].items() if piece in "12"}
    return begun, {text: begun[text] * table["$"] for text, table in tables.items() if begun[text] * table.get("$", 0.0)}


@given(st.integers(0, 10**6), st.sampled_from([None, 1, 2, 3]), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_search_keeps_the_likeliest_and_accounts_for_the_rest(seed: int, width: int | None, covered: float) -> None:
    tables = _random_tree(seed)
    begun, answers = _by_brute_force(tables)
    levels: list[list[Node]] = []
    found = search(
        *([""], _tree(tables)),
        width=width,
        covered=covered,
        rest="drop",
        seeds=[(0,)],
        watch=lambda nodes, _: levels.append([*nodes]),
    )[0]
    assert _total(found) == pytest.approx(1)
    assert found.leaves == {text: pytest.approx(answers.get(text, 0.0)) for text in found.leaves}
    for nodes, following in zip(levels, [*levels[1:], []], strict=True):
        searched = {node.text for node in following}
        open_ = {node.text + piece for node in nodes for piece in "12"} & begun.keys()
        assert len(searched) <= (width or 99)
        assert all(begun[left] <= begun[kept] * (1 + 1e-9) for left in open_ - searched for kept in searched)
        assert all(node.mass == pytest.approx(begun[node.text]) for node in following)
        parents = [(nodes[node.parent], "12"[node.branch]) for node in following]
        assert [node.text for node in following] == [parent.text + piece for parent, piece in parents]
    if width is None:
        assert found.not_searched <= (1 - covered) * (tables[""]["1"] + tables[""]["2"]) + 1e-12
    if width is None and covered == 1:
        assert {text: mass for text, mass in found.leaves.items() if mass} == pytest.approx(answers)


def test_tokens_are_known_only_of_answers_that_they_spell() -> None:
    """Not of an answer that a longer token ends, nor where a full stop was taken off; of several ways each."""
    tables: Mapping[str, Branches] = {
        "": Branches(["1", "12"], np.array([0.5, 0.3]), [("9", 0.2)], token_ids=[1, 12]),  # a token "9\n" ends the answer
        "1": Branches(["2", "2."], np.array([0.8, 0.1]), [("1", 0.1)], token_ids=[2, 20]),
        "12": Branches([], np.empty(0), [("12", 0.9), ("125", 0.1)]),  # a token "5\n"
        "12.": Branches([], np.empty(0), [("12", 1.0)]),
    }
    roots: list[Node] = []

    def expand(nodes: list[Node]) -> list[Branches]:
        roots.extend(node for node in nodes if node.branch < 0)
        return [tables[node.text] for node in nodes]

    found = search([""], expand, width=None, covered=1.0, rest="draw", seeds=[(0,)])[0]
    assert found.leaves == pytest.approx({"9": 0.2, "1": 0.05, "12": 0.4 * 0.9 + 0.3 * 0.9 + 0.05, "125": 0.07})
    assert found.written == {"1": {(1,): pytest.approx(0.05)}, "12": {(12,): pytest.approx(0.27), (1, 2): pytest.approx(0.36)}}
    assert found.not_searched == found.more_digits == found.no_number == 0
    assert [root.text for root in roots] == [""]
