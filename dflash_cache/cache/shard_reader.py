"""Reading inner chunks of a Zarr v3 shard file in ranges, each checked."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dflash_cache.errors import CacheCorruptError

from .codecs import CHECKSUM_BYTES, ChunkCodec
from .durable import crc32c
from .fingerprints import digest
from .landing import Landing, borrowed_landing
from .record import SegmentRecord
from .shard import INDEX_ENTRY_BYTES
from .storage import RangeReader, Storage, missing_file
from .tokens import ChunkPart

REQUEST_BYTES = 16 << 20  # in one call, or one request to an object store


class DamagedChunkError(CacheCorruptError):
    """An inner chunk is not as it was written."""

    def __init__(self, message: str, chunk: int) -> None:
        super().__init__(message)
        self.chunk = chunk


class ShardReader:
    """Reads inner chunks of one shard file, each checked. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        record: SegmentRecord,
        codec: ChunkCodec,
        chunk_bytes: int,
    ) -> None:
        """``chunk_bytes`` are those of an inner chunk's values."""
        self._storage = storage
        self._name = name
        self._record = record
        self._codec = codec
        self._chunk_bytes = chunk_bytes
        self._offsets, self._sizes = [0], list[int]()  # no size counts the zeros behind a chunk
        if record.chunk_crcs:  # an empty segment has no shard
            with self._open() as file:
                self._read_index(file)

    def read(self, parts: Iterable[ChunkPart], into: memoryview) -> None:
        """Bring what is wanted of each inner chunk to its place in ``into``.

        ``DamagedChunkError`` names a chunk that is not as it was written.
        """
        if not self._sizes:
            return
        with self._open() as file, borrowed_landing() as landing:
            for request in self._requests(parts):
                landing.clear()
                payloads = [self._payload(part, into, landing) for part in request]
                self._load(file, request[0].chunk, payloads)
                for part, payload in zip(request, payloads, strict=True):
                    self._check(part.chunk, payload)
                    if self._codec.compresses:
                        self._decompress(payload[0], part, into, landing)

    def damaged(self) -> Iterator[DamagedChunkError]:
        """Check every inner chunk, and tell of each that is not as it was written."""
        if not self._sizes:
            return
        with self._open() as file, borrowed_landing() as landing:
            for number in range(len(self._sizes)):
                landing.clear()
                payload = [landing.take(count) for count in self._stored(number)]
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
            raise missing_file(self._storage, self._name) from None
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

    def _payload(self, part: ChunkPart, into: memoryview, landing: Landing) -> list[memoryview]:
        """Where a chunk's bytes go, in order; the checksum and the zeros behind it last.

        Uncompressed, the wanted ones land in their place.
        """
        num_bytes, rest = self._stored(part.chunk)
        if self._codec.compresses:
            return [landing.take(num_bytes), landing.take(rest)]
        payload, done = [], 0
        for offset, start, size in part.pieces:
            if offset > done:
                payload.append(landing.take(offset - done))
            payload.append(into[start : start + size])
            done = offset + size
        if num_bytes > done:
            payload.append(landing.take(num_bytes - done))
        return [*payload, landing.take(rest)]

    def _decompress(
        self, payload: memoryview, part: ChunkPart, into: memoryview, landing: Landing
    ) -> None:
        _, start, size = part.pieces[0]
        if size == self._chunk_bytes:
            self._codec.decompress(payload, into[start : start + size])
            return
        whole = landing.take(self._chunk_bytes)
        self._codec.decompress(payload, whole)
        for offset, start, size in part.pieces:
            into[start : start + size] = whole[offset : offset + size]

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
