"""The one writer of a cache."""

from pathlib import Path

from dflash_cache.types import CommittedSegment, SegmentPlan

from .cache import Cache
from .layout import segment_folder
from .segment import SegmentWriter


class CacheWriter:
    """Writes and commits segments of one cache. Whoever makes one holds the storage's lock.

    What a crash left behind is cleared or taken up first.

    ``segment`` may be called from any thread; ``commit`` from one thread, the committer.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        cache.storage.recover()
        cache.segments = cache.storage.commits.read()
        self._staging = cache.storage.staging()

    def segment(self, plan: SegmentPlan) -> SegmentWriter:
        return SegmentWriter(self._staging, self._cache.spec, plan.index, plan.num_tokens)

    def commit(self, folder: Path, segment: CommittedSegment) -> None:
        """Make a finished segment, durable in ``folder``, part of the cache."""
        self._cache.storage.take(folder, segment_folder(segment.index))
        self._cache.storage.commits.append(segment)
        self._cache.segments[segment.index] = segment
