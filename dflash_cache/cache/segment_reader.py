"""Reading one committed segment. Axes: T tokens, K context layers, H hidden size."""

from itertools import accumulate

import numpy as np

from dflash_cache.errors import CacheAwayError, CacheCorruptError
from dflash_cache.types import Array, HiddenSegment, Int64Array

from .arrays import read_chunks
from .codecs import chunk_codec
from .layout import segment_folder
from .record import SegmentRecord
from .segment import SCALES, SMALL_ARRAYS, shard_name
from .shard_reader import DamagedChunkError, ShardReader
from .spec import CacheSpec
from .storage import Storage
from .tokens import aligned_empty, chunk_parts, runs_of, taken


class SegmentReader:
    """A committed segment: the small arrays, read once, and the way to the hidden states.

    Every byte is checked when it is read. ``CacheCorruptError`` names the file, the chunk and the
    rows in it. Thread-safe.
    """

    def __init__(
        self, storage: Storage, record: SegmentRecord, spec: CacheSpec, first_row: int = 0
    ) -> None:
        """``first_row`` is added to the row numbers, which a segment counts in its own dataset."""
        self._record = record
        self._spec = spec
        tokens, rows = record.num_tokens, record.num_sequences
        lengths = {"input_ids": tokens, "loss_mask": tokens, "offsets": rows + 1, "row_ids": rows}
        folder = segment_folder(record.index)
        files = {f"{folder}/{name}": recorded for name, recorded in record.files.items()}
        self._ids, self._mask, offsets, row_ids = (
            read_chunks(storage, f"{folder}/{name}", files, (lengths[name],), dtype)
            for name, dtype in SMALL_ARRAYS.items()
        )
        self._offsets: list[int] = offsets.tolist()
        self._rows: Int64Array = row_ids + first_row
        self._place = {row: place for place, row in enumerate(self._rows.tolist())}
        self._scales: Array | None = None
        if spec.quantized:
            shape = (tokens, spec.num_states)
            self._scales = read_chunks(storage, f"{folder}/{SCALES}", files, shape, np.float32)
        try:
            self._shard = open_shard(storage, record, spec)
        except CacheCorruptError as error:
            raise self._damage(error, self._rows) from error

    def read(self, row_ids: Int64Array | None = None, into: Array | None = None) -> HiddenSegment:
        """The segment, or only those of its sequences that are in ``row_ids``.

        Hidden states land in ``into`` where the caller has such a buffer; ``ValueError`` if it is
        too small, of another dtype, or not contiguous.
        """
        wanted = self._wanted(row_ids)
        runs = runs_of(self._offsets, wanted)
        num_tokens = sum(stop - start for start, stop in runs)
        hidden = self._room(num_tokens, into)
        try:
            parts = chunk_parts(runs, self._record.chunk_tokens, self._spec.stored_token_bytes)
            self._shard.read(parts, hidden.reshape(-1).view(np.uint8).data)
        except DamagedChunkError as error:
            raise self._damage(error, self.rows_of_chunk(error.chunk)) from error
        except CacheCorruptError as error:
            raise self._damage(error, self._rows[wanted]) from error
        lengths = (self._offsets[place + 1] - self._offsets[place] for place in wanted)
        return HiddenSegment(
            index=self._record.index,
            row_ids=self._rows[wanted],
            offsets=np.array([0, *accumulate(lengths)], np.int64),
            input_ids=taken(self._ids, runs),
            loss_mask=taken(self._mask, runs),
            hidden_TKH=hidden,
            scales_TK=None if self._scales is None else taken(self._scales, runs),
        )

    def _room(self, num_tokens: int, into: Array | None) -> Array:
        """Where hidden states go; ``ValueError`` if ``into`` cannot hold them."""
        shape = (num_tokens, self._spec.num_states, self._spec.hidden_size)
        dtype = np.dtype(self._spec.stored_dtype)
        if into is None:
            return aligned_empty(shape, dtype)
        if into[:num_tokens].shape != shape or into.dtype != dtype or not into.flags.c_contiguous:
            raise ValueError(
                f"a buffer of {into.shape} {into.dtype}, expected {shape} or more {dtype}, "
                "contiguous"
            )
        return into[:num_tokens]

    def _wanted(self, row_ids: Int64Array | None) -> list[int]:
        """The places, in order, of those sequences that are in ``row_ids``."""
        if row_ids is None:
            return list(range(len(self._rows)))
        places = map(self._place.get, row_ids.tolist())
        return sorted({place for place in places if place is not None})

    def rows_of_chunk(self, chunk: int) -> Int64Array:
        """The rows that have tokens in one inner chunk."""
        first = chunk * self._record.chunk_tokens
        last, offsets = first + self._record.chunk_tokens, np.array(self._offsets)
        return self._rows[(offsets[:-1] < last) & (offsets[1:] > first)]

    def _damage(self, error: CacheCorruptError, rows: Int64Array) -> CacheCorruptError:
        """``error`` with the rows whose states are lost."""
        what = f"it holds states of rows {shown_rows(rows)} (segment {self._record.index})"
        kind = CacheAwayError if isinstance(error, CacheAwayError) else CacheCorruptError
        return kind(f"{error}; {what}")


def open_shard(storage: Storage, record: SegmentRecord, spec: CacheSpec) -> ShardReader:
    """The hidden states of a segment."""
    chunk_bytes = record.chunk_tokens * spec.stored_token_bytes
    codec = chunk_codec(spec.codec)
    return ShardReader(storage, shard_name(record.index), record, codec, chunk_bytes)


def shown_rows(rows: Int64Array, most: int = 12) -> str:
    shown = ", ".join(str(row) for row in rows[:most])
    return shown if len(rows) <= most else f"{shown} and {len(rows) - most} more"
