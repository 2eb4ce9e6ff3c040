"""Walk every byte of a cache and name what is not as it was written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import Int64Array

from .cache import Cache, read_identity, spec_copy
from .fingerprints import Fingerprints, check_fingerprint
from .layout import LOCK, ROOT, SPEC, STAGING, segment_folder
from .record import SegmentRecord
from .segment import shard_name
from .segment_reader import open_shard
from .storage import Storage, open_storage, segments_in_place

OnSegment = Callable[[int, int], None]  # how many are done, and of how many

_UNCHECKED = (LOCK, STAGING)  # the lock is no data: it names the last holder


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One file or chunk that is not as it was written, and the rows whose states it may hold."""

    path: str
    problem: str
    segment: int | None = None
    rows: tuple[int, ...] = ()


def verify_cache(
    place: Storage | str | Path, *, alone: bool = False, on_segment: OnSegment | None = None
) -> list[Fault]:
    """All faults of the cache at ``place``; an empty list means every byte is as it was written.

    A damaged ``spec.json`` or commit record is the only fault reported: it says what the rest is.
    ``ConfigError`` if there is no cache. Who holds the writer lock is ``alone``. ``on_segment`` is
    told of each segment that is checked.
    """
    storage = open_storage(place) if isinstance(place, str | Path) else place
    for name, read in (
        (SPEC, lambda: read_identity(storage)),
        (storage.commits.name, storage.commits.read),
    ):
        try:
            read()
        except CacheCorruptError as error:
            return [Fault(path=storage.place(name), problem=str(error))]
    return list(_Walk(Cache.open(storage), alone, on_segment).faults())


class _Walk:
    """Through the files of one cache whose identity and commits are whole."""

    def __init__(self, cache: Cache, alone: bool, on_segment: OnSegment | None) -> None:
        self._cache = cache
        self._on_segment = on_segment
        self._storage = cache.storage
        self._alone = alone
        self._known = {*cache.fingerprints, SPEC, f"{ROOT}/zarr.json"}
        try:
            self._rows = {segment.index: segment.row_ids for segment in cache.plan}
        except CacheCorruptError:
            self._rows = {}  # the plan's own files are among the faults

    def faults(self) -> Iterator[Fault]:
        yield from self._file_faults(self._cache.fingerprints)
        yield from self._commit_faults()
        yield from self._root_faults()
        for number, index in enumerate(sorted(self._cache.segments), start=1):
            faults = list(self._segment_faults(index))
            if not faults or index in self._storage.commits.read():  # else evicted meanwhile
                yield from faults
            if self._on_segment:
                self._on_segment(number, len(self._cache.segments))
        yield from self._foreign()

    def _fault(
        self, name: str, problem: object, segment: int | None = None, rows: Int64Array | None = None
    ) -> Fault:
        if rows is None and segment is not None:
            rows = self._rows.get(segment)
        shown = () if rows is None else tuple(rows.tolist())
        return Fault(
            path=self._storage.place(name), problem=str(problem), segment=segment, rows=shown
        )

    def _file_faults(
        self, fingerprints: Fingerprints, segment: int | None = None
    ) -> Iterator[Fault]:
        for name, recorded in sorted(fingerprints.items()):
            try:
                check_fingerprint(self._storage, name, recorded)
            except (CacheCorruptError, OSError) as error:
                yield self._fault(name, error, segment)

    def _commit_faults(self) -> Iterator[Fault]:
        """What a crash or damage left between data and commit."""
        commits = self._storage.commits
        self._known |= set(commits.files())
        if not self._alone and self._storage.is_being_written():
            return  # a line may be half written, a segment in place just before it is committed
        if commits.is_cut_short():
            yield self._fault(commits.name, f"{commits.name}: its last line is cut short")
        evicted = self._storage.commits.evicted()  # the next writer clears what a crash left
        for index in sorted(set(self._unlogged()) - evicted):
            place = self._storage.place(segment_folder(index))
            yield self._fault(commits.name, f"{commits.name}: has no record of {place}")

    def _unlogged(self) -> list[int]:
        return [i for i in segments_in_place(self._storage) if i not in self._cache.segments]

    def _root_faults(self) -> Iterator[Fault]:
        name = f"{ROOT}/zarr.json"
        try:
            whole = self._storage.read(name) == spec_copy(self._storage.read(SPEC))
        except FileNotFoundError:
            whole = False
        if not whole:
            problem = f"{self._storage.place(name)}: not the copy of {SPEC} that it was"
            yield self._fault(name, problem)

    def _segment_faults(self, index: int) -> Iterator[Fault]:
        folder = segment_folder(index)
        try:
            record = self._cache.record(index)
        except (CacheCorruptError, OSError) as error:
            yield self._fault(f"{folder}/zarr.json", error, index)
            self._known |= set(self._storage.names(folder))
            return
        files = {f"{folder}/{name}": recorded for name, recorded in record.files.items()}
        self._known |= {*files, f"{folder}/zarr.json", shard_name(index)}
        yield from self._file_faults(files, index)
        yield from self._chunk_faults(record)

    def _chunk_faults(self, record: SegmentRecord) -> Iterator[Fault]:
        """Each damaged chunk of hidden states, and the rows in it."""
        index, name = record.index, shard_name(record.index)
        try:
            for error in open_shard(self._storage, record, self._cache.spec).damaged():
                yield self._fault(name, error, index, self._rows_of(record, error.chunk))
        except (CacheCorruptError, OSError) as error:
            yield self._fault(name, error, index)

    def _rows_of(self, record: SegmentRecord, chunk: int) -> Int64Array | None:
        try:
            return self._cache.rows_of_chunk(record.index, chunk)
        except CacheCorruptError:
            return None  # the small arrays are damaged too: all rows of the segment

    def _foreign(self) -> Iterator[Fault]:
        """Files that no record knows."""
        unlogged = tuple(f"{segment_folder(index)}/" for index in self._unlogged())
        for name in self._storage.names():
            if name in self._known or name.startswith(unlogged) or name.split("/")[0] in _UNCHECKED:
                continue
            problem = f"{self._storage.place(name)}: no part of the cache, nothing reads it"
            yield self._fault(name, problem)
