"""Rows of chats to tokens and loss masks: what each worker process of ``tokenize`` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from dflash_cache.errors import ConfigError, DataError
from dflash_cache.types import Int64Array, TokenizerParts

from .chats import Chat, Text, UnusableRowError, parse_row
from .sources import Row
from .templates import ChatTemplate, Span
from .turns import answer_spans

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """Rows that one worker takes at once."""

    first_row: int
    rows: Sequence[Row]
    bytes_read: int  # of the files, when the batch was whole


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A row that gives no tokens."""

    row: int
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """The sequences of a batch end to end, and the rows that gave none."""

    num_rows: int
    bytes_read: int
    input_ids: Ids  # [tokens]
    loss_mask: Mask  # [tokens], 0 or 1
    lengths: Int64Array  # [sequences]
    categories: Sequence[str | None]  # [sequences]
    truncated: BoolArray  # [sequences]
    left_out: Sequence[LeftOut]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenization:
    """How rows become tokens. It is pickled; ``start`` makes of it what does the work."""

    tokenizer: TokenizerParts
    now: datetime  # the date that a chat template may write
    thinking: bool | None = None
    last_turn_only: bool = False
    max_seq_len: int | None = None

    def start(self) -> "RowTokenizer":
        """``ConfigError`` if the template or the tokenizer cannot be used."""
        return RowTokenizer(self)


class RowTokenizer:
    """Calls turn a ``RowBatch`` into a ``TokenBatch``."""

    def __init__(self, settings: Tokenization) -> None:
        parts = settings.tokenizer
        self._settings = settings
        self._tokenizer = tokenizers.Tokenizer.from_str(parts.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end = parts.special_tokens.get("eos_token", "")
        thinking: dict[str, Any] = (
            {} if settings.thinking is None else {"enable_thinking": settings.thinking}
        )
        variables = dict(parts.special_tokens) | thinking
        self.template = (
            ChatTemplate(parts.chat_template, variables, settings.now)
            if parts.chat_template is not None
            else None
        )

    def __call__(self, batch: RowBatch) -> TokenBatch:
        """``DataError`` names the row that has no known form or whose answers cannot be told."""
        sequences: list[tuple[Ids, Mask]] = []
        categories: list[str | None] = []
        left_out: list[LeftOut] = []
        truncated: list[bool] = []
        for number, row in enumerate(batch.rows, start=batch.first_row):
            try:
                ids, mask = self._tokens(row)
                cut = self._settings.max_seq_len or len(ids)
                _require_loss(mask[:cut])
            except UnusableRowError as error:
                left_out.append(LeftOut(row=number, reason=error.reason, message=str(error)))
            except DataError as error:
                raise DataError(f"row {number}: {error}") from error
            else:
                sequences.append((ids[:cut], mask[:cut]))
                truncated.append(len(ids) > cut)
                categories.append(_category(row))
        return TokenBatch(
            num_rows=len(batch.rows),
            bytes_read=batch.bytes_read,
            input_ids=np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in sequences)]),
            loss_mask=np.concatenate([np.zeros(0, np.uint8), *(mask for _, mask in sequences)]),
            lengths=np.array([len(ids) for ids, _ in sequences], np.int64),
            categories=categories,
            truncated=np.array(truncated, bool),
            left_out=left_out,
        )

    def _tokens(self, row: Row) -> tuple[Ids, Mask]:
        content = parse_row(row, has_template=self.template is not None)
        if isinstance(content, Text):
            end = self._end if content.prompt else ""
            text = content.prompt + content.answer + end
            return self._encode(text, [(len(content.prompt), len(text))], special_tokens=True)
        return self._encode(*self._rendered(content), special_tokens=False)

    def _rendered(self, chat: Chat) -> tuple[str, list[Span]]:
        if self.template is None:
            raise ConfigError(
                "the target has no chat template, and the rows are chats; give --chat-template"
            )
        answers = [at for at, each in enumerate(chat.messages) if each["role"] == "assistant"]
        if not answers:
            raise UnusableRowError("no_answer", "no message is the assistant's")
        messages = chat.messages[: answers[-1] + 1]  # nothing is learned from what follows
        last_only = self._settings.last_turn_only
        if not self.template.has_marks:
            render = self.template.renderer(chat.tools)
            return answer_spans(render, messages, last_turn_only=last_only)
        text, spans = self.template.render(messages, chat.tools)
        if last_only and len(answers) > 1:
            _, earlier = self.template.render(messages[:-1], chat.tools)
            spans = spans[len(earlier) :]
        return text, spans

    def _encode(
        self, text: str, spans: Sequence[Span], *, special_tokens: bool
    ) -> tuple[Ids, Mask]:
        """The tokens of ``text``; the mask is 1 on those that begin in one of ``spans``.

        A template writes its own special tokens; else the tokenizer adds its own.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnusableRowError("not_text", f"half a character: {error}") from error
        encoding = self._tokenizer.encode(text, add_special_tokens=special_tokens)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        starts, stops = offsets[:, 0], offsets[:, 1]
        # A token of blanks alone may be given as an empty place behind them, and a token that the
        # tokenizer added as an empty place at the start.
        begins = np.where(stops > starts, starts, starts - 1)
        mask = np.zeros(len(begins), np.uint8)
        for start, stop in spans:
            mask |= (begins >= start) & (begins < stop)
        return np.array(encoding.ids, np.int32), mask


def _category(row: Row) -> str | None:
    """Half a character, which Arrow has no bytes for, becomes its escape."""
    category = row.get("category")
    if not isinstance(category, str):
        return None
    return category.encode("utf-8", "backslashreplace").decode()


def _require_loss(mask: Mask) -> None:
    if not len(mask):
        raise UnusableRowError("empty", "it has no tokens")
    if not mask.any():
        raise UnusableRowError("no_loss_token", "no token of an answer is within --max-seq-len")
