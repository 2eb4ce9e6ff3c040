"""What makes segments of read rows: a target worker a placement, and writers.

The same stages run beside the others in one process, and in each actor of a Ray cluster.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dflash_cache.cache import CacheSpec, CacheWriter, SegmentWriter, TargetParts
from dflash_cache.data import plan_batches
from dflash_cache.pipeline import Channel, Pipeline, counted_as
from dflash_cache.target import (
    BatchCapture,
    BatchUnderWay,
    CopyStream,
    LayerCapture,
    StagingBuffer,
    capture_batch,
)
from dflash_cache.types import CommittedSegment, SegmentPlan, TokenSequence

from .batch_size import num_buffers
from .preparation import Preparation


@dataclass(frozen=True, slots=True)
class ReadSegment:
    plan: SegmentPlan
    sequences: list[TokenSequence]


@dataclass(frozen=True, slots=True)
class FinishedSegment:
    """Made and durable, in ``folder``, or in its place in the cache where that is None."""

    folder: Path | None
    segment: CommittedSegment


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """The form of a segment's batches on their way to its writer."""

    spec: CacheSpec
    batch_tokens: int  # most padded tokens in one
    staging_tokens: int  # most tokens in one

    @classmethod
    def of(cls, preparation: Preparation, batch_tokens: int) -> "Batching":
        longest = int(preparation.survey.lengths.max())
        largest = max(segment.num_tokens for segment in preparation.plan)
        return cls(
            spec=preparation.spec,
            batch_tokens=batch_tokens,
            staging_tokens=min(max(batch_tokens, longest), largest),
        )


class Workers(Protocol):
    """Spawns the stages between the channels ``rows`` and ``finished``."""

    num_workers: int  # with a target each
    batch_tokens: int

    def target_parts(self) -> TargetParts:
        """What the cache keeps of the target."""

    def device_tokens(self) -> dict[str, int]:
        """Tokens that went through the target of each device so far; from any thread."""

    def spawn(
        self,
        pipeline: Pipeline,
        writer: CacheWriter,
        rows: Channel[ReadSegment],
        finished: Channel[Any],
    ) -> None:
        """``finished`` takes a ``FinishedSegment`` for each that came through ``rows``."""


class ThreadWorkers:
    """The workers of this process."""

    def __init__(
        self, preparation: Preparation, captures: dict[str, LayerCapture], batch_tokens: int
    ) -> None:
        self._captures = [captures[device] for device in preparation.devices]
        self.batch_tokens = batch_tokens
        self._batching = Batching.of(preparation, batch_tokens)
        self._writers = preparation.config.writers
        self._devices = preparation.devices
        self.num_workers = len(self._captures)
        self._tokens = [0] * self.num_workers  # each worker counts its own

    def target_parts(self) -> TargetParts:
        return self._captures[0].target.parts()

    def device_tokens(self) -> dict[str, int]:
        counts = dict.fromkeys(self._devices, 0)
        for device, tokens in zip(self._devices, self._tokens, strict=True):
            counts[device] += tokens
        return counts

    def spawn(
        self,
        pipeline: Pipeline,
        writer: CacheWriter,
        rows: Channel[ReadSegment],
        finished: Channel[Any],
    ) -> None:
        making = SegmentMaking(pipeline, self._batching, writer.segment)
        making.spawn(self._captures, self._writers, rows, finished)
        self._tokens = making.tokens


@contextmanager
def closing_all(captures: dict[str, LayerCapture]) -> Iterator[dict[str, LayerCapture]]:
    try:
        yield captures
    finally:
        for capture in captures.values():
            capture.close()


@dataclass(frozen=True, slots=True)
class _StagedBatch:
    """A batch on the way to its segment's writer, its hidden states in a staging buffer or soon."""

    plan: SegmentPlan
    batch: BatchUnderWay
    last: bool


class SegmentMaking:
    """The stages ``target`` and ``write`` of a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        batching: Batching,
        open_segment: Callable[[SegmentPlan], SegmentWriter],
    ) -> None:
        self._pipeline = pipeline
        self._batching = batching
        self._open_segment = open_segment
        self.tokens: list[int] = []  # captured, by worker; each counts its own

    def spawn(
        self,
        captures: Sequence[LayerCapture],
        writers: int,
        rows: Channel[ReadSegment],
        finished: Channel[Any],
    ) -> None:
        """A target worker for each of ``captures``; several may be on one device."""
        pipeline = self._pipeline
        lanes: list[Channel[_StagedBatch]] = [
            pipeline.channel(f"staged-{index}", 2) for index in range(writers)
        ]
        self._free_lanes = pipeline.pool("free writers", lanes)
        pinned = any(capture.target.device.type == "cuda" for capture in captures)
        buffers = self._staging(num_buffers(len(captures), writers), pinned=pinned)
        self._buffers = pipeline.pool("staging", buffers)
        self.tokens = [0] * len(captures)
        for worker, capture in enumerate(captures):
            pipeline.spawn("target", partial(self._capture, worker, capture, rows), into=lanes)
        for lane in lanes:
            pipeline.spawn("write", partial(self._write, lane, finished), into=[finished])

    def _staging(self, count: int, *, pinned: bool) -> list[StagingBuffer]:
        """Staging for one batch each."""
        spec, num_tokens = self._batching.spec, self._batching.staging_tokens
        return [StagingBuffer.allocate(spec, num_tokens, pinned=pinned) for _ in range(count)]

    def _capture(self, worker: int, capture: LayerCapture, rows: Channel[ReadSegment]) -> None:
        copies = CopyStream(capture.target.device)
        for read in rows:
            lane = self._free_lanes.get()  # one writer a segment, so its batches stay in order
            for batch in plan_batches(read.plan.lengths, self._batching.batch_tokens):
                buffer = self._buffers.get()
                sequences = read.sequences[batch]
                under_way = capture_batch(capture, sequences, buffer, self._pipeline.check, copies)
                self.tokens[worker] += sum(len(sequence.input_ids) for sequence in sequences)
                last = batch.stop == len(read.sequences)
                lane.put(_StagedBatch(read.plan, under_way, last))

    def _write(self, lane: Channel[_StagedBatch], finished: Channel[Any]) -> None:
        segment: _OpenSegment | None = None
        try:
            for staged in lane:
                segment = segment or _OpenSegment(self._open_segment(staged.plan))
                segment.append(staged.batch)
                self._buffers.put(staged.batch.staging)
                if staged.last:
                    finished.put(segment.finish())
                    segment = None
                    self._free_lanes.put(lane)
        finally:
            if segment is not None:
                segment.writer.abort()


class _OpenSegment:
    """A segment between its first and its last batch."""

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self._captures: list[BatchCapture] = []

    def append(self, batch: BatchUnderWay) -> None:
        with counted_as("starved"):
            batch.wait()
        capture = batch.finish()
        self.writer.append(*batch.staging.arrays(capture.num_tokens))
        self._captures.append(capture)

    def finish(self) -> FinishedSegment:
        kept = [sequence for capture in self._captures for sequence in capture.kept]
        dropped = [row for capture in self._captures for row in capture.dropped]
        return FinishedSegment(self.writer.folder, self.writer.finish(kept, dropped))
