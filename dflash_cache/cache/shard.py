"""Zarr v3 shard files, streamed out chunk by chunk.

A shard is inner chunks, then an index of their (offset, size) pairs, uint64 little-endian, and the
index's crc32c (Zarr v3 sharding codec, index at the end). Behind each chunk are zeros up to a
multiple of ``ALIGNMENT``, which no size counts.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dflash_cache.types import Array

from .codecs import CHECKSUM_BYTES, ChunkCodec
from .durable import crc32c
from .fingerprints import digest

INDEX_ENTRY_BYTES = 16
# Where the place in the file is a few bytes behind the place in memory, modulo a page, the copy out
# of the page cache takes up to six times as long, and a third longer at other odd distances.
ALIGNMENT = 64
# The page cache holds what comes in one call in larger pieces, and reads of those are faster.
CHUNKS_AT_ONCE = 8


class ShardWriter:
    """Appends inner chunks to one new file. Not thread-safe: a shard has one writer."""

    def __init__(self, path: Path, codec: ChunkCodec) -> None:
        self._codec = codec
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._index: list[tuple[int, int]] = []
        self.size = 0
        self.index_digest = ""
        self.chunk_crcs: list[int] = []

    @property
    def num_chunks(self) -> int:
        return len(self._index)

    def append(self, chunks: Iterable[Array]) -> None:
        """Write whole inner chunks (contiguous), several at once."""
        views: list[memoryview] = []
        for chunk in chunks:
            payload = self._codec.encode(chunk)
            crc = crc32c(payload)
            self.chunk_crcs.append(crc)
            size = len(payload) + CHECKSUM_BYTES
            self._index.append((self.size, size))
            padding = -size % ALIGNMENT
            self.size += size + padding
            views += [payload, memoryview(crc.to_bytes(CHECKSUM_BYTES + padding, "little"))]
            if len(views) == 2 * CHUNKS_AT_ONCE:
                self._write(views)  # and leaves it empty
        self._write(views)

    def finish(self) -> None:
        """Write the index and make the file durable."""
        index = np.array(self._index, dtype="<u8").reshape(-1, 2).tobytes()
        index += crc32c(index).to_bytes(CHECKSUM_BYTES, "little")
        self.index_digest = digest(index)
        self.size += len(index)
        self._write([memoryview(index)])
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, views: list[memoryview]) -> None:
        while views:  # a write may be short, for a signal or at 2 GiB
            written = os.writev(self._descriptor, views)
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]
