"""Chat templates: Jinja in a sandbox, in the environment that transformers gives them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dflash_cache.errors import ConfigError

from .chats import Message, UnusableRowError

Span = tuple[int, int]  # characters from start to stop
# Characters that Unicode keeps out of texts, around what a template marks as the target's.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"[{_OPEN}{_CLOSE}]")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class _GenerationMarks(Extension):
    """``{% generation %}``: what stands up to ``{% endgeneration %}`` the target wrote."""

    tags = {"generation"}  # noqa: RUF012  as its base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        opened, closed = (
            nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (_OPEN, _CLOSE)
        )
        return [opened, *body, closed]


class ChatTemplate:
    """A template with what it is given besides messages: special tokens and settings."""

    def __init__(self, source: str, variables: Mapping[str, Any], now: datetime) -> None:
        """``now`` is the date that the template may write. ``ConfigError`` if it is no Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = now.strftime
        self.has_marks = _GENERATION_TAG.search(source) is not None
        self._variables = dict(variables)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template, line {error.lineno}: {error}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, *, prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """The text, and the spans that the template marks; ``prompt`` asks for the next answer.

        ``UnusableRowError`` if the template refuses the messages.
        """
        try:
            text = self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise UnusableRowError("template", f"the chat template refuses it: {error}") from error
        return _take_marks(text) if self.has_marks else (text, [])

    def renderer(self, tools: Sequence[Any] | None) -> Callable[..., str]:
        """``render`` of a chat with ``tools``, for the text alone."""

        def render(messages: Sequence[Message], *, prompt: bool = False) -> str:
            return self.render(messages, tools, prompt=prompt)[0]

        return render


def _take_marks(text: str) -> tuple[str, list[Span]]:
    found = enumerate(_MARK.finditer(text))
    marks = [(mark.group(), mark.start() - number) for number, mark in found]
    if [mark for mark, _ in marks] != [_OPEN, _CLOSE] * (len(marks) // 2):
        raise UnusableRowError("template", "generation marks stand inside each other")
    spans = [(start, stop) for (_, start), (_, stop) in list(pairwise(marks))[::2]]
    return _MARK.sub("", text), spans


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter writes for HTML."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
