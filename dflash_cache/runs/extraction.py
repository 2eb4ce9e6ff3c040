"""The stages of phase one: readers, a target worker a device, writers, one committer."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dflash_cache.cache import Cache, CacheWriter, SegmentWriter, segment_bytes
from dflash_cache.data import plan_batches
from dflash_cache.pipeline import Arrivals, Channel, Pipeline
from dflash_cache.target import (
    BatchCapture,
    LayerCapture,
    StagingBuffer,
    Target,
    capture_batch,
)
from dflash_cache.types import CommittedSegment, SegmentPlan, TokenSequence

from .dropped import DroppedRows
from .preparation import Preparation, missing_segments
from .progress import OnProgress, Progress
from .room import Eviction, Room

ROWS_AHEAD = 2  # segments of token ids read ahead for each worker


@dataclass(frozen=True, slots=True)
class _ReadSegment:
    plan: SegmentPlan
    sequences: list[TokenSequence]


@dataclass(frozen=True, slots=True)
class _StagedBatch:
    """A batch's hidden states in a staging buffer, on the way to its segment's writer."""

    plan: SegmentPlan
    buffer: StagingBuffer
    capture: BatchCapture
    last: bool


@dataclass(frozen=True, slots=True)
class _FinishedSegment:
    folder: Path
    segment: CommittedSegment


class Extraction:
    """Spawns phase one's stages in a pipeline, for the segments that are not committed yet."""

    def __init__(
        self,
        pipeline: Pipeline,
        preparation: Preparation,
        writer: CacheWriter,
        captures: dict[str, LayerCapture],
        room: Room | None,
        on_progress: OnProgress,
    ) -> None:
        self._pipeline = pipeline
        self._preparation = preparation
        self._cache = cache = writer.cache
        self._writer = writer
        self.room = room  # what a disk budget has; None without one
        self._on_progress = on_progress
        self._dropped = DroppedRows(preparation, cache)
        self._began = time.perf_counter()
        self.num_evicted = 0
        self.wall_s = 0.0  # from the start until the last segment was committed
        self.committed: Arrivals[int] = pipeline.arrivals("committed", cache.segments)
        config = preparation.config
        workers = [captures[device] for device in preparation.devices]
        rows: Channel[_ReadSegment] = pipeline.channel("rows", ROWS_AHEAD * len(workers))
        lanes: list[Channel[_StagedBatch]] = [
            pipeline.channel(f"staged-{index}", 2) for index in range(config.writers)
        ]
        self._free_lanes = pipeline.pool("free writers", lanes)
        self._buffers = pipeline.pool("staging", self._staging(2 * len(workers) + config.writers))
        finished: Channel[_FinishedSegment | Eviction] = pipeline.channel(
            "finished", config.writers
        )
        plans = self._plans(room, finished)
        for _ in range(config.readers):
            pipeline.spawn("read", partial(self._read, plans, rows), into=[rows])
        for capture in workers:
            pipeline.spawn("target", partial(self._capture, capture, rows), into=lanes)
        for lane in lanes:
            pipeline.spawn("write", partial(self._write, lane, finished), into=[finished])
        pipeline.spawn("commit", partial(self._commit, finished))

    def _plans(
        self, room: Room | None, finished: Channel[_FinishedSegment | Eviction]
    ) -> Channel[SegmentPlan]:
        """The segments to extract: all that are missing, or those that ``room`` has room for."""
        plans: Channel[SegmentPlan]
        if room is None:
            missing = missing_segments(self._preparation, self._cache)
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

    def _staging(self, count: int) -> list[StagingBuffer]:
        """Staging for one batch each."""
        preparation = self._preparation
        longest = int(preparation.survey.lengths.max())
        largest = max(segment.num_tokens for segment in preparation.plan)
        num_tokens = min(max(preparation.config.batch_tokens, longest), largest)
        pinned = any(device.startswith("cuda") for device in preparation.devices)
        spec = self._cache.spec
        return [StagingBuffer.allocate(spec, num_tokens, pinned=pinned) for _ in range(count)]

    def _read(self, plans: Iterable[SegmentPlan], rows: Channel[_ReadSegment]) -> None:
        for plan in plans:
            pairs = zip(plan.row_ids.tolist(), plan.lengths.tolist(), strict=True)
            sequences = [self._preparation.rows.sequence(row, length) for row, length in pairs]
            rows.put(_ReadSegment(plan, sequences))

    def _capture(self, capture: LayerCapture, rows: Channel[_ReadSegment]) -> None:
        batch_tokens = self._preparation.config.batch_tokens
        for read in rows:
            lane = self._free_lanes.get()  # one writer a segment, so its batches stay in order
            for batch in plan_batches(read.plan.lengths, batch_tokens):
                buffer = self._buffers.get()
                sequences = read.sequences[batch]
                result = capture_batch(capture, sequences, buffer, self._pipeline.check)
                last = batch.stop == len(read.sequences)
                lane.put(_StagedBatch(read.plan, buffer, result, last))

    def _write(
        self, lane: Channel[_StagedBatch], finished: Channel[_FinishedSegment | Eviction]
    ) -> None:
        segment: _OpenSegment | None = None
        try:
            for staged in lane:
                segment = segment or _OpenSegment(self._writer.segment(staged.plan))
                segment.append(staged)
                self._buffers.put(staged.buffer)
                if staged.last:
                    finished.put(segment.finish())
                    segment = None
                    self._free_lanes.put(lane)
        finally:
            if segment is not None:
                segment.writer.abort()

    def _commit(self, finished: Channel[_FinishedSegment | Eviction]) -> None:
        """The only stage that changes what is in the cache."""
        segments = self._cache.segments
        tokens = sum(segment.num_tokens for segment in segments.values())
        stored_bytes = sum(segment.bytes_stored for segment in segments.values())
        for item in finished:
            if isinstance(item, Eviction):
                segment, sign = segments[item.index], -1
                self._evict(item.index)
            else:
                segment, sign = item.segment, 1
                self._put_in_place(item)
            tokens += sign * segment.num_tokens
            stored_bytes += sign * segment.bytes_stored
            self._on_progress(
                Progress(
                    phase="extract",
                    done=len(segments),
                    total=self._cache.spec.first_segments[-1],
                    unit="segments",
                    figures={"tokens": f"{tokens:,}", "stored": f"{stored_bytes / 1e6:,.0f} MB"},
                )
            )

    def _put_in_place(self, item: _FinishedSegment) -> None:
        index = item.segment.index
        self._writer.commit(item.folder, item.segment)
        self.committed.add(index)
        self._dropped.add(item.segment)
        if self.room is not None:
            self.room.committed(index, segment_bytes(self._cache, index))
        self.wall_s = time.perf_counter() - self._began

    def _evict(self, index: int) -> None:
        assert self.room is not None
        self._writer.evict(index)
        self.room.evicted(index)
        self.num_evicted += 1


class _OpenSegment:
    """A segment between its first and its last batch."""

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self._captures: list[BatchCapture] = []

    def append(self, staged: _StagedBatch) -> None:
        self.writer.append(*staged.buffer.arrays(staged.capture.num_tokens))
        self._captures.append(staged.capture)

    def finish(self) -> _FinishedSegment:
        kept = [sequence for capture in self._captures for sequence in capture.kept]
        dropped = [row for capture in self._captures for row in capture.dropped]
        return _FinishedSegment(self.writer.folder, self.writer.finish(kept, dropped))


def load_captures(preparation: Preparation) -> dict[str, LayerCapture]:
    """Load the target once for each distinct device; workers on one device share its weights."""
    spec, config = preparation.spec, preparation.config
    captures = {}
    for device in dict.fromkeys(preparation.devices):
        target = Target.load(
            preparation.target_folder,
            dtype=spec.dtype,
            device=device,
            trust_remote_code=config.trust_remote_code,
        )
        captures[device] = LayerCapture(target, spec.target_layer_ids, keep_last=spec.keep_last)
    return captures


def dropped_by_reason(cache: Cache) -> dict[str, int]:
    return dict(Counter(row.reason for row in cache.ledger))
