"""The prompts of a chat, whose answers the target writes anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_cache.errors import DataError

from .chats import CHATS, RESPONSES, Chat, Message, UnusableRowError, parse_row

# What chat templates know of a message; other fields, such as times and addresses, stay behind.
_KEPT_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_KEPT_COLUMNS = ("id", "category")
_ASKING = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said before each answer, the tools on offer, and the columns that are kept."""

    prompts: Sequence[Sequence[Message]]
    tools: list[Any] | None
    columns: Mapping[str, Any]


def parse_conversation(row: Mapping[str, Any], *, last_turn_only: bool = False) -> Conversation:
    """The chat of ``row``, which may be of any form that ``parse_row`` knows, or a prompt alone.

    With ``last_turn_only`` there is one prompt, with all earlier answers in it. ``DataError`` if
    the row has no known form; ``UnusableRowError`` if there is nothing to answer in it, or nothing
    that the target alone could answer.
    """
    chat = _chat(row)
    messages = [
        {name: each[name] for name in _KEPT_FIELDS if name in each} for each in chat.messages
    ]
    prompts = [_last_prompt(messages)] if last_turn_only else _prompts(messages)
    if not prompts or not prompts[0]:
        raise UnusableRowError("no_prompt", "there is no turn of a user to answer")
    if any(each["role"] == "user" and not each["content"] for prompt in prompts for each in prompt):
        raise UnusableRowError("no_prompt", "a turn of the user is empty")
    columns = {name: row[name] for name in _KEPT_COLUMNS if isinstance(row.get(name), str | int)}
    return Conversation(prompts, chat.tools, columns)


def _chat(row: Mapping[str, Any]) -> Chat:
    if "prompt" in row and all(row.get(name) is None for name in CHATS):
        prompt = row["prompt"]
        if not isinstance(prompt, str | list | None):
            raise DataError(f"prompt is {prompt!r}, expected text or messages")
        said = prompt or []
        alone = [{"role": "user", "content": said}] if isinstance(said, str) else said
        others = {name: value for name, value in row.items() if name not in RESPONSES}
        row = {**others, "messages": alone}
    chat = parse_row(row, has_template=True)
    if not isinstance(chat, Chat):
        raise UnusableRowError("no_prompt", "plain text has no turn to answer")
    return chat


def _prompts(messages: Sequence[Message]) -> list[list[Message]]:
    """What stands before each answer; answers that nobody asked for are left away."""
    if any(each.get("tool_calls") or each["role"] == "tool" for each in messages):
        raise UnusableRowError(
            "tool_calls",
            "what a tool gave belongs to the call of an earlier answer; --last-turn-only keeps it",
        )
    prompts: list[list[Message]] = []
    prompt: list[Message] = []
    for message in [*messages, None]:
        if message is not None and message["role"] != "assistant":
            prompt.append(message)
        elif _asks(prompt):
            prompts.append(prompt)
            prompt = []
    return prompts


def _last_prompt(messages: Sequence[Message]) -> list[Message]:
    """All up to the last turn that asks, with the answers before it."""
    asking = [number for number, each in enumerate(messages) if each["role"] in _ASKING]
    return list(messages[: asking[-1] + 1]) if asking else []


def _asks(prompt: Sequence[Message]) -> bool:
    return any(each["role"] in _ASKING for each in prompt)
