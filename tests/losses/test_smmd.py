"""SMMD has the paper's known weaknesses; ``variant="repaired"`` has none of them."""

import pytest
import torch

from numerate import NumericVocab, SMMDLoss
from numerate.losses.kernels import distances, gram_matrix, squashed

DIGITS = NumericVocab.from_texts({str(i): i for i in range(10)}, vocab_size=10)
THOUSAND = NumericVocab.from_texts({str(i): i for i in range(1000)}, vocab_size=1000)


def certain_costs(loss: SMMDLoss, label: int) -> torch.Tensor:
    """Cost of each certain answer, where ``label`` is right."""
    size = loss.vocab.size
    return loss(torch.eye(size, dtype=torch.float64) * 1000, torch.full((size,), label), reduction="none")


def test_published_costs_of_digits() -> None:
    costs = certain_costs(SMMDLoss(DIGITS), 0)
    assert costs[6].item() == pytest.approx(2.669, abs=1e-3)
    assert costs[9].item() == pytest.approx(2.474, abs=1e-3)
    assert SMMDLoss(DIGITS).alpha == pytest.approx(0.118, abs=1e-3)


def test_published_form_is_not_monotone_and_the_repaired_one_is() -> None:
    assert bool((certain_costs(SMMDLoss(DIGITS), 0).diff() < 0).any())
    for vocab, labels in ((DIGITS, range(10)), (THOUSAND, (0, 1, 250, 998, 999))):
        loss = SMMDLoss(vocab, variant="repaired")
        for label in labels:
            costs = certain_costs(loss, label)
            assert bool((costs[label:].diff() >= 0).all())
            assert bool((costs[: label + 1].diff() <= 0).all())


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "energy"])
@pytest.mark.parametrize("vocab", [DIGITS, THOUSAND], ids=["digits", "thousand"])
def test_grams_are_positive_semi_definite(kernel: str, vocab: NumericVocab) -> None:
    plain = distances(vocab.values)
    for distance in (plain, squashed(plain, 9.0)):
        assert torch.linalg.eigvalsh(gram_matrix(distance, kernel, 2.0))[0] > -1e-9


def test_a_gram_of_ones_own() -> None:
    features = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = SMMDLoss(DIGITS, kernel=features @ features.T, terms="mmd")
    logits, label = torch.randn(1, 10, dtype=torch.float64), torch.tensor([3])
    residual = logits.softmax(-1)[0] - torch.eye(10, dtype=torch.float64)[3]
    assert torch.allclose(own(logits, label), (features.T @ residual).square().sum())


def test_ablations_are_seeded() -> None:
    for ablation in ("random", "shuffled"):
        one, same, other = (SMMDLoss(THOUSAND, ablation=ablation, seed=seed).gram for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert not torch.equal(one, SMMDLoss(THOUSAND).gram)


def test_second_derivatives():
    """The gradient reuses a product of the forward pass; a derivative of it must not."""
    loss = SMMDLoss(DIGITS).double()
    z = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([2, 9, 0])
    assert torch.autograd.gradcheck(lambda logits: loss(logits, labels), z)
    assert torch.autograd.gradgradcheck(lambda logits: loss(logits, labels), z)
