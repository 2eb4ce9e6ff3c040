"""The values that cross the borders between packages.

Axes in names: T tokens, N sequences, K context layers, H hidden size, S blocks, B block size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

if TYPE_CHECKING:  # torch must not be imported by code that only reads a cache
    import torch

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
DtypeName = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSequence:
    """One dataset row as tokens, truncated to the plan's limit."""

    row_id: int
    input_ids: npt.NDArray[np.int32]  # [T]
    loss_mask: npt.NDArray[np.uint8]  # [T], 0 or 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RowContent:
    """A row known by what it holds, wherever it stands: its tokens' number and hash."""

    num_tokens: int
    tokens_hash: str

    @classmethod
    def of(cls, input_ids: Array) -> RowContent:
        """Of a row's ids [T] as they were used."""
        ids = np.ascontiguousarray(input_ids, np.int32)
        return cls(num_tokens=len(ids), tokens_hash=xxhash.xxh3_128_hexdigest(ids.data))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerParts:
    """A target's tokenizer as plain text, for processes that do without transformers."""

    tokenizer_json: str  # what the library tokenizers reads
    chat_template: str | None  # Jinja
    special_tokens: Mapping[str, str]  # by the names that templates use, such as bos_token


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a target writes an answer."""

    temperature: float  # 0 is greedy
    top_p: float
    max_tokens: int
    thinking: bool | None  # what the chat template is told as enable_thinking; None: nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a target wrote: a message of a chat, with ``role`` and ``content`` at least."""

    message: dict[str, Any]
    num_tokens: int  # 0 where a server does not say
    truncated: bool  # at the most tokens allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedRow:
    """A row that is not in the cache, and why."""

    row_id: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentPlan:
    """Which rows form segment ``index``, in the order in which they are stored."""

    index: int
    row_ids: Int64Array  # [N]
    lengths: Int64Array  # [N], tokens

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenSegment:
    """One segment's sequences, ragged: sequence n is ``offsets[n]:offsets[n + 1]``.

    ``hidden_TKH`` is float32, bfloat16 bit patterns as uint16, or float8_e4m3fn ones as uint8; a
    value is then that of its bits times the scale of its token and layer.
    """

    index: int
    row_ids: Int64Array  # [N]
    offsets: Int64Array  # [N + 1]
    input_ids: npt.NDArray[np.int32]  # [T]
    loss_mask: npt.NDArray[np.uint8]  # [T]
    hidden_TKH: Array
    scales_TK: Array | None = None  # float32, of float8_e4m3fn states


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedSegment:
    """The record that makes a segment part of the cache."""

    index: int
    num_sequences: int
    num_tokens: int
    num_chunks: int
    bytes_raw: int
    bytes_stored: int
    record_digest: str  # of the segment's own record, which says what its files hold
    dropped: tuple[DroppedRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftBatch:
    """Packed training input: N whole sequences end to end, no padding, and S blocks on them.

    Token indices are positions in the pack; ``offsets`` delimits the sequences. ``anchors`` is
    ascending. The float features keep the stored dtype until they are on the training device.
    """

    hidden_TKH: torch.Tensor  # [T, K, H], float32, bfloat16 or float8_e4m3fn
    input_ids: torch.Tensor  # [T], int64
    loss_mask: torch.Tensor  # [T], bool
    offsets: torch.Tensor  # [N + 1], int64, on the CPU
    anchors: torch.Tensor  # [S], int64, on the CPU
    row_ids: tuple[int, ...]
    scales_TK: torch.Tensor | None = None  # [T, K], float32, of float8_e4m3fn states

    @property
    def num_sequences(self) -> int:
        return len(self.row_ids)

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])
