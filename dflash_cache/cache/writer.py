"""The one writer of a cache."""

from pathlib import Path

from dflash_cache.types import CommittedSegment, SegmentPlan

from .cache import Cache
from .layout import segment_folder
from .local import LocalStorage
from .segment import SegmentWriter


class CacheWriter:
    """Writes and commits segments of one cache. Whoever makes one holds the storage's lock.

    What a crash left behind is cleared or taken up first.

    ``segment`` may be called from any thread; ``commit`` from one thread, the committer.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        cache.storage.recover()
        cache.segments = cache.storage.commits.read()
        self.staging = cache.storage.staging()

    def segment(self, plan: SegmentPlan) -> SegmentWriter:
        return SegmentWriter(self.staging, self.cache.spec, plan.index, plan.num_tokens)

    def commit(self, folder: Path, segment: CommittedSegment) -> None:
        """Make a finished segment, durable in ``folder``, part of the cache."""
        self.cache.storage.take(folder, segment_folder(segment.index))
        self.cache.storage.commits.append(segment)
        self.cache.segments[segment.index] = segment

    def evict(self, index: int) -> None:
        """Take a segment out of a local cache; from the committer's thread, as ``commit``.

        The log says so first, so that no reader finds half a segment.
        """
        storage = self.cache.storage
        assert isinstance(storage, LocalStorage), "only a folder has a disk budget"
        storage.commits.evict(index)
        del self.cache.segments[index]
        storage.discard([segment_folder(index)])
