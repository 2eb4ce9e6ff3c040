"""A target that a server runs, asked for answers through OpenAI's interface."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_cache.errors import ConfigError, RefusedError, ServerError
from dflash_cache.types import Answer, Sampling

from .client import Client

_SENT = ("role", "content", "name", "tool_calls", "tool_call_id")
_REASONING = ("reasoning_content", "reasoning")  # vLLM has had both names
Message = Mapping[str, Any]


class ServedTarget:
    """Any number of threads may ask. Errors are those of ``Client``."""

    def __init__(self, client: Client, name: str | None, sampling: Sampling) -> None:
        """Without a ``name`` it is the only one that is served, else ``ConfigError``."""
        self._client = client
        self._sampling = sampling
        self.name = name or _only_model(client)

    def answer(self, messages: Sequence[Message], tools: list[Any] | None, seed: int) -> Answer:
        """What the target says next, after ``messages``; ``tools`` are on offer to it."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [_sent(each) for each in messages],
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_tokens,
        }
        if self._sampling.temperature:
            body["seed"] = seed
        if tools:
            body["tools"] = tools
        if self._sampling.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._sampling.thinking}
        return _answer(self._client.post("/chat/completions", body), self._client.address)

    def abort(self) -> None:
        """Wake all who wait for an answer."""
        self._client.abort()


def _only_model(client: Client) -> str:
    try:
        listed = client.get("/models")
    except RefusedError as error:
        raise ServerError(
            f"--server {client.address} does not say what it serves: {error}. Name the target with "
            "--model"
        ) from error
    try:
        names = [str(each["id"]) for each in listed["data"]]
    except (KeyError, TypeError) as error:
        raise ServerError(
            f"--server {client.address}: /models answers {str(listed)[:200]}, which is no list of "
            "models. Is this the address of an OpenAI-compatible server, with its /v1?"
        ) from error
    if len(names) != 1:
        served = ", ".join(names) or "no model"
        raise ConfigError(f"--server {client.address} serves {served}; name one with --model")
    return names[0]


def _sent(message: Message) -> dict[str, Any]:
    """What clients send of a past turn: its reasoning is left away, as templates leave it."""
    sent = {name: message[name] for name in _SENT if name in message}
    if isinstance(calls := sent.get("tool_calls"), list):
        sent["tool_calls"] = [_with_text_arguments(call) for call in calls]
    return sent


def _with_text_arguments(call: Any) -> Any:
    """Servers take arguments as JSON text, chat templates as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or isinstance(function.get("arguments", ""), str):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}


def _answer(completion: Any, address: str) -> Answer:
    try:
        return _parsed(completion)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ServerError(
            f"--server {address}: it answers {str(completion)[:200]}, which is no chat completion. "
            "Is this the address of an OpenAI-compatible server? Mend it and give the same command "
            "again: what is answered is kept"
        ) from error


def _parsed(completion: Any) -> Answer:
    choice = completion["choices"][0]
    given = choice["message"]
    message: dict[str, Any] = {"role": "assistant", "content": given.get("content") or ""}
    reasoning = next((given[name] for name in _REASONING if given.get(name)), None)
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if not all(isinstance(text, str) for text in message.values()):
        raise TypeError("content or reasoning is no text")
    if given.get("tool_calls"):
        message["tool_calls"] = [dict(call) for call in given["tool_calls"]]
    return Answer(
        message=message,
        num_tokens=int((completion.get("usage") or {}).get("completion_tokens") or 0),
        truncated=choice.get("finish_reason") in ("length", "content_filter"),
    )
