"""The tree of a search, cut down to its likeliest branches: on a tree by hand, whose masses are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from numerate.decode.search import Branches, Node, search
from numerate.playground.searched import SearchedTree, TreeBranch

TABLE = {"": {"1": 0.5, "2": 0.3, "3": 0.1, "?": 0.1}, "1": {"$": 0.5, "0": 0.3, "5": 0.2}, "2": {"$": 1.0}, "3": {"$": 1.0}}


def _searched(width: int | None = None) -> SearchedTree:
    def expand(nodes: list[Node]) -> Sequence[Branches]:
        tables = [TABLE.get(node.text, {"$": 1.0}) for node in nodes]
        pieces = [sorted(piece for piece in table if piece not in "$?") for table in tables]
        return [
            Branches(own, np.array([table[piece] for piece in own]), [(node.text, table.get("$", 0.0))], table.get("?", 0.0))
            for node, table, own in zip(nodes, tables, pieces, strict=True)
        ]

    tree = SearchedTree()
    search([""], expand, width=width, covered=1.0, rest="drop", seeds=[(0,)], watch=tree)
    return tree


def _masses(branch: TreeBranch) -> dict[str, float]:
    return {child.text: child.p for child in branch.children}


def test_all_of_a_small_tree():
    root = _searched().likeliest(99, 99)
    assert _masses(root) == pytest.approx({"1": 0.5, "2": 0.3, "3": 0.1})
    one = root.children[0]
    assert _masses(one) == pytest.approx({"10": 0.15, "15": 0.1})
    assert (one.ends, one.children[0].ends, root.ends, root.others) == (pytest.approx(0.25), pytest.approx(0.15), 0, 0)
    assert all(child.searched and not child.drawn for child in (*root.children, *one.children))


def test_the_likeliest_are_kept_and_the_others_counted():
    root = _searched().likeliest(3, 99)
    assert [child.text for child in root.children] == ["1", "2"]
    assert [child.text for child in root.children[0].children] == ["10"]
    assert (root.others, root.others_p) == (1, pytest.approx(0.1))
    assert (root.children[0].others, root.children[0].others_p) == (1, pytest.approx(0.1))
    one = _searched().likeliest(99, 1)  # the limit of each prefix
    assert ([child.text for child in one.children], one.others, one.others_p) == (["1"], 2, pytest.approx(0.4))


def test_what_was_not_searched_is_marked():
    root = _searched(width=1).likeliest(99, 99)
    assert {child.text: child.searched for child in root.children} == {"1": True, "2": False, "3": False}
    assert {child.text: child.searched for child in root.children[0].children} == {"10": True, "15": False}
    assert root.to_dict()["children"][0]["text"] == "1"
