"""What a number costs: forward passes of the short calls and of generate, counted."""

from __future__ import annotations

from benchmarks.short_calls import GRAMMAR, call_costs
from tests.decode.test_prompts import chat_tokenizer, model


def test_passes_do_not_grow_with_prompts() -> None:
    """One pass reads the prompts, and one more each further digit, for all prompts together."""
    tokenizer = chat_tokenizer()
    costs = {cost.name: cost for cost in call_costs(model(tokenizer), tokenizer, ["xy", "zz?", "u"], new_tokens=6)}
    most = GRAMMAR.max_length + 2  # white space may come first
    assert 1 < costs["number"].passes <= most
    assert costs["interval"].passes == costs["number"].passes
    assert costs["number"].sequences <= 3 + (costs["number"].passes - 1) * 3 * 16
    assert costs["generate, greedy"].passes <= 6
    (one,) = (cost for cost in call_costs(model(tokenizer), tokenizer, ["xy"]) if cost.name == "number")
    assert costs["number"].passes <= one.passes + 2  # not three times as many
    assert len(costs["number"].answers) == 3
