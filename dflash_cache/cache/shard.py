"""Zarr v3 shard files, streamed out chunk by chunk and read in ranges.

A shard is inner chunks end to end, then an index of (offset, size) pairs, uint64 little-endian,
and the index's crc32c (Zarr v3 sharding codec, index at the end).
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import Array

from .codecs import CHECKSUM_BYTES, ChunkCodec
from .durable import crc32c

_INDEX_ENTRY_BYTES = 16


class ShardWriter:
    """Appends inner chunks to one new file. Not thread-safe: a shard has one writer."""

    def __init__(self, path: Path, codec: ChunkCodec) -> None:
        self._codec = codec
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._index: list[tuple[int, int]] = []
        self.size = 0
        self.chunk_crcs: list[int] = []
        self._digest = xxhash.xxh3_64()

    @property
    def num_chunks(self) -> int:
        return len(self._index)

    @property
    def digest(self) -> str:
        """Of the file so far."""
        return self._digest.hexdigest()

    def append(self, chunk: Array) -> None:
        """Write one whole inner chunk (contiguous)."""
        payload = self._codec.encode(chunk)
        crc = crc32c(payload)
        self.chunk_crcs.append(crc)
        self._index.append((self.size, len(payload) + CHECKSUM_BYTES))
        self._write(payload)
        self._write(crc.to_bytes(CHECKSUM_BYTES, "little"))

    def finish(self) -> None:
        """Write the index and make the file durable."""
        index = np.array(self._index, dtype="<u8").reshape(-1, 2).tobytes()
        self._write(index + crc32c(index).to_bytes(CHECKSUM_BYTES, "little"))
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: bytes | Array) -> None:
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        self._digest.update(view)
        while view:  # a write may be short, for a signal or at 2 GiB
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]


class ShardReader:
    """Reads inner chunks of one shard file, each checked. Use as a context manager."""

    def __init__(self, path: Path, size: int, chunk_crcs: Sequence[int], codec: ChunkCodec) -> None:
        """``size`` and ``chunk_crcs`` are what the commit record says the file holds."""
        self._path = path
        self._chunk_crcs = chunk_crcs
        self._codec = codec
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise CacheCorruptError(f"{path}: the file is missing") from None
        try:
            self._index = self._read_index(len(chunk_crcs), size)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> "ShardReader":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def read_into(self, chunk: int, values: Array) -> None:
        """Decode inner chunk number ``chunk`` into ``values`` (contiguous, a whole chunk)."""
        offset, size = (int(entry) for entry in self._index[chunk])
        payload = self._codec.landing(values, size - CHECKSUM_BYTES)
        checksum = bytearray(CHECKSUM_BYTES)
        self._read([payload.data, memoryview(checksum)], offset)
        where = f"{self._path}, chunk {chunk}"
        self._codec.decode(payload, bytes(checksum), self._chunk_crcs[chunk], values, where)

    def _read_index(self, num_chunks: int, size: int) -> Array:
        found = os.fstat(self._descriptor).st_size
        if found != size:
            raise CacheCorruptError(f"{self._path}: {found} bytes, expected {size}")
        index_bytes = num_chunks * _INDEX_ENTRY_BYTES
        index, checksum = bytearray(index_bytes), bytearray(CHECKSUM_BYTES)
        start = size - index_bytes - CHECKSUM_BYTES
        self._read([memoryview(index), memoryview(checksum)], start)
        if crc32c(bytes(index)).to_bytes(CHECKSUM_BYTES, "little") != checksum:
            raise CacheCorruptError(f"{self._path}: the shard index's checksum does not match")
        return np.frombuffer(index, "<u8").reshape(num_chunks, 2)

    def _read(self, buffers: list[memoryview], offset: int) -> None:
        """Fill ``buffers`` with the bytes from ``offset`` on."""
        while buffers:
            count = os.preadv(self._descriptor, buffers, offset)
            if not count:
                expected = offset + sum(len(buffer) for buffer in buffers)
                raise CacheCorruptError(f"{self._path}: ends at byte {offset}, expected {expected}")
            offset += count
            while buffers and count >= len(buffers[0]):  # a read may be short
                count -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][count:]
