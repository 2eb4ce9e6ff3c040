"""What phase one says of its progress."""

from collections.abc import Sequence

from dflash_cache.cache import Cache
from dflash_cache.pipeline import Pipeline
from dflash_cache.types import CommittedSegment, SegmentPlan

from .progress import OnProgress, Progress, Sample, channel_states
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
        on_progress: OnProgress,
    ) -> None:
        """``missing`` is what is to be extracted: of a share, not all that the cache lacks."""
        planned = cache.segments.keys() | {plan.index for plan in missing}
        self._pipeline = pipeline
        self._cache = cache
        self._workers = workers
        self._on_progress = on_progress
        self._total = len(planned)
        self._figures = {
            "rows": 0,  # that are settled: stored, or left out for their states
            "rows_planned": sum(len(plan.row_ids) for plan in cache.plan if plan.index in planned),
            "tokens": 0,
            "bytes_stored": 0,
        }
        for segment in cache.segments.values():
            self.committed(segment)

    def committed(self, segment: CommittedSegment) -> None:
        self._add(segment, 1)

    def evicted(self, segment: CommittedSegment) -> None:
        self._add(segment, -1)

    def _add(self, segment: CommittedSegment, sign: int) -> None:
        self._figures["rows"] += sign * (segment.num_sequences + len(segment.dropped))
        self._figures["tokens"] += sign * segment.num_tokens
        self._figures["bytes_stored"] += sign * segment.bytes_stored

    def show(self, budget_bytes: int | None, *, over: bool = False) -> None:
        """``budget_bytes`` is what is left of a disk budget, None without one."""
        budget = {} if budget_bytes is None else {"budget_free_bytes": budget_bytes}
        self._on_progress(
            Progress(
                phase="extract",
                done=len(self._cache.segments),
                total=self._total,
                unit="segments",
                figures=self._figures | budget,
                sample=None if over else self._sample,
                over=over,
            )
        )

    def end(self, budget_bytes: int | None) -> None:
        """Let go of the pipeline: its buffers are large."""
        self.show(budget_bytes, over=True)

    def _sample(self) -> Sample:
        statistics = self._pipeline.statistics_so_far()
        free = self._cache.storage.free_bytes()
        return Sample(
            stages={name: each for name, each in statistics.items() if name not in TRAINING_STAGES},
            channels=channel_states(self._pipeline),
            device_tokens=self._workers.device_tokens(),
            figures={} if free is None else {"free_bytes": free},
        )
