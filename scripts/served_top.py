"""Measure how much of a distribution is found through a server that lists only the `top` most likely tokens.

python scripts/served_top.py
"""

from __future__ import annotations

import torch

from numerate.decode import distribution, served_distribution
from numerate.lab.models.loading import load_model

PROMPT, TOPS = "12 + 30 =", (5, 20, 100)


def main() -> None:
    """Print covered and not searched of SmolLM2-135M: by itself, then as a server of texts and of token ids."""
    loaded = load_model("smollm2")
    model, tokenizer = loaded.model.eval(), loaded.tokenizer

    @torch.no_grad()
    def listed(path: object, top: int) -> list[tuple[int, float]]:
        ids = tokenizer(path)["input_ids"] if isinstance(path, str) else list(path)  # type: ignore[call-overload]
        best = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1).topk(top)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    itself = distribution(model, [PROMPT], tokenizer)[0]
    print(f"the model itself: {itself.covered:.3f} {itself.not_searched:.3f}")
    for top in TOPS:

        def by_id(paths: list[object], top: int = top) -> list[list[tuple[int, float]]]:
            return [listed(path, top) for path in paths]

        def by_text(paths: list[object], top: int = top) -> list[list[tuple[str, float]]]:
            return [[(tokenizer.decode([token]), value) for token, value in listed(path, top)] for path in paths]

        texts = served_distribution(by_text, [PROMPT])[0]
        ids = served_distribution(by_id, [PROMPT], tokenizer=tokenizer)[0]
        shares = (texts.covered, texts.not_searched, ids.covered, ids.not_searched)
        print(top, *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
