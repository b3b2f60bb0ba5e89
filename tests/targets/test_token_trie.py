"""Conditionals of tokens, against brute force; drawn paths; and the gradient of the cross-entropy over complete numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tests.targets.small import KINDS, conditionals, encoded, tokenizer

from numerate.targets import AnswerDistribution, Bell, CircularBell, TokenTrie

CASES = {
    "99,900 against 100,000": (Bell(relative=0.05), "99,900"),
    "99900 against 100000": (Bell(relative=0.05, shape="laplace"), "99900"),
    "negative": (Bell(width=8), "-3"),
    "decimals": (Bell(width=0.7, lowest=0), "9.95"),
    "round midnight": (CircularBell.clock(width=10, hours=24), "23:59"),
    "a dial": (CircularBell.clock(width=10), "12_58"),
}


def _trie(kind: str, answers: AnswerDistribution) -> TokenTrie:
    tokens = tokenizer(kind)
    return TokenTrie([[*encoded(tokens, text), tokens.eos_token_id] for text in answers.texts], answers.probabilities)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_conditionals_are_those_of_brute_force(kind: str, case: str):
    target, label = CASES[case]
    answers = target(label)
    trie = _trie(kind, answers)
    sequences = [[*encoded(tokenizer(kind), text), 0] for text in answers.texts]
    masses = answers.probabilities.tolist()
    for index in {0, answers.texts.index(label), len(sequences) // 3, len(sequences) - 1}:
        path = trie.path(sequences[index])
        for ours, theirs in zip(path.targets, conditionals(sequences[index], sequences, masses), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)
            assert sum(ours.values()) == pytest.approx(1, abs=1e-12)
        product = np.prod([options[token] for token, options in zip(path.token_ids, path.targets, strict=True)])
        assert product == pytest.approx(masses[index], rel=1e-9)


def test_a_drawn_path_has_the_frequencies_of_the_distribution():
    trie, rng = _trie("digits", Bell(width=2, shape="uniform")("99")), np.random.default_rng(0)
    counts = Counter(tuple(trie.draw(rng).token_ids) for _ in range(5000))
    assert chisquare([counts[ids] for ids in trie.sequences], trie.probabilities * 5000).pvalue > 0.001


def test_texts_with_the_same_tokens_are_merged():
    trie = TokenTrie([[1, 0], [1, 0], [2, 0]], [0.25, 0.25, 0.5])
    assert len(trie) == 2
    assert trie.path([1, 0]).targets == [{1: 0.5, 2: 0.5}, {0: 1.0}]


@pytest.mark.parametrize("sequences", [[[1], [1, 2]], [[1, 2], [1]], [[]], [[], [1]]])
def test_a_sequence_with_which_another_begins(sequences):
    with pytest.raises(ValueError, match="with which another one begins, or which is empty.*append the end token"):
        TokenTrie(sequences, [1.0] * len(sequences))


def test_paths_that_are_none():
    trie = TokenTrie([[1, 2, 0], [1, 3, 0]], [1, 1])
    with pytest.raises(ValueError, match=r"leaves the sequences at position 1: expected the tokens of one of the 2 answers"):
        trie.path([1, 9, 0])
    with pytest.raises(ValueError, match="ends before the answer does"):
        trie.path([1, 2])
    with pytest.raises(ValueError, match="probabilities has shape"):
        TokenTrie([[1, 0]], [1, 1])


def test_the_gradient_over_all_paths_is_that_of_the_cross_entropy_over_numbers():
    """Soft cross-entropy along every path, weighed by its probability, against -sum P(number) log p(number), by enumeration."""
    answers = Bell(width=3)("9")
    trie, size = _trie("digits", answers), len(tokenizer("digits"))
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(size + 1, 6, dtype=torch.float64)
    cell = torch.nn.GRU(6, 6, batch_first=True, dtype=torch.float64)
    head = torch.nn.Linear(6, size, dtype=torch.float64)
    parameters = [*embedding.parameters(), *cell.parameters(), *head.parameters()]

    def log_probabilities(token_ids: tuple[int, ...]) -> torch.Tensor:
        before = torch.tensor([[size, *token_ids[:-1]]])
        return head(cell(embedding(before))[0])[0].log_softmax(-1)  # [T, V]

    soft, whole = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for token_ids, mass in zip(trie.sequences, trie.probabilities.tolist(), strict=True):
        scores = log_probabilities(token_ids)
        whole = whole - mass * scores[range(len(token_ids)), token_ids].sum()
        for place, options in enumerate(trie.path(token_ids).targets):
            soft = soft - mass * sum(q * scores[place, token] for token, q in options.items())
    torch.testing.assert_close(soft, whole, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(soft, parameters, retain_graph=True), torch.autograd.grad(whole, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
