"""One segment: a Zarr group written once by one writer.

Axes: T tokens, K context layers, H hidden size.
"""

import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr

from dflash_cache.types import (
    Array,
    CommittedSegment,
    DroppedRow,
    TokenSequence,
)

from .arrays import write_array
from .codecs import chunk_codec
from .durable import fsync_tree, remove_tree
from .fingerprints import fingerprint_files
from .layout import segment_folder, segment_name
from .record import SegmentRecord
from .shard import ShardWriter
from .spec import CacheSpec

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


def shard_name(index: int) -> str:
    """In the cache, of the hidden states of segment ``index``."""
    return f"{segment_folder(index)}/{SHARD_KEY}"


def chunking(num_tokens: int, token_bytes: int) -> tuple[int, int]:
    """(chunks, tokens in each): equal inner chunks near their limit, with little padding.

    No chunk for a segment all of whose rows were dropped.
    """
    num_chunks = math.ceil(num_tokens / max(1, INNER_CHUNK_BYTES // token_bytes))
    return num_chunks, math.ceil(num_tokens / num_chunks) if num_chunks else 1


class SegmentWriter:
    """Streams a segment into a temporary folder; ``finish`` makes it whole, never visible.

    Hidden states are appended as they come and are not kept: in memory are at most one inner chunk
    and, compressed, those that go out in one call.
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
        chunk_tokens = len(self._chunk)
        while len(hidden_TKH):
            num_chunks = len(hidden_TKH) // chunk_tokens
            if not self._filled and num_chunks:
                whole = hidden_TKH[: num_chunks * chunk_tokens]
                self._shard.append(map(np.ascontiguousarray, np.split(whole, num_chunks)))
                hidden_TKH = hidden_TKH[len(whole) :]
                continue
            part = hidden_TKH[: chunk_tokens - self._filled]
            self._chunk[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            hidden_TKH = hidden_TKH[len(part) :]
            if self._filled == chunk_tokens:
                self._flush()

    def _flush(self) -> None:
        self._shard.append([self._chunk])
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


def _shape(spec: CacheSpec) -> tuple[int, int]:
    return spec.num_states, spec.hidden_size
