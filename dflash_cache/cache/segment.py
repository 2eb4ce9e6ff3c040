"""One segment: a Zarr group written once by one writer.

Axes: T tokens, K context layers, H hidden size.
"""

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
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

from .arrays import read_chunks, write_array
from .codecs import chunk_codec
from .durable import fsync_tree, remove_tree
from .fingerprints import Fingerprints, digest, fingerprint_files
from .layout import segment_folder, segment_name
from .record import SegmentRecord
from .shard import ShardReader, ShardWriter
from .spec import CacheSpec
from .storage import Storage
from .tokens import pieces, runs_of, taken

# A read of one sequence takes whole chunks. On sequences of 12 MB, 1 MiB reads a tenth more than
# it needs, 4 MiB a third (docs/decisions/0005-inner-chunks.md).
INNER_CHUNK_BYTES = 1 << 20
SHARD_KEY = "hidden_states/c.0.0.0"
SMALL_ARRAYS: Mapping[str, npt.DTypeLike] = {
    "input_ids": np.int32,
    "loss_mask": np.uint8,
    "offsets": np.int64,
    "row_ids": np.int64,
}
SCALES = "scales"  # of quantized states only


def chunking(num_tokens: int, token_bytes: int) -> tuple[int, int]:
    """(chunks, tokens in each): equal inner chunks near their limit, with little padding.

    No chunk for a segment all of whose rows were dropped.
    """
    num_chunks = math.ceil(num_tokens / max(1, INNER_CHUNK_BYTES // token_bytes))
    return num_chunks, math.ceil(num_tokens / num_chunks) if num_chunks else 1


class SegmentWriter:
    """Streams a segment into a temporary folder; ``finish`` makes it whole, never visible.

    Hidden states are appended as they come and are not kept: at most one inner chunk is in memory.
    """

    def __init__(self, staging: Path, spec: CacheSpec, index: int, num_tokens: int) -> None:
        self.index = index
        self.folder = staging / f"{segment_name(index)}-{uuid.uuid4().hex}"
        self._spec = spec
        self._appended = 0
        _, chunk_tokens = chunking(num_tokens, spec.stored_token_bytes)
        self._chunk = np.zeros((chunk_tokens, *_shape(spec)), spec.stored_dtype)
        self._filled = 0
        self._scales = [np.zeros((0, _shape(spec)[0]), np.float32)]
        (self.folder / "hidden_states").mkdir(parents=True)
        self._shard = ShardWriter(self.folder / SHARD_KEY, chunk_codec(spec.codec))

    def append(self, hidden_TKH: Array, scales_TK: Array | None = None) -> None:
        """Add the next tokens; the arrays are free for reuse when this returns.

        Quantized states, and only they, have ``scales_TK``.
        """
        if hidden_TKH.shape[1:] != self._chunk.shape[1:] or hidden_TKH.dtype != self._chunk.dtype:
            raise ValueError(
                f"hidden states {hidden_TKH.shape} {hidden_TKH.dtype}, expected "
                f"(tokens, {self._chunk.shape[1]}, {self._chunk.shape[2]}) {self._chunk.dtype}"
            )
        if (scales_TK is not None) != self._spec.quantized:
            raise ValueError(f"codec {self._spec.codec}: scales must be given for fp8 alone")
        if scales_TK is not None:
            self._scales.append(scales_TK.copy())
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
        record = self._record(sequences, dropped)
        # The segment carries its own record, so that the commits can be rebuilt.
        (self.folder / "zarr.json").write_bytes(record.to_bytes())
        fsync_tree(self.folder)
        return record.committed()

    def _record(
        self, sequences: Sequence[TokenSequence], dropped: Sequence[DroppedRow]
    ) -> SegmentRecord:
        files = fingerprint_files(self.folder, skip=SHARD_KEY)
        shard = (self._shard.size, self._shard.index_digest) if sequences else (0, "")
        return SegmentRecord(
            index=self.index,
            num_sequences=len(sequences),
            num_tokens=self._appended,
            chunk_tokens=len(self._chunk),
            bytes_raw=self._appended * self._spec.token_bytes,
            bytes_stored=sum(size for size, _ in files.values()) + shard[0],
            files=files,
            shard=shard,
            chunk_crcs=tuple(self._shard.chunk_crcs),
            dropped=tuple(dropped),
        )

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
            compressors=chunk_codec(self._spec.codec).zarr_chain(self._chunk.itemsize),
            fill_value=0,
            chunk_key_encoding={"name": "default", "separator": "."},
            attributes={"logical_dtype": self._spec.logical_dtype},
        )
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        row_ids = np.array([sequence.row_id for sequence in sequences], dtype=np.int64)
        empty = np.zeros(0, np.int32)
        input_ids = np.concatenate([empty, *(s.input_ids for s in sequences)])
        loss_mask = np.concatenate([empty, *(s.loss_mask for s in sequences)])
        arrays: list[Array] = [input_ids, loss_mask, offsets, row_ids]
        for (name, dtype), data in zip(SMALL_ARRAYS.items(), arrays, strict=True):
            write_array(self.folder / name, data.astype(dtype, copy=False))
        if self._spec.quantized:
            write_array(self.folder / SCALES, np.concatenate(self._scales))


def read_record(storage: Storage, segment: CommittedSegment) -> SegmentRecord:
    """The record of a committed segment, checked; ``CacheCorruptError`` names the file."""
    name = f"{segment_folder(segment.index)}/zarr.json"
    try:
        metadata = storage.read(name)
    except FileNotFoundError:
        raise CacheCorruptError(f"{storage.place(name)}: the file is missing") from None
    if digest(metadata) != segment.record_digest:
        raise CacheCorruptError(f"{storage.place(name)}: not the record that was committed")
    return SegmentRecord.from_bytes(metadata, storage.place(name))


def read_segment(
    storage: Storage,
    record: SegmentRecord,
    spec: CacheSpec,
    row_ids: Int64Array | None = None,
    first_row: int = 0,
    into: Array | None = None,
) -> HiddenSegment:
    """Read a committed segment, or only those of its sequences that are in ``row_ids``.

    ``first_row`` is added to the row numbers, which a segment counts in its own dataset.
    Hidden states land in ``into``, which must have room, where the caller has such a buffer.
    Every byte is checked. ``CacheCorruptError`` names the file, the chunk and the rows in it.
    """
    ids, mask, offsets, rows = _read_small_arrays(storage, record)
    rows = rows + first_row
    wanted = np.arange(len(rows)) if row_ids is None else np.flatnonzero(np.isin(rows, row_ids))
    runs = runs_of(offsets, wanted)
    num_tokens = sum(stop - start for start, stop in runs)
    hidden = np.empty((num_tokens, *_shape(spec)), spec.stored_dtype) if into is None else into
    hidden = hidden[:num_tokens]
    scales = _read_scales(storage, record, spec) if spec.quantized else None
    with open_shard(storage, record, spec, rows) as shard:
        for piece in pieces(hidden, runs, record.chunk_tokens):
            for chunk in shard.load(piece.first_chunk, piece.targets):
                with _naming(rows[_in_chunk(offsets, record, chunk.number)], record):
                    shard.decode(chunk)
            piece.finish()
    return HiddenSegment(
        index=record.index,
        row_ids=rows[wanted],
        offsets=np.cumsum([0, *np.diff(offsets)[wanted]], dtype=np.int64),
        input_ids=taken(ids, runs),
        loss_mask=taken(mask, runs),
        hidden_TKH=hidden,
        scales_TK=None if scales is None else taken(scales, runs),
    )


def _read_small_arrays(storage: Storage, record: SegmentRecord) -> list[Array]:
    folder, tokens, rows = segment_folder(record.index), record.num_tokens, record.num_sequences
    lengths = {"input_ids": tokens, "loss_mask": tokens, "offsets": rows + 1, "row_ids": rows}
    files = _files(record)
    return [
        read_chunks(storage, f"{folder}/{name}", files, (lengths[name],), dtype)
        for name, dtype in SMALL_ARRAYS.items()
    ]


def _read_scales(storage: Storage, record: SegmentRecord, spec: CacheSpec) -> Array:
    name, shape = f"{segment_folder(record.index)}/{SCALES}", (record.num_tokens, _shape(spec)[0])
    return read_chunks(storage, name, _files(record), shape, np.float32)


def _files(record: SegmentRecord) -> Fingerprints:
    """The segment's files by their names in the cache."""
    folder = segment_folder(record.index)
    return {f"{folder}/{name}": recorded for name, recorded in record.files.items()}


def rows_of_chunk(storage: Storage, record: SegmentRecord, chunk: int) -> Int64Array:
    """The rows, by number in their dataset, that have tokens in one inner chunk."""
    _, _, offsets, rows = _read_small_arrays(storage, record)
    return rows[_in_chunk(offsets, record, chunk)]


def _in_chunk(offsets: Int64Array, record: SegmentRecord, chunk: int) -> Array:
    first, last = chunk * record.chunk_tokens, (chunk + 1) * record.chunk_tokens
    inside: Array = (offsets[:-1] < last) & (offsets[1:] > first)
    return inside


def _shape(spec: CacheSpec) -> tuple[int, int]:
    return spec.num_states, spec.hidden_size


def open_shard(
    storage: Storage, record: SegmentRecord, spec: CacheSpec, rows: Int64Array
) -> AbstractContextManager[ShardReader]:
    """``rows`` are lost, and named, if the shard as a whole is damaged."""
    if not record.num_tokens:  # no shard: its reader is never used
        return nullcontext()  # type: ignore[return-value]
    name = f"{segment_folder(record.index)}/{SHARD_KEY}"
    with _naming(rows, record):
        return ShardReader(storage, name, record.shard, record.chunk_crcs, chunk_codec(spec.codec))


@contextmanager
def _naming(rows: Int64Array, record: SegmentRecord) -> Iterator[None]:
    """Let an error of damage name the rows whose states are lost."""
    try:
        yield
    except CacheCorruptError as error:
        what = f"it holds states of rows {shown_rows(rows)} (segment {record.index})"
        raise CacheCorruptError(f"{error}; {what}") from error


def shown_rows(rows: Int64Array, most: int = 12) -> str:
    shown = ", ".join(str(row) for row in rows[:most])
    return shown if len(rows) <= most else f"{shown} and {len(rows) - most} more"
