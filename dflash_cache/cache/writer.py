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

    def accept(self, shared: str, segment: CommittedSegment) -> None:
        """Put a segment that another process made and shared in its place; from any thread."""
        self.cache.storage.accept(shared, segment_folder(segment.index))

    def commit(self, folder: Path | None, segment: CommittedSegment) -> None:
        """Make a finished segment, durable in ``folder``, part of the cache.

        None if it is in its place already.
        """
        if folder is not None:
            self.cache.storage.take(folder, segment_folder(segment.index))
        self.cache.storage.commits.append(segment)
        self.cache.segments[segment.index] = segment

    def tidy(self) -> None:
        """Remove what other processes left when they were lost; nothing may be in the making."""
        self.cache.storage.recover()
        self.cache.storage.staging()

    def evict(self, index: int) -> None:
        """Take a segment out of a local cache; from the committer's thread, as ``commit``.

        The log says so first, so that no reader finds half a segment.
        """
        storage = self.cache.storage
        assert isinstance(storage, LocalStorage), "only a folder has a disk budget"
        storage.commits.evict(index)
        del self.cache.segments[index]
        storage.discard([segment_folder(index)])
