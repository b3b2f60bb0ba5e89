"""Compare NTLLoss.released with the package ntloss: value and gradient on random cases, with the cause of every difference.

    python scripts/compare_ntloss.py --cases 20000 --seed 0 [--json differences.json]

Needs ``ntloss`` (0.3.x), transformers and this package. Each case draws a kind, a vocabulary, a dtype, a shape, logits,
labels, weights and a reduction, and answers two questions:

    formula     Do both agree in float64? If not, the case must have one of the causes listed in ``CAUSES``.
    exactness   At the case's dtype, which one is nearer to its float64 result, by value and by gradient?
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import ntloss
import torch
import torch.nn.functional as F
from torch import Tensor

import numerate as nm

KINDS = ("was", "mse", "mae", "huber", "number")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TEXT = ("the", "of", ",", "-", "+", "e", "Ġ", "Ġ-", "Ġ7", "Ġ42", "½", "x", "y", ")", "(")
FUNCTIONS = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}

CAUSES = {
    "cancellation": "reweigh: if text has little mass, ntloss rounds 1 - m even in float64; numerate computes no difference",
    "rounding": "answers so certain that cost and gradient are rounding errors of float64, in both",
    "padded": "logits wider than the vocabulary: ntloss raises, numerate reads the columns of its vocabulary",
    "point": "float_level=True: ntloss reads 12.34 as 1234, numerate as 12.34",
    "power": "float_level=True: 7e3 is one number to numerate, and two to ntloss",
    "tokens": "tokens such as 1e3, 0.5, 1_0 or a full-width digit: numbers to ntloss, text to numerate",
    "long": "a number of more than 20 digits: ntloss has no powers of ten for it",
    "epsilon": "kind number: ntloss adds the dtype's epsilon to |Y| + |Ŷ|, numerate 1.2e-7 in units of the leading place",
    "half": "kinds huber and, before torch 2.13, mse: ntloss cannot differentiate them in half precision, with float32 targets",
}


class Tokenizer:
    """The part of a Hugging Face tokenizer that ntloss uses."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.ids = {text: i for i, text in enumerate(texts)}

    def __len__(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        """Return token ids by text."""
        return dict(self.ids)

    def add_tokens(self, texts: list[str]) -> int:
        """Check that the tokens exist."""
        assert all(text in self.ids for text in texts), "every vocabulary here has the ten digits"
        return 0

    def convert_tokens_to_ids(self, text: str) -> int:
        """Return the id of a token."""
        return self.ids[text]


def vocabularies(rng: random.Random) -> dict[str, list[str]]:
    """Return the token texts of each vocabulary, in random order."""
    digits = [str(d) for d in range(10)]
    plain = [*digits, ".", *TEXT]
    chunks = [*(str(v) for v in range(1000)), ".", *TEXT]
    zeros = [*digits, *(f"{v:02d}" for v in range(100)), "007", "000", "1999", ".", *TEXT]
    odd = [*digits, "12", "1e3", "0.5", "1_0", "３", ".", *TEXT]
    texts_of = {"digits": plain, "chunks": chunks, "leading zeros": zeros, "odd tokens": odd}
    return {name: rng.sample(texts, len(texts)) for name, texts in texts_of.items()}


def settings_of(case: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments that build the losses of a case."""
    return *(case[key] for key in ("kind", "digit_level", "reweigh", "squash", "float_level")), tuple(case["texts"])


@cache
def their_loss(
    kind: str, digit_level: bool, reweigh: bool, squash: float | None, float_level: bool, texts: Any, wide: bool
) -> Any:
    """Build the loss of ntloss, with its tables in float64 if ``wide``."""
    tokenizer = Tokenizer(texts)
    if kind == "was":
        loss = ntloss.NTLoss(tokenizer, digit_level=digit_level, reweigh=reweigh, squash_factor=squash)
    elif kind == "number":
        loss = ntloss.NumberLevelLoss(tokenizer, float_level=float_level, reweigh=reweigh)
    else:
        loss = ntloss.NTLossDotProduct(tokenizer, digit_level=digit_level, reweigh=reweigh, loss_function=FUNCTIONS[kind])
    if wide:  # its tables are float32
        for table in ("number_values", "number_values_dense", "max_dist", "powers_of_10"):
            if hasattr(loss, table):
                setattr(loss, table, getattr(loss, table).double())
        if kind == "was":
            loss.setup_distance_lookup(squash)
    return loss


@cache
def our_loss(kind: str, digit_level: bool, reweigh: bool, squash: float | None, float_level: bool, texts: Any) -> nm.NTLLoss:
    """Build the loss of numerate."""
    ids = {text.replace("Ġ", " "): i for i, text in enumerate(texts)}
    more: dict[str, Any] = {"squash": squash} if kind == "was" else {"numbers": "values"} if float_level else {}
    vocab = nm.NumericVocab.from_texts(ids, vocab_size=len(ids))
    return nm.NTLLoss.released(vocab, kind=kind, digit_level=digit_level, reweigh=reweigh, **more)


def theirs(case: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return value and gradient of ntloss."""
    loss = their_loss(*settings_of(case), dtype == torch.float64)
    loss._vocab_size_validated = False  # it checks only the first batch
    logits = case["logits"].to(dtype).requires_grad_()
    value = loss(logits, case["labels"], loss_weights=case["weights"], reduction=case["reduction"])
    return finish(value, logits, case)


def ours(case: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return value and gradient of numerate."""
    logits = case["logits"].to(dtype).requires_grad_()
    value = our_loss(*settings_of(case))(logits, case["labels"], position_weights=case["weights"], reduction=case["reduction"])
    return finish(value, logits, case)


def finish(value: Tensor, logits: Tensor, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return value and gradient; for a batch without numbers, ntloss returns a zero outside the graph."""
    value = (value.double() * case["upstream"]).sum() if case["reduction"] == "none" else value
    grad = torch.autograd.grad(value, logits)[0] if value.requires_grad else torch.zeros_like(logits)
    return value.detach().double(), grad.double()


def draw(rng: random.Random, vocabs: dict[str, list[str]]) -> dict[str, Any]:
    """Draw a random case."""
    kind = rng.choice(KINDS)
    name = rng.choice(list(vocabs))
    texts = vocabs[name]
    shape = rng.randint(1, 3), rng.choice([1, 2, 5, 8, 30])
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    numeric = torch.tensor([i for i, text in enumerate(texts) if text.isdecimal()])
    labels = torch.randint(0, len(texts), shape, generator=generator)
    share = rng.choice([0.0, 0.3, 0.7, 1.0])
    chosen = numeric[torch.randint(0, len(numeric), shape, generator=generator)]
    labels = torch.where(torch.rand(shape, generator=generator) < share, chosen, labels)
    if kind == "number" and rng.random() < 0.5:
        point = torch.rand(shape, generator=generator) < 0.1
        labels = labels.masked_fill(point, texts.index("."))
    labels = labels.masked_fill(torch.rand(shape, generator=generator) < rng.choice([0.0, 0.2]), -100)
    padding = rng.choice([0] * 24 + [7])
    logits = torch.randn(*shape, len(texts) + padding, generator=generator, dtype=torch.float64)
    logits *= rng.choice([0.1, 1.0, 3.0, 10.0, 30.0])
    logits[..., numeric] += rng.choice([0.0, 0.0, -30.0, -8.0, 8.0, 30.0])
    dtype = rng.choice(DTYPES)
    weights = torch.rand(shape, generator=generator) if rng.random() < 0.3 else None
    if weights is not None:
        weights = weights.masked_fill(torch.rand(shape, generator=generator) < 0.2, 0.0)
    return {
        "kind": kind,
        "vocabulary": name,
        "texts": texts,
        "digit_level": kind == "number" or rng.random() < 0.5,
        "reweigh": rng.random() < 0.6,
        "float_level": kind == "number" and rng.random() < 0.25,
        "squash": rng.choice([None, 1.5, 9.0, 40.0]) if kind == "was" else None,
        "dtype": dtype,
        "padding": padding,
        "logits": logits.to(dtype).double(),  # what both see
        "labels": labels,
        "weights": weights,
        "reduction": rng.choice(["mean", "sum", "none"]),
        "upstream": torch.rand(shape, generator=generator, dtype=torch.float64),
    }


def apart(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """Return the largest difference of value or gradient, relative to the largest entry of ``b``."""
    errors = []
    for x, y in zip(a, b, strict=True):
        scale = float(y.abs().max())
        difference = float((x - y).abs().max())
        errors.append(difference / scale if scale > 0 else float(difference > 0))
    return max(errors) if all(error == error for error in errors) else float("inf")


def off(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """Return the largest difference of value or gradient."""
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def scale_of(case: dict[str, Any]) -> float:
    """Return a bound on the cost, and on the entries of its gradient before they cancel."""
    return float(their_loss(*settings_of(case), True).max_dist) * (1 if case["reduction"] == "mean" else case["labels"].numel())


def explain(case: dict[str, Any], mine: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]) -> str | None:
    """Return the known cause of a difference in float64; None if it has none."""
    texts, labels = case["texts"], case["labels"]
    words = [[texts[i] if i >= 0 else "" for i in row] for row in labels.tolist()]
    if case["vocabulary"] == "odd tokens" and not case["digit_level"]:
        return "tokens"
    rounded = 16 * torch.finfo(torch.float64).eps * scale_of(case)
    if off(mine, truth) < rounded:
        return "cancellation" if case["reweigh"] else "rounding"
    if case["kind"] == "number":
        runs = ["".join(word if len(word) == 1 and word in "0123456789" else " " for word in row).split() for row in words]
        if any(len(run) > 20 for row in runs for run in row):
            return "long"
        if case["float_level"] and any("." in row for row in words):
            return "point"
        if case["float_level"] and any(re.search(r"[0-9] [eE] ([-+] )?[0-9]( |$)", " ".join(row)) for row in words):
            return "power"
        zero = any(int(run) == 0 for row in runs for run in row)
        parts = [((x,), (y,)) for x, y in zip(mine, truth, strict=True)]  # value, gradient
        if zero or all(apart(x, y) < 1e-5 or off(x, y) < rounded for x, y in parts):
            return "epsilon"
    return None


@dataclass
class CaseCounts:
    """Counts and errors over all cases."""

    counts: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    errors: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    unexplained: list[dict[str, str]] = field(default_factory=list)

    def add(self, number: int, case: dict[str, Any]) -> None:
        """Compare one case in float64 and, unless the formulas differ there, at its own dtype."""
        keys = ("kind", "vocabulary", "digit_level", "reweigh", "squash", "dtype", "reduction", "float_level")
        described = {"case": str(number)} | {key: str(case[key]) for key in keys}
        mine = ours(case, torch.float64)
        try:
            truth = theirs(case, torch.float64)
        except ValueError as error:
            cause = "padded" if case["padding"] and "vocab_size" in str(error) else None
            self.count(f"float64 differs: {cause}", cause, described | {"error": str(error)})
            return
        gap = apart(mine, truth)
        if gap <= 1e-9:
            self.counts["float64 agrees"] += 1
        else:
            cause = explain(case, mine, truth)
            self.count(f"float64 differs: {cause}", cause, described | {"gap": f"{gap:.3g}"})
            if cause not in ("epsilon", "cancellation", "rounding"):
                return
            truth = truth if cause == "epsilon" else mine
        if case["dtype"] != torch.float64:
            self.add_dtype(case, mine, truth, described)

    def add_dtype(
        self, case: dict[str, Any], mine: tuple[Tensor, ...], truth: tuple[Tensor, ...], described: dict[str, str]
    ) -> None:
        """Compare both at the case's dtype, each with its own float64 result: the two may differ by ε."""
        result = ours(case, case["dtype"])
        error_ours = apart(result, mine)
        try:
            error_theirs = apart(theirs(case, case["dtype"]), truth)
        except RuntimeError as error:
            cause = "half" if case["kind"] in ("huber", "mse") and "Found dtype Float" in str(error) else None
            self.count(f"ntloss fails: {cause or error}", cause, described | {"error": str(error)})
            return
        group = f"{str(case['dtype'])[6:]}, {'reweigh' if case['reweigh'] else 'plain'}"
        slack = 4 * torch.finfo(case["dtype"]).eps
        if error_ours == error_theirs == float("inf"):
            verdict = "both overflow"
        elif error_ours < error_theirs:
            verdict = "ours nearer"
        elif error_ours <= error_theirs + slack or off(result, mine) <= slack * scale_of(case):
            verdict = "theirs nearer, ours within rounding"
        else:
            verdict = "theirs nearer"
            self.unexplained.append(described | {"ours": f"{error_ours:.3g}", "theirs": f"{error_theirs:.3g}"})
        self.verdicts.setdefault(group, Counter())[verdict] += 1
        if verdict != "both overflow":
            self.errors.setdefault(group, []).append((error_ours, error_theirs))

    def count(self, name: str, cause: str | None, described: dict[str, str]) -> None:
        """Count a difference, and keep the case if its cause is unknown."""
        self.counts[name] += 1
        if cause is None:
            self.unexplained.append(described)

    def show(self) -> None:
        """Print the counts, the errors by dtype and the first unexplained cases."""
        for key, count in sorted(self.counts.items()):
            print(f"{count:7d}  {key}{': ' + CAUSES[cause] if (cause := key.rpartition(' ')[2]) in CAUSES else ''}")
        for group in sorted(self.verdicts):
            print(f"{group}: {dict(self.verdicts[group])}; relative error of numerate and of ntloss:")
            both = [sorted(side) for side in zip(*self.errors[group], strict=True)]
            print("    median  ", *(f"{median(side):.1e}" for side in both))
            print("    99 %    ", *(f"{side[int(0.99 * (len(side) - 1))]:.1e}" for side in both))
            print("    largest ", *(f"{side[-1]:.1e}" for side in both))
        print(f"{len(self.unexplained)} unexplained")
        for case in self.unexplained[:10]:
            print("   ", case)


def main() -> int:
    """Compare random cases, print the result, and return 1 if a difference has no known cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the counts and every unexplained case to this file")
    options = parser.parse_args()
    rng, began, comparison = random.Random(options.seed), time.monotonic(), CaseCounts()
    vocabs = vocabularies(rng)
    for number in range(options.cases):
        comparison.add(number, draw(rng, vocabs))
    seconds = time.monotonic() - began
    print(f"ntloss {ntloss.__version__}, torch {torch.__version__}: {options.cases} cases, seed {options.seed}, {seconds:.0f} s")
    comparison.show()
    if options.json:
        report = {"counts": comparison.counts, "exactness": comparison.verdicts, "unexplained": comparison.unexplained}
        Path(options.json).write_text(json.dumps(report | {"seconds": seconds}, indent=1), encoding="utf-8")
    return 1 if comparison.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
