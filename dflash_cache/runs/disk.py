"""What an extraction may need of a disk budget, before any work."""

from dataclasses import dataclass

from dflash_cache.cache import (
    Cache,
    content_bytes,
    most_content_bytes,
    most_log_bytes,
    most_segment_bytes,
    segment_bytes,
)
from dflash_cache.config import TrainConfig

from .preparation import Preparation, missing_segments, part_in


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskNeed:
    """Bytes of the cache folder, on the safe side."""

    limit: int | None  # --max-disk
    held: int  # now; 0 without a cache
    smallest: int  # the least --max-disk with which all segments can be extracted in turn
    whole: int  # with every segment in place

    @property
    def exceeds_limit(self) -> bool:
        return self.limit is not None and self.whole > self.limit


def disk_need(preparation: Preparation, cache: Cache | None, extractions: int = 1) -> DiskNeed:
    """``extractions`` is how often a segment may be extracted: the log has a line for each."""
    spec, limit = preparation.spec, preparation.config.max_disk
    if limit is None:
        cache = None  # nothing of it needs to be measured
    plans = cache.plan if cache else []
    beside = content_bytes(cache) if cache else 0
    if cache is None or part_in(preparation, cache) is None:
        plans = [*plans, *preparation.plan]
        beside += most_content_bytes(spec, preparation.plan, preparation.survey.dropped)
    beside += most_log_bytes(plans, extractions)
    held = sum(segment_bytes(cache, index) for index in cache.segments) if cache else 0
    most = [most_segment_bytes(spec, plan) for plan in preparation.plan]
    missing = missing_segments(preparation, cache)
    return DiskNeed(
        limit=limit,
        held=beside + held if cache else 0,
        smallest=beside + max(most),
        whole=beside + held + sum(most_segment_bytes(spec, plan) for plan in missing),
    )


def most_extractions(config: TrainConfig, num_rows: int) -> int:
    """How often training on ``num_rows`` rows may read a segment, held-out rows included."""
    if config.steps is None:
        return config.epochs + 1
    return -(-config.steps * config.batch_size * config.grad_accum // num_rows) + 2
