"""Reading inner chunks of a Zarr v3 shard file in ranges, each checked."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import Array

from .codecs import CHECKSUM_BYTES, ChunkCodec
from .durable import crc32c
from .fingerprints import digest
from .record import SegmentRecord
from .shard import INDEX_ENTRY_BYTES
from .storage import RangeReader, Storage
from .tokens import ChunkPart, aligned_empty

REQUEST_BYTES = 16 << 20  # in one call, or one request to an object store


class _Landing(threading.local):
    """Memory for bytes that cannot land where they are wanted.

    Each thread keeps its own from read to read: a page fault costs more than reading the page.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._used = 0

    def clear(self) -> None:
        """Let everything that was taken be taken again."""
        self._used = 0

    def take(self, num_bytes: int) -> memoryview:
        start, self._used = self._used, self._used + num_bytes
        if self._used > len(self._memory):  # views of the old memory keep it
            self._memory = aligned_empty((self._used,), np.uint8).data
        return self._memory[start : self._used]


_landing = _Landing()


class DamagedChunkError(CacheCorruptError):
    """An inner chunk is not as it was written."""

    def __init__(self, message: str, chunk: int) -> None:
        super().__init__(message)
        self.chunk = chunk


class ShardReader:
    """Reads inner chunks of one shard file, each checked. Thread-safe."""

    def __init__(
        self, storage: Storage, name: str, record: SegmentRecord, codec: ChunkCodec
    ) -> None:
        self._storage = storage
        self._name = name
        self._record = record
        self._codec = codec
        self._offsets, self._sizes = [0], list[int]()  # no size counts the zeros behind a chunk
        if record.chunk_crcs:  # an empty segment has no shard
            with self._open() as file:
                self._read_index(file)

    def read(self, parts: Iterable[ChunkPart], hidden: Array) -> None:
        """Bring what is wanted of each inner chunk to its place in ``hidden`` (contiguous).

        ``DamagedChunkError`` names a chunk that is not as it was written.
        """
        if not self._sizes:
            return
        into, token_bytes = hidden.reshape(-1).view(np.uint8).data, hidden[:1].nbytes
        with self._open() as file:
            for request in self._requests(parts):
                _landing.clear()
                payloads = [self._payload(part, into, token_bytes) for part in request]
                self._load(file, request[0].chunk, payloads)
                for part, payload in zip(request, payloads, strict=True):
                    self._check(part.chunk, payload)
                    if self._codec.compresses:
                        self._decompress(payload[0], part, into, token_bytes)

    def damaged(self) -> Iterator[DamagedChunkError]:
        """Check every inner chunk, and tell of each that is not as it was written."""
        if not self._sizes:
            return
        with self._open() as file:
            for number in range(len(self._sizes)):
                _landing.clear()
                payload = [_landing.take(count) for count in self._stored(number)]
                self._load(file, number, [payload])
                try:
                    self._check(number, payload)
                except DamagedChunkError as error:
                    yield error

    @contextmanager
    def _open(self) -> Iterator[RangeReader]:
        """The file, of the size that was recorded."""
        size = self._record.shard[0]
        try:
            file = self._storage.open(self._name)
        except FileNotFoundError:
            raise CacheCorruptError(f"{self._place()}: the file is missing") from None
        try:
            if file.size != size:
                raise CacheCorruptError(f"{self._place()}: {file.size} bytes, expected {size}")
            yield file
        finally:
            file.close()

    def _place(self) -> str:
        return self._storage.place(self._name)

    def _read_index(self, file: RangeReader) -> None:
        size, index_digest = self._record.shard
        index = bytearray(len(self._record.chunk_crcs) * INDEX_ENTRY_BYTES + CHECKSUM_BYTES)
        file.read_into([memoryview(index)], size - len(index))
        if digest(bytes(index)) != index_digest:
            raise CacheCorruptError(f"{self._place()}: the shard's index is not what was recorded")
        entries = np.frombuffer(index[:-CHECKSUM_BYTES], "<u8").reshape(-1, 2)
        offsets, self._sizes = entries.T.tolist()
        self._offsets = [*offsets, size - len(index)]

    def _load(self, file: RangeReader, first: int, payloads: Iterable[list[memoryview]]) -> None:
        """Read neighbouring chunks, from number ``first`` on, at once."""
        file.read_into([piece for payload in payloads for piece in payload], self._offsets[first])

    def _stored(self, number: int) -> tuple[int, int]:
        """Bytes of a chunk's payload, and from there to the next chunk."""
        num_bytes = self._sizes[number] - CHECKSUM_BYTES
        return num_bytes, self._offsets[number + 1] - self._offsets[number] - num_bytes

    def _requests(self, parts: Iterable[ChunkPart]) -> Iterator[list[ChunkPart]]:
        """Neighbouring chunks together, as many as are read at once."""
        request: list[ChunkPart] = []
        for part in parts:
            if request and (
                part.chunk != request[-1].chunk + 1
                or self._offsets[part.chunk + 1] - self._offsets[request[0].chunk] > REQUEST_BYTES
            ):
                yield request
                request = []
            request.append(part)
        if request:
            yield request

    def _payload(self, part: ChunkPart, into: memoryview, token_bytes: int) -> list[memoryview]:
        """Where a chunk's bytes go, in order; the checksum and the zeros behind it last.

        Uncompressed, the wanted ones land in their place.
        """
        num_bytes, rest = self._stored(part.chunk)
        if self._codec.compresses:
            return [_landing.take(num_bytes), _landing.take(rest)]
        before, wanted = part.skipped * token_bytes, part.num_tokens * token_bytes
        start, after = part.start * token_bytes, num_bytes - before - wanted
        payload = [_landing.take(before)] if before else []
        payload.append(into[start : start + wanted])
        if after:
            payload.append(_landing.take(after))
        payload.append(_landing.take(rest))
        return payload

    def _decompress(
        self, payload: memoryview, part: ChunkPart, into: memoryview, token_bytes: int
    ) -> None:
        start, count = part.start * token_bytes, part.num_tokens * token_bytes
        if part.num_tokens == self._record.chunk_tokens:
            self._codec.decompress(payload, into[start : start + count])
            return
        whole = _landing.take(token_bytes * self._record.chunk_tokens)
        self._codec.decompress(payload, whole)
        skipped = part.skipped * token_bytes
        into[start : start + count] = whole[skipped : skipped + count]

    def _check(self, number: int, payload: Sequence[memoryview]) -> None:
        """The checksum behind the bytes must be theirs, and the one recorded on commit.

        So a whole chunk of another segment is found out as well. Zeros behind it are its highest
        digits.
        """
        found = 0
        for piece in payload[:-1]:
            found = crc32c(piece, found)
        stored = int.from_bytes(payload[-1], "little")
        if found != stored or found != self._record.chunk_crcs[number]:
            raise DamagedChunkError(
                f"{self._place()}, chunk {number}: the chunk's checksum does not match its bytes",
                number,
            )
