"""Walk every byte of a cache and name what is not as it was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment

from .arrays import group_metadata
from .cache import Cache
from .commits import CommitLog
from .durable import Fingerprints, check_fingerprint
from .folder import LEDGER, LOG, ROOT, SPEC, STAGING, read_identity
from .lock import LOCK, is_being_written
from .segment import SHARD_KEY, segment_attributes

# The lock is no data: it names the last holder.
_TOP_LEVEL = {SPEC, LEDGER, LOG, LOCK, STAGING, ROOT}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One file that is not as it was written, and the rows whose states it may hold."""

    path: str
    problem: str
    segment: int | None = None
    rows: tuple[int, ...] = ()


def verify_cache(root: Path | str, *, alone: bool = False) -> list[Fault]:
    """All faults of the cache at ``root``; an empty list means every byte is as it was written.

    A damaged ``spec.json`` or commit log is the only fault reported: it says what the rest is.
    ``ConfigError`` if ``root`` is no cache. Who holds the writer lock is ``alone``.
    """
    root = Path(root)
    for name, read in ((SPEC, read_identity), (LOG, lambda root: CommitLog(root / LOG).read())):
        try:
            read(root)
        except CacheCorruptError as error:
            return [Fault(path=str(root / name), problem=str(error))]
    cache = Cache.open(root)
    rows = _rows_by_segment(cache)
    faults = [
        *_file_faults(root, cache.fingerprints),
        *_log_faults(cache, alone),
        *_root_faults(root),
    ]
    for index, segment in sorted(cache.segments.items()):
        faults += _segment_faults(cache, segment, rows.get(index, ()))
    return faults + list(_foreign(root, cache))


def _rows_by_segment(cache: Cache) -> dict[int, tuple[int, ...]]:
    try:
        return {segment.index: tuple(segment.row_ids.tolist()) for segment in cache.plan}
    except CacheCorruptError:
        return {}  # the plan's own files are among the faults


def _file_faults(
    folder: Path,
    fingerprints: Fingerprints,
    segment: int | None = None,
    rows: tuple[int, ...] = (),
) -> Iterator[Fault]:
    for name in sorted(fingerprints):
        try:
            check_fingerprint(folder, name, fingerprints)
        except (CacheCorruptError, OSError) as error:
            path = str(folder / name)
            yield Fault(path=path, problem=str(error), segment=segment, rows=rows)


def _log_faults(cache: Cache, alone: bool) -> Iterator[Fault]:
    log = cache.root / LOG
    if log.exists() and not log.read_bytes().endswith(b"\n"):
        problem = f"{log}: the last line is cut short, its segment is not committed"
        yield Fault(path=str(log), problem=problem)
    if not alone and is_being_written(cache.root):
        return  # a segment may be in place just before its line is
    for folder in cache.segment_folders():
        if int(folder.name) not in cache.segments:
            problem = f"{log}: has no line for {folder}, which is in place"
            yield Fault(path=str(log), problem=problem)


def _root_faults(root: Path) -> Iterator[Fault]:
    path = root / ROOT / "zarr.json"
    if not _holds(path, group_metadata({"spec": (root / SPEC).read_text(encoding="utf-8")})):
        yield Fault(path=str(path), problem=f"{path}: not the copy of {SPEC} that it was")


def _segment_faults(
    cache: Cache, segment: CommittedSegment, rows: tuple[int, ...]
) -> Iterator[Fault]:
    folder = cache.segment_folder(segment.index)
    found = list(_file_faults(folder, segment.files, segment.index, rows))
    metadata = folder / "zarr.json"
    if not _holds(metadata, group_metadata(segment_attributes(segment))):
        problem = f"{metadata}: not the record that it was"
        found.append(Fault(path=str(metadata), problem=problem, segment=segment.index, rows=rows))
    if any(Path(fault.path) == folder / SHARD_KEY for fault in found):
        found += _chunk_faults(cache, segment)
    yield from found


def _chunk_faults(cache: Cache, segment: CommittedSegment) -> Iterator[Fault]:
    """Name the first damaged chunk of hidden states, and the rows in it."""
    try:
        cache.read(segment.index)
    except (CacheCorruptError, OSError) as error:
        path = str(cache.segment_folder(segment.index) / SHARD_KEY)
        yield Fault(path=path, problem=str(error), segment=segment.index)


def _holds(path: Path, expected: bytes) -> bool:
    return path.is_file() and path.read_bytes() == expected


def _foreign(root: Path, cache: Cache) -> Iterator[Fault]:
    """Files that no record knows."""
    known = {root / name for name in cache.fingerprints} | {root / ROOT / "zarr.json"}
    for index, segment in cache.segments.items():
        folder = cache.segment_folder(index)
        known |= {folder / name for name in segment.files} | {folder / "zarr.json"}
    top_level = [path for path in root.iterdir() if path.name not in _TOP_LEVEL]
    logged = {cache.segment_folder(index) for index in cache.segments}
    unlogged = set(cache.segment_folders()) - logged
    below = [
        path
        for path in (root / ROOT).rglob("*")
        if not path.is_dir() and path not in known and not unlogged & set(path.parents)
    ]
    for path in sorted(top_level + below):
        yield Fault(path=str(path), problem=f"{path}: no part of the cache, nothing reads it")
