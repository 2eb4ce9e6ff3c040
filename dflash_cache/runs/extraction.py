"""The stages of phase one: readers, a target worker a device, writers, one committer."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dflash_cache.cache import Cache, CacheWriter, SegmentWriter
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

from .preparation import Preparation, missing_segments
from .progress import OnProgress, Progress

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
        cache: Cache,
        writer: CacheWriter,
        captures: dict[str, LayerCapture],
        on_progress: OnProgress,
    ) -> None:
        self._pipeline = pipeline
        self._preparation = preparation
        self._cache = cache
        self._writer = writer
        self._on_progress = on_progress
        self._began = time.perf_counter()
        self.wall_s = 0.0  # from the start until the last segment was committed
        self.committed: Arrivals[int] = pipeline.arrivals("committed", cache.segments)
        missing = missing_segments(preparation, cache)
        config = preparation.config
        workers = [captures[device] for device in preparation.devices]
        plans: Channel[SegmentPlan] = pipeline.source("plan", missing)
        rows: Channel[_ReadSegment] = pipeline.channel("rows", ROWS_AHEAD * len(workers))
        lanes: list[Channel[_StagedBatch]] = [
            pipeline.channel(f"staged-{index}", 2) for index in range(config.writers)
        ]
        self._free_lanes = pipeline.pool("free writers", lanes)
        self._buffers = pipeline.pool("staging", self._staging(2 * len(workers) + config.writers))
        finished: Channel[_FinishedSegment] = pipeline.channel("finished", config.writers)
        for _ in range(config.readers):
            pipeline.spawn("read", partial(self._read, plans, rows), into=[rows])
        for capture in workers:
            pipeline.spawn("target", partial(self._capture, capture, rows), into=lanes)
        for lane in lanes:
            pipeline.spawn("write", partial(self._write, lane, finished), into=[finished])
        pipeline.spawn("commit", partial(self._commit, finished))

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

    def _write(self, lane: Channel[_StagedBatch], finished: Channel[_FinishedSegment]) -> None:
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

    def _commit(self, finished: Channel[_FinishedSegment]) -> None:
        segments = self._cache.segments
        tokens = sum(segment.num_tokens for segment in segments.values())
        stored_bytes = sum(segment.bytes_stored for segment in segments.values())
        for item in finished:
            self._writer.commit(item.folder, item.segment)
            self.committed.add(item.segment.index)
            self.wall_s = time.perf_counter() - self._began
            tokens += item.segment.num_tokens
            stored_bytes += item.segment.bytes_stored
            self._on_progress(
                Progress(
                    phase="extract",
                    done=len(segments),
                    total=self._cache.spec.first_segments[-1],
                    unit="segments",
                    figures={"tokens": f"{tokens:,}", "stored": f"{stored_bytes / 1e6:,.0f} MB"},
                )
            )


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
        captures[device] = LayerCapture(target, spec.target_layer_ids)
    return captures


def dropped_by_reason(cache: Cache) -> dict[str, int]:
    return dict(Counter(row.reason for row in cache.ledger))
