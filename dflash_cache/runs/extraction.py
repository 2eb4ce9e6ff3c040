"""The stages of phase one: readers, workers that make segments, one committer."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from dflash_cache.cache import Cache, CacheWriter, segment_bytes
from dflash_cache.pipeline import Arrivals, Channel, Pipeline
from dflash_cache.target import LayerCapture, Target
from dflash_cache.types import SegmentPlan

from .dropped import DroppedRows
from .extraction_progress import ExtractionProgress
from .preparation import Preparation, missing_segments
from .progress import OnProgress
from .room import Eviction, Room
from .workers import FinishedSegment, ReadSegment, Workers

log = logging.getLogger(__name__)
ROWS_AHEAD = 2  # segments of token ids read ahead for each worker


class Extraction:
    """Spawns phase one's stages in a pipeline, for the segments that are not committed yet."""

    def __init__(
        self,
        pipeline: Pipeline,
        preparation: Preparation,
        writer: CacheWriter,
        workers: Workers,
        room: Room | None,
        on_progress: OnProgress,
    ) -> None:
        self._pipeline = pipeline
        self._preparation = preparation
        self._cache = cache = writer.cache
        self._writer = writer
        self.room = room  # what a disk budget has; None without one
        missing = missing_segments(preparation, cache)
        self._progress = ExtractionProgress(pipeline, cache, missing, workers, room, on_progress)
        self._dropped = DroppedRows(preparation, cache)
        self._began = time.perf_counter()
        self.batch_tokens = workers.batch_tokens
        self.num_evicted = 0
        self.wall_s = 0.0  # from the start until the last segment was committed
        self.committed: Arrivals[int] = pipeline.arrivals("committed", cache.segments)
        config = preparation.config
        rows: Channel[ReadSegment] = pipeline.channel("rows", ROWS_AHEAD * workers.num_workers)
        finished: Channel[FinishedSegment | Eviction] = pipeline.channel("finished", config.writers)
        plans = self._plans(room, missing, finished)
        for _ in range(config.readers):
            pipeline.spawn("read", partial(self._read, plans, rows), into=[rows])
        workers.spawn(pipeline, writer, rows, finished)
        pipeline.spawn("commit", partial(self._commit, finished))

    def _plans(
        self,
        room: Room | None,
        missing: Sequence[SegmentPlan],
        finished: Channel[FinishedSegment | Eviction],
    ) -> Channel[SegmentPlan]:
        """The segments to extract: all that are missing, or those that ``room`` has room for."""
        plans: Channel[SegmentPlan]
        if room is None:
            return self._pipeline.source("plan", missing)
        plans = self._pipeline.channel("plan", 1)

        def choose() -> None:
            for step in room:
                if isinstance(step, Eviction):
                    finished.put(step)
                else:
                    plans.put(step)

        self._pipeline.spawn("choose", choose, into=[plans, finished])
        return plans

    def _read(self, plans: Iterable[SegmentPlan], rows: Channel[ReadSegment]) -> None:
        for plan in plans:
            pairs = zip(plan.row_ids.tolist(), plan.lengths.tolist(), strict=True)
            sequences = [self._preparation.rows.sequence(row, length) for row, length in pairs]
            rows.put(ReadSegment(plan, sequences))

    def _commit(self, finished: Channel[FinishedSegment | Eviction]) -> None:
        """The only stage that changes what is in the cache."""
        self._progress.show()
        for item in finished:
            if isinstance(item, Eviction):
                segment = self._cache.segments[item.index]
                self._evict(item.index)
                self._progress.evicted(segment)
            else:
                self._put_in_place(item)
                self._progress.committed(item.segment)
            self._progress.show()
        self._progress.end()

    def _put_in_place(self, item: FinishedSegment) -> None:
        index = item.segment.index
        self._writer.commit(item.folder, item.segment)
        self.committed.add(index)
        self._dropped.add(item.segment)
        if self.room is not None:
            self.room.committed(index, segment_bytes(self._cache, index))
        self.wall_s = time.perf_counter() - self._began

    def _evict(self, index: int) -> None:
        assert self.room is not None
        log.info("evicting segment %d", index)
        self._writer.evict(index)
        self.room.evicted(index)
        self.num_evicted += 1


def load_captures(preparation: Preparation) -> dict[str, LayerCapture]:
    """Load the target once for each distinct device; workers on one device share its weights."""
    spec, config = preparation.spec, preparation.config
    captures = {}
    for device in dict.fromkeys(preparation.devices):
        log.info("loading the target on %s", device)
        target = Target.load(
            preparation.target_folder,
            dtype=spec.dtype,
            device=device,
            trust_remote_code=config.trust_remote_code,
            compiled=config.compile,
        )
        captures[device] = LayerCapture(target, spec.target_layer_ids, keep_last=spec.keep_last)
    return captures


def dropped_by_reason(cache: Cache) -> dict[str, int]:
    return dict(Counter(row.reason for row in cache.ledger))
