"""What a row says: a chat, or a text with its answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_cache.errors import DataError

Message = dict[str, Any]

# ShareGPT's names of who speaks, and what chat templates call them.
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
CHATS, RESPONSES = ("messages", "conversations"), ("response", "completion")
# All that is read of a row, here and by ``tokenize`` and ``regenerate``.
COLUMNS = (*CHATS, "prompt", *RESPONSES, "text", "system", "tools", "id", "category")
# transformers gives templates the first that is there as reasoning_content and as thinking.
_REASONING = ("reasoning_content", "thinking", "reasoning")

# What a message says, and what it may have alone when it says nothing.
_CONTENTS = {"content", "value", "tool_calls", *_REASONING}
_BESIDE = {"role", "from", "name", "tool_call_id"}


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages as chat templates take them, and the tools on offer."""

    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A text without a template; the loss is on ``answer``."""

    prompt: str
    answer: str


class UnusableRowError(Exception):
    """A row that is left out and counted: ``reason`` in a word, the message in a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_row(row: Mapping[str, Any], *, has_template: bool) -> Chat | Text:
    """The chat of ``messages`` or ``conversations``, a prompt with its response, or the text.

    A prompt and its response are a chat too where there is a template. A column that is null is as
    one that is not there, while another one says what the row is. ``DataError`` if the row has none
    of these columns; ``UnusableRowError`` if what it has holds nothing.
    """
    there = {name: value for name, value in row.items() if value is not None}
    response = next((name for name in RESPONSES if name in there), None)
    if chats := [there[name] for name in CHATS if name in there]:
        chat = Chat(_messages(chats[0] or chats[-1]), _tools(there.get("tools")))
        if there.get("system"):
            chat.messages.insert(0, {"role": "system", "content": there["system"]})
        return chat
    if "prompt" in there and response:
        return _pair(there["prompt"], there[response], _tools(there.get("tools")), has_template)
    if "text" in there:
        return Text("", _filled("text", there["text"]))
    if row.keys() & {*CHATS, "text"} or ("prompt" in row and row.keys() & {*RESPONSES}):
        raise UnusableRowError("empty", "what it is made of is null")
    raise DataError(
        f"it has {', '.join(map(str, row)) or 'no columns'}; expected messages, conversations, "
        "prompt with response or completion, or text. Rename the columns"
    )


def _pair(prompt: Any, response: Any, tools: list[Any] | None, has_template: bool) -> Chat | Text:
    if isinstance(prompt, str) and isinstance(response, str) and not has_template:
        return Text(_filled("prompt", prompt), _filled("response", response))
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": _filled("prompt", prompt)}]
    if isinstance(response, str):
        response = [{"role": "assistant", "content": _filled("response", response)}]
    return Chat(_messages(prompt) + _messages(response), tools)


def _filled(name: str, value: Any) -> str:
    if value is None or value == "":
        raise UnusableRowError("empty", f"{name} is empty")
    if not isinstance(value, str):
        raise DataError(f"{name} is {type(value).__name__}, expected text")
    return value


def _messages(given: Any) -> list[Message]:
    if not given:
        raise UnusableRowError("empty", "there are no messages")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise DataError(f"messages are {str(given)[:60]!r}, expected a list of objects")
    return [_message(number, each) for number, each in enumerate(given)]


def _message(number: int, given: Mapping[str, Any]) -> Message:
    message = {key: value for key, value in given.items() if value is not None}
    if not given.keys() & _CONTENTS and message.keys() - _BESIDE:
        raise UnusableRowError(
            "not_text",
            f"message {number} has {', '.join(map(str, message))}; expected role and content, or "
            "from and value",
        )
    if "from" in message:
        speaker = message.pop("from")
        if not isinstance(speaker, str) or speaker not in _SPEAKERS:
            raise DataError(
                f"message {number} is from {speaker!r}, expected one of {', '.join(_SPEAKERS)}"
            )
        message = {"role": _SPEAKERS[speaker], "content": message.pop("value", ""), **message}
    role = message.get("role")
    if not isinstance(role, str):
        raise DataError(f"message {number} has no role; it has {', '.join(map(str, given))}")
    message["role"] = _SPEAKERS.get(role, role)
    # Some templates look at the content without asking whether it is there.
    message["content"] = _content(number, message.get("content", ""))
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _content(number: int, content: Any) -> str:
    """Text, also out of a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise UnusableRowError("not_text", f"message {number} holds something other than text")


def _tool_call(call: Any) -> Any:
    """Templates expect arguments as an object; the form of servers has them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        return call | {"function": function | {"arguments": _parsed(function["arguments"])}}
    return call


def _tools(given: Any) -> list[Any] | None:
    tools = _parsed(given) if isinstance(given, str) else given
    if tools and not isinstance(tools, list):
        raise DataError(f"tools are {str(given)[:60]!r}, expected a list, or JSON text of one")
    return tools or None


def _parsed(text: str) -> Any:
    """The JSON object or list that ``text`` is; ``text`` itself if it is neither."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text
