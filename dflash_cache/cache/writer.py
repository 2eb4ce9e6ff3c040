"""The one writer of a cache."""

from pathlib import Path

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment, SegmentPlan

from .cache import Cache
from .commits import CommitLog
from .durable import fsync_path, remove_tree
from .folder import LOG, ROOT, STAGING
from .segment import SegmentWriter, own_record, segment_name


class CacheWriter:
    """Writes and commits segments of one cache. Whoever makes one holds ``writer_lock``.

    What a crash left behind is cleared or taken up first.

    ``segment`` may be called from any thread; ``commit`` from one thread, the committer.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._log = log = CommitLog(cache.root / LOG)
        self._staging = cache.root / STAGING
        self._segments = cache.root / ROOT / "segments"
        remove_tree(self._staging)  # segments that never were whole
        self._staging.mkdir()
        log.cut_unterminated_line()
        cache.segments = log.read()
        self._segments.mkdir(exist_ok=True)
        for folder in cache.segment_folders():
            if int(folder.name) not in cache.segments:
                self._adopt(folder)

    def segment(self, plan: SegmentPlan) -> SegmentWriter:
        return SegmentWriter(self._staging, self._cache.spec, plan.index, plan.num_tokens)

    def commit(self, folder: Path, segment: CommittedSegment) -> None:
        """Make a finished segment, durable in ``folder``, part of the cache."""
        folder.rename(self._segments / segment_name(segment.index))
        fsync_path(self._segments)
        self._record(segment)

    def _adopt(self, folder: Path) -> None:
        """Log a segment that was in place, durable, when a crash came before its log line."""
        segment = own_record(folder)
        if segment is None:
            raise CacheCorruptError(
                f"{folder}/zarr.json: the segment is in place, but its record is missing or was "
                f"altered; mend it with: dflash-cache verify --cache {self._cache.root} --repair"
            )
        self._record(segment)

    def _record(self, segment: CommittedSegment) -> None:
        self._log.append(segment)
        self._cache.segments[segment.index] = segment
