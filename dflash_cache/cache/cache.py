"""A cache: identity, plan, the target's frozen parts, and committed segments."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.errors import (
    CacheAwayError,
    CacheCorruptError,
    CacheIncompleteError,
    ConfigError,
)
from dflash_cache.types import (
    Array,
    CommittedSegment,
    DroppedRow,
    HiddenSegment,
    Int64Array,
    SegmentPlan,
)

from .arrays import group_metadata, read_array
from .content import PLAN_ARRAYS, PlannedPart, TargetParts, write_groups
from .durable import checked_line, fsync_tree, parse_checked_line
from .fingerprints import Fingerprints, fingerprint_files, read_fingerprinted
from .layout import (
    LEDGERS,
    ROOT,
    SEGMENTS,
    SPEC,
    TARGET,
    ledger_name,
    plan_folder,
)
from .record import SegmentRecord, read_record
from .segment import shard_name
from .segment_reader import SegmentReader
from .spec import CacheSpec
from .storage import Storage, open_storage, repair_command

RECORDS_IN_MEMORY = 1024
READERS_IN_MEMORY = 16  # with the small arrays of their segments: some kilobytes each, or megabytes
Settings = Mapping[str, Any]


class Cache:
    """A cache opened for reading; ``segments`` holds the commit records by index."""

    def __init__(
        self,
        storage: Storage,
        identity: Mapping[str, Any],
        segments: dict[int, CommittedSegment],
    ) -> None:
        """``identity`` is the content of ``spec.json``."""
        self.storage = storage
        self._adopt_identity(identity)
        self.segments = segments
        self._record_of = lru_cache(RECORDS_IN_MEMORY)(partial(read_record, storage))
        self._reader_of = lru_cache(READERS_IN_MEMORY)(self._open_segment)

    def _adopt_identity(self, identity: Mapping[str, Any]) -> None:
        self.spec = CacheSpec.from_dict(identity["spec"])
        self.settings: Sequence[Settings] = identity["settings"]  # that made each part
        self.fingerprints: Fingerprints = {
            name: (size, digest) for name, (size, digest) in identity["files"].items()
        }

    @property
    def address(self) -> str:
        return self.storage.address

    @classmethod
    def open(cls, place: Storage | str | Path) -> "Cache":
        """Open a cache; ``ConfigError`` if there is none, ``CacheCorruptError`` if damaged."""
        storage = open_storage(place) if isinstance(place, str | Path) else place
        return cls(storage, read_identity(storage), storage.commits.read())

    @classmethod
    def create(
        cls,
        storage: Storage,
        spec: CacheSpec,
        settings: Settings,
        target: TargetParts,
        part: PlannedPart,
    ) -> "Cache":
        """Lay out a new cache. It exists once ``spec.json``, written last, is in place.

        ``settings`` are those that made it, kept for ``verify --repair`` and for people.
        """
        storage.require_free()
        storage.clear()
        staging = storage.staging()
        write_groups(staging)
        target.write(staging)
        part.write(staging, 0)
        files = fingerprint_files(staging)
        line = checked_line({"spec": spec.as_dict(), "settings": [settings], "files": files})
        (staging / ROOT / "zarr.json").write_bytes(spec_copy(line))
        fsync_tree(staging)
        for name in (ROOT, LEDGERS):
            storage.take(staging / name, name)
        storage.write(SPEC, line)
        return cls.open(storage)

    def append(self, spec: CacheSpec, settings: Settings, part: PlannedPart) -> None:
        """Add the last dataset part of ``spec``. Only the holder of the lock may."""
        number, staging = len(self.spec.parts), self.storage.staging()
        part.write(staging, number)
        files = dict(self.fingerprints) | fingerprint_files(staging)
        for name in sorted(files.keys() - self.fingerprints.keys()):
            self.storage.write(name, (staging / name).read_bytes())
        settings_of_all = [*self.settings, settings]
        record = {"spec": spec.as_dict(), "settings": settings_of_all, "files": files}
        line = checked_line(record)
        self.storage.write(SPEC, line)
        self.storage.write(f"{ROOT}/zarr.json", spec_copy(line))
        self._adopt_identity(record)

    @property
    def plan(self) -> list[SegmentPlan]:
        """All planned segments, committed or not; rows are numbered through all parts."""
        segments: list[SegmentPlan] = []
        for number, first_row in enumerate(self.spec.first_rows[:-1]):
            first = len(segments)
            segments += [
                replace(plan, index=plan.index + first, row_ids=plan.row_ids + first_row)
                for plan in self._part_plan(number)
            ]
        return segments

    def part(self, number: int) -> PlannedPart:
        """Plan and planned drops of one dataset part, by row numbers of its dataset."""
        return PlannedPart(segments=self._part_plan(number), dropped=self._part_drops(number))

    def _part_plan(self, number: int) -> list[SegmentPlan]:
        folder = plan_folder(number)
        rows, lengths, counts = (self._read_array(f"{folder}/{name}") for name in PLAN_ARRAYS)
        bounds = np.cumsum(counts)[:-1]
        pairs = zip(np.split(rows, bounds), np.split(lengths, bounds), strict=True)
        return [
            SegmentPlan(index=index, row_ids=row_ids, lengths=tokens)
            for index, (row_ids, tokens) in enumerate(pairs)
        ]

    def _part_drops(self, number: int) -> list[DroppedRow]:
        lines = self.read_file(ledger_name(number)).splitlines()
        return [DroppedRow(**json.loads(line)) for line in lines]

    @property
    def target(self) -> TargetParts:
        """The target's embedding, head, final norm and configuration."""
        attributes = json.loads(self.read_file(f"{TARGET}/zarr.json"))["attributes"]
        optional = {
            name: self._read_array(f"{TARGET}/{name}")
            if f"{TARGET}/{name}/zarr.json" in self.fingerprints
            else None
            for name in ("head", "norm")
        }
        return TargetParts(
            config=attributes["config"],
            mask_token_id=attributes["mask_token_id"],
            embedding=self._read_array(f"{TARGET}/embedding"),
            **optional,
        )

    @property
    def ledger(self) -> list[DroppedRow]:
        """Every row that was left out: by the plans, then by extraction."""
        rows: list[DroppedRow] = []
        for number, first_row in enumerate(self.spec.first_rows[:-1]):
            rows += _numbered(self._part_drops(number), first_row)
        for index, segment in sorted(self.segments.items()):
            rows += _numbered(segment.dropped, self._first_row(index))
        return rows

    def read_file(self, name: str) -> bytes:
        """One of the files beside the segments, checked."""
        with self._remedy():
            return read_fingerprinted(self.storage, name, self.fingerprints[name])

    def _read_array(self, name: str) -> Array:
        with self._remedy():
            return read_array(self.storage, name, self.fingerprints)

    @contextmanager
    def _remedy(self) -> Iterator[None]:
        """Let an error of damage end with the command that mends it."""
        try:
            yield
        except CacheAwayError:
            raise  # it says itself what to do, and nothing is to be made again
        except CacheCorruptError as error:
            raise CacheCorruptError(
                f"{error}. Mend it with: {repair_command(self.address)}"
            ) from error

    @property
    def linked(self) -> dict[str, int]:
        """Of how many committed segments the states lie in another cache, by its folder."""
        files = filter(None, map(self.storage.link_of, map(shard_name, self.segments)))
        return dict(Counter(file.rsplit(f"/{ROOT}/", 1)[0] for file in files))

    def require_complete(self) -> None:
        """Raise ``CacheIncompleteError`` unless every planned segment is committed."""
        if len(self.segments) < self.spec.first_segments[-1]:
            raise CacheIncompleteError(
                f"{self.address} holds {len(self.segments)} of {self.spec.first_segments[-1]} "
                "segments; run the same `dflash-cache extract` again to finish it, or train at the "
                "same time with `dflash-cache both --overlap`"
            )

    def read(
        self, index: int, row_ids: Int64Array | None = None, into: Array | None = None
    ) -> HiddenSegment:
        """A committed segment, or those of its sequences that are in ``row_ids``; thread-safe.

        Hidden states land in ``into`` [tokens or more, K, H], of the stored dtype, if it is given;
        the segment returned then shares its memory. ``CacheCorruptError`` names file, rows and the
        way to mend it.
        """
        with self._remedy():
            return self._reader_of(self.segments[index]).read(row_ids, into)

    def rows_of_chunk(self, index: int, chunk: int) -> Int64Array:
        """The rows that have tokens in one inner chunk of a committed segment."""
        return self._reader_of(self.segments[index]).rows_of_chunk(chunk)

    def record(self, index: int) -> SegmentRecord:
        """What a committed segment says of itself."""
        return self._record_of(self.segments[index])

    def _open_segment(self, segment: CommittedSegment) -> SegmentReader:
        first_row = self._first_row(segment.index)
        return SegmentReader(self.storage, self._record_of(segment), self.spec, first_row)

    def _first_row(self, index: int) -> int:
        """The number of the first row of the part that segment ``index`` belongs to."""
        return self.spec.first_rows[self.spec.part_of(index)]


def _numbered(rows: Sequence[DroppedRow], first_row: int) -> list[DroppedRow]:
    return [replace(row, row_id=row.row_id + first_row) for row in rows]


def spec_copy(line: bytes) -> bytes:
    """The root group's ``zarr.json``: a copy of ``spec.json`` for other readers and for repair."""
    return group_metadata({"spec": line.decode()})


def read_identity(storage: Storage) -> dict[str, Any]:
    """The content of ``spec.json``: spec, settings, and fingerprints of the other files."""
    place = storage.place(SPEC)
    try:
        return parse_checked_line(storage.read(SPEC), place)
    except NotADirectoryError:
        raise ConfigError(
            f"{storage.address} is a file, no cache; name the folder that extract filled"
        ) from None
    except FileNotFoundError:
        pass
    if storage.folders(SEGMENTS) or storage.exists(f"{ROOT}/zarr.json"):
        raise CacheCorruptError(
            f"{place}: the file is missing; restore it with: {repair_command(storage.address)}"
        )
    raise ConfigError(
        f"{storage.address} is no cache: it has no {SPEC}. Make one with: "
        f"dflash-cache extract --data D --target M --cache {storage.address}"
    )
