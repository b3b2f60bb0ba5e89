"""Rows in TRL's formats as a question and an answer: chats, and prompts with completions.

    {"messages": [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "42"}]}
    {"prompt": "6 * 7?", "completion": "42"}
    {"prompt": [{"role": "user", "content": "6 * 7?"}], "completion": [{"role": "assistant", "content": "42"}]}

The answer is the completion, or the last message of a chat if it is the assistant's. The question is what comes before it: the
user's message, after the system's, if there is one. Of a chat of several turns only the last answer is trained on; the earlier
turns are part of the question, one text with their roles, and :func:`turns_notes` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numerate.lab.data.row_reader import BadData, json_kind

ROLES = ("system", "developer", "user", "assistant")

SEVERAL_TURNS = "chats have several turns"
_MESSAGE = '{"role": "user", "content": "..."}'
_REMEDY = "Correct the row, or skip such rows with skip_bad=True (--skip-bad)."


def is_chat(row: Mapping[str, Any]) -> bool:
    """Return whether a row is in one of TRL's formats."""
    return "messages" in row or ("prompt" in row and ("completion" in row or isinstance(row["prompt"], list)))


def as_question(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of TRL's formats with ``prompt`` and, if there is one, ``answer``; other rows unchanged.

    Examples:
        >>> as_question({"messages": [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "42"}]})
        {'prompt': '6 * 7?', 'answer': '42'}
        >>> as_question({"prompt": "6 * 7?", "completion": " 42"})
        {'prompt': '6 * 7?', 'answer': '42'}
    """
    if not is_chat(row):
        return row
    rest = {name: value for name, value in row.items() if name not in ("messages", "prompt", "completion")}
    if "messages" in row:
        turns = _turns("messages", row["messages"])
        last = turns.pop()[1] if turns[-1][0] == "assistant" else None
        return {**rest, "prompt": _question(turns), "answer": last}
    prompt, completion = row["prompt"], row.get("completion")
    said = _turns("prompt", prompt) if isinstance(prompt, list) else [("user", _text("prompt", prompt))]
    if isinstance(completion, list):
        replies = _turns("completion", completion)
        if len(replies) != 1 or replies[0][0] != "assistant":
            roles = ", ".join(role for role, _ in replies)
            raise BadData(f"the completion has the roles {roles}", f"Expected one message of the assistant. {_REMEDY}")
        completion = replies[0][1]
    answer = completion if completion is None or isinstance(completion, int | float) else _text("completion", completion)
    return {**rest, "prompt": _question(said), **({"answer": answer} if "completion" in row else {})}


def has_turns(row: Mapping[str, Any]) -> bool:
    """Return whether the question of a row that :func:`as_question` can read has answers of the assistant in it.

    Examples:
        >>> turns = [{"role": role, "content": "7"} for role in ("user", "assistant", "user", "assistant")]
        >>> has_turns({"messages": turns}), has_turns({"messages": turns[:2]}), has_turns({"prompt": turns[:3]})
        (True, False, True)
    """
    messages = (row["messages"][:-1] if "messages" in row else row["prompt"]) if is_chat(row) else ()
    return not isinstance(messages, str) and any(message["role"] == "assistant" for message in messages)


def turns_notes(longer: Sequence[bool]) -> list[str]:
    """Return a note on what becomes of chats of several turns, if there are some; ``longer`` is :func:`has_turns` of each row."""
    if not any(longer):
        return []
    how = "only the last answer of each is trained on, and the turns before it are asked as one text, with their roles"
    return [f"{sum(longer):,} of {len(longer):,} {SEVERAL_TURNS}: {how}."]


def _turns(name: str, messages: Any) -> list[tuple[str, str]]:
    """Return role and text of each message."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        kind = "empty" if messages == [] else json_kind(messages)
        raise BadData(f"{name} is {kind}", f"Expected a list of messages, such as {_MESSAGE}. {_REMEDY}")
    turns = []
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise BadData(f"{name} holds {message!r:.60}, which is not a message", f"Expected {_MESSAGE}. {_REMEDY}")
        if message["role"] not in ROLES:
            raise BadData(f"{name} has the role {message['role']!r:.40}", f"Expected one of {', '.join(ROLES)}. {_REMEDY}")
        if message.get("tool_calls"):
            raise BadData(f"{name} has tool calls, which are not read", f"Expected texts alone. {_REMEDY}")
        turns.append((message["role"], _text("content", message["content"])))
    return turns


def _text(name: str, content: Any) -> str:
    """Return the text of a message: a string, or parts of type text."""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise BadData(f"{name} is {json_kind(content)}, not a text", _REMEDY)
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadData(
                f"{name} has a part of type {part.get('type')!r:.40}",
                "Expected texts; for pictures, write rows with the columns prompt, answer and image (a path).",
            )
    return "\n".join(part["text"].strip() for part in content)


def _question(turns: Sequence[tuple[str, str]]) -> str:
    if not turns or turns[-1][0] != "user":
        last = turns[-1][0] if turns else "none"
        raise BadData(f"the last message before the answer is of the role {last!r}", f"Expected the user's. {_REMEDY}")
    alone = len([role for role, _ in turns if role in ("user", "assistant")]) == 1
    return "\n\n".join(text if alone else f"{role}: {text}" for role, text in turns)
