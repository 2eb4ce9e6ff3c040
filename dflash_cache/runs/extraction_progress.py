"""What phase one says of its progress."""

from collections.abc import Sequence

from dflash_cache.cache import Cache
from dflash_cache.pipeline import Pipeline
from dflash_cache.types import CommittedSegment, SegmentPlan

from .progress import OnProgress, Progress, Sample, sample_of
from .room import Room
from .waiting import TRAINING_STAGES
from .workers import Workers


class ExtractionProgress:
    """Counts what is in the cache as segments come and go; for the stage that commits them."""

    def __init__(
        self,
        pipeline: Pipeline,
        cache: Cache,
        missing: Sequence[SegmentPlan],
        workers: Workers,
        room: Room | None,
        on_progress: OnProgress,
    ) -> None:
        """``missing`` is what is to be extracted: of a share, not all that the cache lacks."""
        self._pipeline = pipeline
        self._cache = cache
        self._workers = workers
        self._room = room
        self._on_progress = on_progress
        self._total = len(cache.segments) + len(missing)
        # Rows are those that are settled: stored, or left out for their states.
        self._figures = dict.fromkeys(("rows", "rows_planned", "tokens", "bytes_stored"), 0)
        for segment in cache.segments.values():
            self.committed(segment)
        to_come = sum(len(plan.row_ids) for plan in missing)
        self._figures["rows_planned"] = self._figures["rows"] + to_come

    def committed(self, segment: CommittedSegment) -> None:
        self._add(segment, 1)

    def evicted(self, segment: CommittedSegment) -> None:
        self._add(segment, -1)

    def _add(self, segment: CommittedSegment, sign: int) -> None:
        self._figures["rows"] += sign * (segment.num_sequences + len(segment.dropped))
        self._figures["tokens"] += sign * segment.num_tokens
        self._figures["bytes_stored"] += sign * segment.bytes_stored

    def show(self, *, over: bool = False) -> None:
        # Asked here and not on the display's thread, where a disk that hangs would go unnamed.
        room = {
            "free_bytes": self._cache.storage.free_bytes(),
            "budget_free_bytes": self._room.free_bytes() if self._room else None,
        }
        known = {name: each for name, each in room.items() if each is not None}
        self._on_progress(
            Progress(
                phase="extract",
                done=len(self._cache.segments),
                total=self._total,
                unit="segments",
                figures=self._figures | known,
                sample=None if over else self._sample,
                over=over,
            )
        )

    def end(self) -> None:
        """Let go of the pipeline: its buffers are large."""
        self.show(over=True)

    def _sample(self) -> Sample:
        tokens = self._workers.device_tokens()
        return sample_of(self._pipeline, tokens, lambda stage: stage not in TRAINING_STAGES)
