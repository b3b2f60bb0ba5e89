"""The laws of the `number` loss, as properties."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from numerate import NumberLoss, NumericVocab

TEXTS = [*"0123456789", ".", "-", " "]
DIGITS = NumericVocab.from_texts({text: i for i, text in enumerate(TEXTS)}, vocab_size=len(TEXTS))
CHUNK_TEXTS = [f"{value:0{width}d}" for width in (1, 2, 3) for value in range(10**width)] + [".", "-"]
CHUNKS = NumericVocab.from_texts({text: i for i, text in enumerate(CHUNK_TEXTS)}, vocab_size=len(CHUNK_TEXTS))
LOSS = NumberLoss(DIGITS)
SLACK = 0.99  # among certain predictions, a larger error never costs less, but for one part in a hundred

numerals = st.text("0123456789", min_size=1, max_size=12)


def ids(text: str) -> torch.Tensor:
    return torch.tensor([TEXTS.index(character) for character in text])


def certain(text: str, scale: float = 100.0) -> torch.Tensor:
    return torch.nn.functional.one_hot(ids(text), len(TEXTS)).double() * scale


def cost(label: str, guess: str) -> float:
    """Cost of a certain guess that has as many tokens as the label."""
    assert len(label) == len(guess)
    return float(LOSS(certain(guess), ids(label)))


def test_the_published_counterexample() -> None:
    assert cost("0.98", "1.01") < cost("0.98", "1.98")


def test_a_certain_error_costs_what_it_is_off_by_in_leading_places() -> None:
    assert abs(cost("200", "300") - 1) < 1e-9
    for guess, error in (("220", 0.2), ("250", 0.5), ("400", 2.0), ("700", 5.0)):
        assert abs(cost("200", guess) / error - 1) < 0.05


@given(st.data(), numerals, st.booleans(), st.booleans())
def test_larger_errors_cost_more(data: st.DataObject, label: str, point: bool, negative: bool) -> None:
    same_length = st.text("0123456789", min_size=len(label), max_size=len(label))
    near, far = sorted((data.draw(same_length) for _ in range(2)), key=lambda guess: abs(int(guess) - int(label)))
    at = data.draw(st.integers(1, len(label))) if point else len(label)

    def spelled(digits: str) -> str:
        text = f"{digits[:at]}.{digits[at:]}" if at < len(digits) else digits
        return f"-{text}" if negative else text

    assert cost(spelled(label), spelled(far)) >= SLACK * cost(spelled(label), spelled(near))


@given(st.data(), numerals)
def test_ten_times_both_changes_nothing(data: st.DataObject, label: str) -> None:
    guess = data.draw(st.text("0123456789", min_size=len(label), max_size=len(label)))
    plain = cost(label, guess)
    assert abs(cost(label + "0", guess + "0") - plain) <= 1e-9 * (1 + plain)
    for at in range(1, len(label)):
        assert abs(cost(f"{label[:at]}.{label[at:]}", f"{guess[:at]}.{guess[at:]}") - plain) <= 1e-9 * (1 + plain)


@given(numerals.filter(lambda text: int(text) > 0))
def test_the_wrong_sign_costs_at_least_as_much_as_zero(label: str) -> None:
    zero = cost(label, "0" * len(label))
    # The label is positive: the model says minus where the first digit stands, and goes on with the label's digits.
    missed = certain(label)
    missed[0] = 0
    missed[0, TEXTS.index("-")] = 200.0
    missed[0, TEXTS.index(label[0])] = 100.0
    assert float(LOSS(missed, ids(label))) >= SLACK * zero
    # The label is negative: the model says a digit where the minus stands.
    assert cost(f"-{label}", f"{label[0]}{label}") >= SLACK * cost(f"-{label}", f"-{'0' * len(label)}")


@given(st.data(), st.text("123456789", min_size=1, max_size=4))
def test_between_two_wrong_values_the_gradient_favours_the_nearer(data: st.DataObject, label: str) -> None:
    # Beyond the fourth place errors are below the finest frequency, and all that is left of a gradient is rounding.
    at = data.draw(st.integers(0, len(label) - 1))
    right = int(label[at])
    wrong = data.draw(st.sets(st.integers(0, 9).filter(lambda d: d != right), min_size=2, max_size=2))
    near, far = sorted(wrong, key=lambda d: abs(d - right))
    if abs(near - right) == abs(far - right):
        return
    logits = certain(label)
    logits[at, right] = 0.0
    logits[at, near] = logits[at, far] = 30.0
    logits.requires_grad_()
    LOSS(logits, ids(label)).backward()
    assert logits.grad is not None
    assert logits.grad[at, near] < logits.grad[at, far]


def test_300_digits_are_finite_and_still_tell_near_from_far() -> None:
    label = "7" * 300
    logits = torch.randn(300, len(TEXTS), generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = LOSS(logits, ids(label))
    value.backward()
    assert value.isfinite()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert cost(label, "7" * 299 + "0") < cost(label, "79" + "7" * 298) < cost(label, "9" + "7" * 299)


def test_a_minus_inside_a_longer_token_is_taken_as_said() -> None:
    vocab = NumericVocab.from_texts({"7": 0, "8": 1, "(-": 2, "-": 3}, vocab_size=4)
    logits = torch.eye(4, dtype=torch.float64) * 100
    loss = NumberLoss(vocab)
    assert float(loss(logits[[2, 0]], torch.tensor([2, 0]))) < 1e-9
    wrong = float(loss(logits[[0, 1]], torch.tensor([2, 0])))  # whatever stood at "(-" is not this loss's affair
    assert abs(wrong - 1) < 1e-9


def chunk_cost(label: list[str], guess: list[str]) -> float:
    logits = torch.nn.functional.one_hot(torch.tensor([CHUNK_TEXTS.index(t) for t in guess]), len(CHUNK_TEXTS)) * 100.0
    return float(NumberLoss(CHUNKS)(logits, torch.tensor([CHUNK_TEXTS.index(t) for t in label])))


def test_tokens_of_several_digits_cost_what_their_digits_would() -> None:
    for label, guess in (("12345", "12999"), ("12345", "90045"), ("12345", "12346")):
        chunked = chunk_cost([label[:3], label[3:]], [guess[:3], guess[3:]])
        assert abs(chunked - cost(label, guess)) < 1e-4 * (1 + chunked)


def test_after_the_point_digits_line_up_on_the_left() -> None:
    label = ["0", ".", "678"]
    assert chunk_cost(label, ["0", ".", "68"]) < chunk_cost(label, ["0", ".", "7"]) < chunk_cost(label, ["0", ".", "068"])


def test_a_longer_number_costs_more_than_any_of_the_label_s_length() -> None:
    for label in ("7", "42"):
        same = [chunk_cost([label], [f"{v:0{len(label)}d}"]) for v in range(10 ** len(label))]
        longer = [chunk_cost([label], [str(v)]) for v in (10 ** (len(label) + 1), 999) if v < 1000]
        grown = [chunk_cost([label], [str(v)]) for v in range(10 ** len(label) + 10 * int(label), 1000, 37)]
        assert min(longer + grown[-3:]) > SLACK * max(same)
        assert all(b >= SLACK * a for a, b in itertools.pairwise(grown))


def test_ratings_are_numbers_of_their_own() -> None:
    vocab = NumericVocab.from_values({3: -100.0, 4: 0.0, 5: 100.0, 6: 250.0}, vocab_size=8)
    loss = NumberLoss(vocab)
    costs = [float(loss(torch.eye(8)[[i]] * 100.0, torch.tensor([4]))) for i in (4, 3, 5, 6)]
    assert costs[0] < 1e-6
    assert abs(costs[1] - costs[2]) < 1e-6
    assert costs[3] > 2 * costs[2]
    assert abs(costs[2] - 1) < 1e-5  # 100 is the leading place of the largest
