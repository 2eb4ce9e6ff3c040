"""What a segment says of itself: the record in the attributes of its Zarr group."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment, DroppedRow

from .arrays import group_metadata
from .durable import checked_line, parse_checked_line
from .fingerprints import digest
from .layout import segment_folder
from .storage import Storage, missing_file, repair_command


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRecord:
    """Enough to check every byte of the segment, and to write its commit record again."""

    index: int
    num_sequences: int
    num_tokens: int
    chunk_tokens: int  # of hidden states in one inner Zarr chunk
    bytes_raw: int
    bytes_stored: int
    files: Mapping[str, tuple[int, str]]  # name in the segment -> (size in bytes, XXH3-64)
    shard: tuple[int, str]  # of hidden states: size in bytes, XXH3-64 of the index at its end
    chunk_crcs: tuple[int, ...]  # crc32c of each inner chunk as stored
    dropped: tuple[DroppedRow, ...] = ()

    def to_bytes(self) -> bytes:
        """The group's ``zarr.json``."""
        record = asdict(self) | {"files": {name: list(pair) for name, pair in self.files.items()}}
        return group_metadata({"record": checked_line(record).decode()})

    @classmethod
    def from_bytes(cls, metadata: bytes, where: str) -> "SegmentRecord":
        """``CacheCorruptError`` names ``where`` unless the record is whole."""
        try:
            line = json.loads(metadata)["attributes"]["record"].encode()
            record = parse_checked_line(line, where)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheCorruptError(f"{where}: holds no segment's record") from error
        pairs = {name: (size, digest) for name, (size, digest) in record["files"].items()}
        dropped = tuple(DroppedRow(**row) for row in record["dropped"])
        whole: dict[str, Any] = {
            "files": pairs,
            "dropped": dropped,
            "shard": tuple(record["shard"]),
        }
        return cls(**record | whole | {"chunk_crcs": tuple(record["chunk_crcs"])})

    def committed(self) -> CommittedSegment:
        """The commit record."""
        return CommittedSegment(
            index=self.index,
            num_sequences=self.num_sequences,
            num_tokens=self.num_tokens,
            num_chunks=len(self.chunk_crcs),
            bytes_raw=self.bytes_raw,
            bytes_stored=self.bytes_stored,
            record_digest=digest(self.to_bytes()),
            dropped=self.dropped,
        )


def read_record(storage: Storage, segment: CommittedSegment) -> SegmentRecord:
    """The record of a committed segment, checked; ``CacheCorruptError`` names the file."""
    name = f"{segment_folder(segment.index)}/zarr.json"
    try:
        metadata = storage.read(name)
    except FileNotFoundError:
        raise missing_file(storage, name) from None
    if digest(metadata) != segment.record_digest:
        raise CacheCorruptError(f"{storage.place(name)}: not the record that was committed")
    return SegmentRecord.from_bytes(metadata, storage.place(name))


def own_record(storage: Storage, index: int) -> SegmentRecord:
    """The record of a segment in place that no commit tells of.

    ``CacheCorruptError`` if it is missing, was altered, or is another segment's.
    """
    place = storage.place(f"{segment_folder(index)}/zarr.json")
    try:
        record = SegmentRecord.from_bytes(storage.read(f"{segment_folder(index)}/zarr.json"), place)
        if record.index != index:
            raise CacheCorruptError(f"{place}: the record is that of segment {record.index}")
    except (FileNotFoundError, CacheCorruptError) as error:
        raise CacheCorruptError(
            f"{place}: the segment is in place, but its record is missing or was altered; mend "
            f"it with: {repair_command(storage.address)}"
        ) from error
    return record
