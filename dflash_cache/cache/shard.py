"""Zarr v3 shard files, streamed out chunk by chunk and read in ranges.

A shard is inner chunks end to end, then an index of (offset, size) pairs, uint64 little-endian,
and the index's crc32c (Zarr v3 sharding codec, index at the end).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import Array

from .codecs import CHECKSUM_BYTES, ChunkCodec
from .durable import crc32c
from .fingerprints import digest
from .storage import Storage

_INDEX_ENTRY_BYTES = 16


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

    def append(self, chunk: Array) -> None:
        """Write one whole inner chunk (contiguous)."""
        payload = self._codec.encode(chunk)
        crc = crc32c(payload)
        self.chunk_crcs.append(crc)
        self._index.append((self.size, len(payload) + CHECKSUM_BYTES))
        view = payload.data if isinstance(payload, np.ndarray) else memoryview(payload)
        self._write([view, memoryview(crc.to_bytes(CHECKSUM_BYTES, "little"))])

    def finish(self) -> None:
        """Write the index and make the file durable."""
        index = np.array(self._index, dtype="<u8").reshape(-1, 2).tobytes()
        index += crc32c(index).to_bytes(CHECKSUM_BYTES, "little")
        self.index_digest = digest(index)
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
            self.size += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]


class LoadedChunk(NamedTuple):
    """An inner chunk as stored, and where its values go."""

    number: int
    target: Array
    payload: Array  # [bytes] uint8; the target's own memory where nothing is compressed
    checksum: bytearray


class ShardReader:
    """Reads inner chunks of one shard file, each checked. Use as a context manager."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        shard: tuple[int, str],
        chunk_crcs: Sequence[int],
        codec: ChunkCodec,
    ) -> None:
        """``shard`` (size, digest of the index) and ``chunk_crcs`` are what the record says."""
        self._place = storage.place(name)
        self._chunk_crcs = chunk_crcs
        self._codec = codec
        try:
            self._file = storage.open(name)
        except FileNotFoundError:
            raise CacheCorruptError(f"{self._place}: the file is missing") from None
        try:
            self._index = self._read_index(*shard)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def load(self, first: int, targets: Sequence[Array]) -> list[LoadedChunk]:
        """Read the inner chunks from number ``first`` on, one for each of ``targets``, at once.

        A target is contiguous and a whole chunk; it holds the values after ``decode``.
        """
        loaded, buffers = [], []
        for number, target in enumerate(targets, start=first):
            payload = self._codec.landing(target, int(self._index[number, 1]) - CHECKSUM_BYTES)
            chunk = LoadedChunk(number, target, payload, bytearray(CHECKSUM_BYTES))
            loaded.append(chunk)
            buffers += [payload.data, memoryview(chunk.checksum)]
        self._file.read_into(buffers, int(self._index[first, 0]))
        return loaded

    def decode(self, chunk: LoadedChunk) -> None:
        """Check a loaded inner chunk and write it to its target."""
        crc, where = self._chunk_crcs[chunk.number], f"{self._place}, chunk {chunk.number}"
        self._codec.decode(chunk.payload, bytes(chunk.checksum), crc, chunk.target, where)

    def check(self, number: int) -> None:
        """``CacheCorruptError`` unless an inner chunk is as it was written."""
        (chunk,) = self.load(number, [np.empty(0, np.uint8)])
        crc, where = self._chunk_crcs[number], f"{self._place}, chunk {number}"
        self._codec.check(chunk.payload, bytes(chunk.checksum), crc, where)

    def _read_index(self, size: int, index_digest: str) -> Array:
        if self._file.size != size:
            raise CacheCorruptError(f"{self._place}: {self._file.size} bytes, expected {size}")
        index = bytearray(len(self._chunk_crcs) * _INDEX_ENTRY_BYTES + CHECKSUM_BYTES)
        self._file.read_into([memoryview(index)], size - len(index))
        if digest(bytes(index)) != index_digest:
            raise CacheCorruptError(f"{self._place}: the shard's index is not what was recorded")
        return np.frombuffer(index[:-CHECKSUM_BYTES], "<u8").reshape(-1, 2)
