"""``python -m benchmarks.short_calls``: what number and interval cost on SmolLM2, in forward passes, relative to ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from benchmarks.decode import counted
from numerate.decode import DecideNumbers, NumberGrammar, interval, number

PROMPTS = (
    "12 + 30 =",
    "A spider has this many legs:",
    "The Eiffel Tower was finished in the year",
    "0.9 carat: $3800\n0.3 carat: $600\n0.7 carat: $",
)
GRAMMAR = NumberGrammar(sign=False, digits=(1, 5), decimals=0)


@dataclass(frozen=True)
class CallCost:
    """Forward passes of a call for all prompts, the sequences in them, and its answers."""

    name: str
    passes: int
    sequences: int
    answers: Any


def call_costs(model: Any, tokenizer: Any, prompts: Sequence[str] = PROMPTS, new_tokens: int = 6) -> list[CallCost]:
    """Count the forward passes of the short calls and of ``generate`` with so many new tokens."""
    inputs = tokenizer([*prompts], return_tensors="pt", padding=True, padding_side="left")
    texts: Mapping[str, Any] = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    written: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": tokenizer.eos_token_id}
    median = DecideNumbers(tokenizer, "median", grammar=GRAMMAR, most_numbers=1)

    def decoded(ids: Any) -> list[str]:
        return [*tokenizer.batch_decode(ids[:, texts["input_ids"].shape[1] :], skip_special_tokens=True)]

    calls: dict[str, Callable[[], Any]] = {
        "generate, greedy": lambda: decoded(model.generate(**texts, **written)),
        "number": lambda: number(model, prompts, tokenizer, grammar=GRAMMAR),
        "number, any plain number": lambda: number(model, prompts, tokenizer),
        "interval": lambda: interval(model, prompts, tokenizer, grammar=GRAMMAR),
        "generate, DecideNumbers": lambda: decoded(model.generate(**texts, **written, custom_generate=median)),
    }
    costs = []
    for name, call in calls.items():
        with counted(model) as count:
            answers = call()
        costs.append(CallCost(name, count.passes, count.sequences, answers))
    return costs


def main() -> None:
    """Print the costs."""
    from numerate.lab.models.loading import load_model

    loaded = load_model("smollm2")
    for cost in call_costs(loaded.model.eval(), loaded.tokenizer):
        typer.echo(f"{cost.name}: {cost.passes} passes, {cost.sequences} sequences; {cost.answers}")


if __name__ == "__main__":
    main()
