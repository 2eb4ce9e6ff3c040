"""One segment on disk: a Zarr group written once by one writer.

Axes: T tokens, K context layers, H hidden size.
"""

import json
import math
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import (
    Array,
    CommittedSegment,
    DroppedRow,
    HiddenSegment,
    Int64Array,
    TokenSequence,
)

from .arrays import read_array, write_array, write_group
from .codecs import chunk_codec
from .commits import record_of, segment_of
from .durable import (
    checked_line,
    fingerprint_files,
    fsync_tree,
    parse_checked_line,
    remove_tree,
)
from .shard import ShardReader, ShardWriter
from .spec import CacheSpec

INNER_CHUNK_BYTES = 4 << 20
SHARD_KEY = "hidden_states/c.0.0.0"
SMALL_ARRAYS = ("input_ids", "loss_mask", "offsets", "row_ids")


def segment_name(index: int) -> str:
    return f"{index:08d}"


def segment_attributes(segment: CommittedSegment) -> dict[str, object]:
    """The attributes of the segment's Zarr group."""
    return {"record": checked_line(record_of(segment)).decode()}


def own_record(folder: Path) -> CommittedSegment | None:
    """The record that the segment in ``folder`` carries; None if it is missing or was altered."""
    path = folder / "zarr.json"
    try:
        line = json.loads(path.read_bytes())["attributes"]["record"].encode()
        segment = segment_of(parse_checked_line(line, str(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CacheCorruptError):
        return None
    return segment if segment_name(segment.index) == folder.name else None


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """How T tokens lie in one shard: equal inner chunks near 4 MiB, with little padding."""

    num_tokens: int
    token_bytes: int

    @property
    def num_chunks(self) -> int:
        """0 for a segment all of whose rows were dropped."""
        limit = max(1, INNER_CHUNK_BYTES // self.token_bytes)
        return math.ceil(self.num_tokens / limit)

    @property
    def chunk_tokens(self) -> int:
        return math.ceil(self.num_tokens / self.num_chunks) if self.num_chunks else 1


class SegmentWriter:
    """Streams a segment into a temporary folder; ``finish`` makes it whole, never visible.

    Hidden states are appended as they come and are not kept: at most one inner chunk is in memory.
    """

    def __init__(self, staging: Path, spec: CacheSpec, index: int, num_tokens: int) -> None:
        self.index = index
        self.folder = staging / f"{segment_name(index)}-{uuid.uuid4().hex}"
        self._spec = spec
        self._layout = SegmentLayout(num_tokens, spec.token_bytes)
        self._appended = 0
        self._chunk = np.zeros((self._layout.chunk_tokens, *_shape(spec)), _dtype(spec))
        self._filled = 0
        (self.folder / "hidden_states").mkdir(parents=True)
        self._shard = ShardWriter(self.folder / SHARD_KEY, chunk_codec(spec.codec))

    def append(self, hidden_TKH: Array) -> None:
        """Add the next tokens; the array is free for reuse when this returns."""
        if hidden_TKH.shape[1:] != self._chunk.shape[1:] or hidden_TKH.dtype != self._chunk.dtype:
            raise ValueError(
                f"hidden states {hidden_TKH.shape} {hidden_TKH.dtype}, expected "
                f"(tokens, {self._chunk.shape[1]}, {self._chunk.shape[2]}) {self._chunk.dtype}"
            )
        self._appended += len(hidden_TKH)
        while len(hidden_TKH):
            if self._filled == 0 and len(hidden_TKH) >= len(self._chunk):
                self._shard.append(np.ascontiguousarray(hidden_TKH[: len(self._chunk)]))
                hidden_TKH = hidden_TKH[len(self._chunk) :]
                continue
            part = hidden_TKH[: len(self._chunk) - self._filled]
            self._chunk[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            hidden_TKH = hidden_TKH[len(part) :]
            if self._filled == len(self._chunk):
                self._flush()

    def _flush(self) -> None:
        self._shard.append(self._chunk)
        self._filled = 0

    def finish(
        self, sequences: Sequence[TokenSequence], dropped: Sequence[DroppedRow] = ()
    ) -> CommittedSegment:
        """Write everything else and make the folder durable. Returns its commit record.

        ``sequences`` are those whose hidden states were appended, in order.
        """
        lengths = [len(sequence.input_ids) for sequence in sequences]
        if sum(lengths) != self._appended:
            raise ValueError(f"{self._appended} tokens appended for sequences of {sum(lengths)}")
        if self._filled:
            self._chunk[self._filled :] = 0
            self._flush()
        self._shard.finish()
        if not sequences:  # every row was dropped: an empty array has no shard
            (self.folder / SHARD_KEY).unlink()
        self._write_arrays(sequences, lengths)
        files = fingerprint_files(self.folder, skip=SHARD_KEY)
        if sequences:
            files[SHARD_KEY] = (self._shard.size, self._shard.digest)
        segment = CommittedSegment(
            index=self.index,
            num_sequences=len(sequences),
            num_tokens=self._appended,
            chunk_tokens=len(self._chunk),
            bytes_raw=self._appended * self._spec.token_bytes,
            bytes_stored=sum(size for size, _ in files.values()),
            files=files,
            chunk_crcs=tuple(self._shard.chunk_crcs),
            dropped=tuple(dropped),
        )
        # The segment carries its own record, so that the log can be rebuilt.
        write_group(self.folder, segment_attributes(segment))
        fsync_tree(self.folder)
        return segment

    def abort(self) -> None:
        """Remove what was written."""
        self._shard.close()
        remove_tree(self.folder)

    def _write_arrays(self, sequences: Sequence[TokenSequence], lengths: list[int]) -> None:
        zarr.create_array(
            store=self.folder / "hidden_states",
            shape=(self._appended, *self._chunk.shape[1:]),
            dtype=self._chunk.dtype,
            chunks=self._chunk.shape,
            shards=(len(self._chunk) * max(1, self._shard.num_chunks), *self._chunk.shape[1:]),
            compressors=chunk_codec(self._spec.codec).zarr_chain(self._spec.item_bytes),
            fill_value=0,
            chunk_key_encoding={"name": "default", "separator": "."},
            attributes={"logical_dtype": self._spec.dtype},
        )
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        row_ids = np.array([sequence.row_id for sequence in sequences], dtype=np.int64)
        empty = np.zeros(0, np.int32)
        input_ids = np.concatenate([empty, *(s.input_ids for s in sequences)]).astype(np.int32)
        loss_mask = np.concatenate([empty, *(s.loss_mask for s in sequences)]).astype(np.uint8)
        arrays: list[Array] = [input_ids, loss_mask, offsets, row_ids]
        for name, data in zip(SMALL_ARRAYS, arrays, strict=True):
            write_array(self.folder / name, data)


def read_segment(
    folder: Path, segment: CommittedSegment, spec: CacheSpec, row_ids: Int64Array | None = None
) -> HiddenSegment:
    """Read a committed segment, or only those of its sequences that are in ``row_ids``.

    Every byte is checked. ``CacheCorruptError`` names the file, the chunk and the rows in it.
    """
    ids, mask, offsets, rows = (read_array(folder, name, segment.files) for name in SMALL_ARRAYS)
    wanted = np.arange(len(rows)) if row_ids is None else np.flatnonzero(np.isin(rows, row_ids))
    runs = _runs(offsets, wanted)
    hidden = np.empty((sum(stop - start for start, stop in runs), *_shape(spec)), _dtype(spec))
    held = rows  # what is lost if the shard as a whole is damaged
    try:
        with _open_shard(folder, segment, spec) as shard:
            for chunk, values in _pieces(hidden, runs, segment.chunk_tokens):
                first, last = chunk * segment.chunk_tokens, (chunk + 1) * segment.chunk_tokens
                held = rows[(offsets[:-1] < last) & (offsets[1:] > first)]
                shard.read_into(chunk, values)
    except CacheCorruptError as error:
        what = f"it holds states of rows {shown_rows(held)} (segment {segment.index})"
        raise CacheCorruptError(f"{error}; {what}") from error
    return HiddenSegment(
        index=segment.index,
        row_ids=rows[wanted],
        offsets=np.cumsum([0, *np.diff(offsets)[wanted]], dtype=np.int64),
        input_ids=np.concatenate([ids[:0], *(ids[start:stop] for start, stop in runs)]),
        loss_mask=np.concatenate([mask[:0], *(mask[start:stop] for start, stop in runs)]),
        hidden_TKH=hidden,
    )


def _shape(spec: CacheSpec) -> tuple[int, int]:
    return len(spec.target_layer_ids), spec.hidden_size


def _dtype(spec: CacheSpec) -> type[np.uint16 | np.float32]:
    return np.uint16 if spec.dtype == "bfloat16" else np.float32


def _open_shard(
    folder: Path, segment: CommittedSegment, spec: CacheSpec
) -> AbstractContextManager[ShardReader]:
    if not segment.num_tokens:  # no shard: its reader is never used
        return nullcontext()  # type: ignore[return-value]
    size, _ = segment.files[SHARD_KEY]
    return ShardReader(folder / SHARD_KEY, size, segment.chunk_crcs, chunk_codec(spec.codec))


def _runs(offsets: Int64Array, wanted: Int64Array) -> list[tuple[int, int]]:
    """The tokens of the sequences ``wanted``, neighbours joined, as (start, stop)."""
    runs: list[tuple[int, int]] = []
    for index in wanted.tolist():
        start, stop = int(offsets[index]), int(offsets[index + 1])
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
    return runs


def _pieces(
    hidden: Array, runs: list[tuple[int, int]], chunk_tokens: int
) -> Iterator[tuple[int, Array]]:
    """Each chunk to read and the array to read it into, which ``hidden`` takes its part from.

    A chunk that lies whole in a run is read into ``hidden`` itself; the caller fills each array
    before it asks for the next.
    """
    scratch, held, done = np.empty((chunk_tokens, *hidden.shape[1:]), hidden.dtype), -1, 0
    for start, stop in runs:
        for chunk in range(start // chunk_tokens, -(-stop // chunk_tokens)):
            first, last = max(start, chunk * chunk_tokens), min(stop, (chunk + 1) * chunk_tokens)
            part = hidden[done : done + last - first]
            done += last - first
            if len(part) == chunk_tokens:
                yield chunk, part
                continue
            if chunk != held:
                held = chunk
                yield chunk, scratch
            part[...] = scratch[first - chunk * chunk_tokens : last - chunk * chunk_tokens]


def shown_rows(rows: Int64Array, most: int = 12) -> str:
    shown = ", ".join(str(row) for row in rows[:most])
    return shown if len(rows) <= most else f"{shown} and {len(rows) - most} more"
