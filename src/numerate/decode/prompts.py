"""Prompts: texts, chats or the tensors of a processor become the batches that a model searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from numerate.checks import check_integer
from numerate.decode.rows import ignores_padding
from numerate.decode.token_tree import text_tokenizer

Message = Mapping[str, Any]
"""A message of a chat: ``{"role": "user", "content": "How tall is the Eiffel Tower, in metres?"}``."""

Prompts = str | Sequence[str | Sequence[Message]] | Sequence[Message] | Mapping[str, Any]
"""Texts and chats, a single one of them, or what a tokenizer or processor returns for several."""


def batches(prompts: Prompts, tokenizer: Any, model: Any, batch_size: int) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
    """Yield the indices of prompts, the number of all prompts, and the model's inputs for a batch."""
    batch_size = check_integer("batch_size", batch_size, "an integer >= 1 of prompts", least=1)
    if isinstance(prompts, Mapping):
        yield from _split(prompts, model, batch_size)
        return
    if not isinstance(prompts, Sequence):
        raise TypeError(
            f"prompts is a {type(prompts).__name__}: expected a list of texts or chats, or what the tokenizer returns for them; "
            "use list(prompts)."
        )
    listed = [prompts] if isinstance(prompts, str) or _is_chat(prompts) else prompts
    rows = [token_ids_of(index, prompt, tokenizer) for index, prompt in enumerate(listed)]
    for index, row in enumerate(rows):
        if not row and not model.config.is_encoder_decoder:
            raise ValueError(f"prompts[{index}]={listed[index]!r} has no tokens: expected a prompt of at least one token.")
    tokenizer = text_tokenizer(tokenizer)
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    for chosen in _by_length([*map(len, rows)], batch_size, mixed=not ignores_padding(model)):
        longest = max(len(rows[index]) for index in chosen)
        ids = torch.full((len(chosen), longest), pad)
        mask = torch.zeros_like(ids)
        for place, index in enumerate(chosen):
            length = len(rows[index])
            # An encoder counts positions from the left, generation goes on at the right.
            filled = slice(0, length) if model.config.is_encoder_decoder else slice(longest - length, longest)
            ids[place, filled], mask[place, filled] = torch.tensor(rows[index], dtype=torch.long), 1
        yield chosen, len(rows), {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


def _split(prompts: Mapping[str, Any], model: Any, batch_size: int) -> Iterator[tuple[list[int], int, dict[str, Any]]]:
    """Yield the batches of a tokenizer's or processor's output; one batch if a tensor in it does not belong to rows."""
    tensors = {name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in prompts.items()}
    names = ("input_ids", "inputs_embeds", getattr(model, "main_input_name", "input_ids"))
    main = next((tensors[name] for name in names if name in tensors), None)
    if not isinstance(main, Tensor) or main.dim() < 2:
        raise ValueError(
            f"prompts has {', '.join(map(repr, prompts)) or 'nothing'}: expected tensors with input_ids [B, T]; call the "
            "tokenizer with return_tensors='pt'."
        )
    total = main.shape[0]
    splits = all(isinstance(value, Tensor) and value.shape[:1] == (total,) for value in tensors.values())
    size = batch_size if splits else max(total, 1)
    for first in range(0, total, size):
        part = {name: value[first : first + size] for name, value in tensors.items()} if splits else tensors
        yield [*range(first, min(first + size, total))], total, part


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and all(isinstance(message, Mapping) for message in prompt)


def token_ids_of(index: int, prompt: Any, tokenizer: Any) -> list[int]:
    """Return the tokens of a text, or of a chat in the tokenizer's template; a template writes special tokens itself."""
    encode = text_tokenizer(tokenizer)
    if isinstance(prompt, str):
        return [*encode(prompt)["input_ids"]]
    if _is_chat(prompt):
        return [*encode(_templated(index, prompt, tokenizer), add_special_tokens=False)["input_ids"]]
    raise TypeError(
        f"prompts[{index}] is a {type(prompt).__name__}: expected a text, or a chat as a list of messages such as "
        "{'role': 'user', 'content': '6 * 7 = ?'}."
    )


def _templated(index: int, chat: Sequence[Message], tokenizer: Any) -> str:
    """Return the text of a chat up to where the model answers, or continues the assistant's message that comes last."""
    owner = next((it for it in (tokenizer, text_tokenizer(tokenizer)) if getattr(it, "chat_template", None)), None)
    if owner is None:
        raise ValueError(
            f"prompts[{index}] is a chat, and tokenizer={type(tokenizer).__name__} has no chat_template: expected the tokenizer "
            "of a chat model; pass the prompt as text, or set tokenizer.chat_template."
        )
    for message in chat:
        if "role" not in message or "content" not in message:
            raise ValueError(
                f"prompts[{index}] has a message with {', '.join(map(repr, message)) or 'nothing'}: expected 'role' and "
                "'content' in each."
            )
        parts = message["content"] if isinstance(message["content"], list | tuple) else ()
        if media := [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]:
            raise ValueError(
                f"prompts[{index}] has {media[0]!r:.80} in a message: expected text alone; for pictures pass what "
                "processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=True, "
                "return_tensors='pt') returns."
            )
    begun = chat[-1]["role"] == "assistant"
    return str(owner.apply_chat_template([*chat], tokenize=False, add_generation_prompt=not begun, continue_final_message=begun))


def _by_length(lengths: list[int], batch_size: int, *, mixed: bool) -> Iterator[list[int]]:
    """Yield batches of prompts of similar length, the longest first; of one length unless ``mixed``."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True)
    for _, group in groupby(order, key=lambda index: mixed or lengths[index]):
        chosen = [*group]
        for first in range(0, len(chosen), batch_size):
            yield chosen[first : first + batch_size]
