"""``plan``: what an extraction would make, and whether it fits, before any work."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

from dflash_cache.cache import Cache, estimate_bytes
from dflash_cache.config import PlanConfig
from dflash_cache.data import plan_batches
from dflash_cache.errors import ConfigError

from .batch_size import batch_tokens_of
from .cluster import connected
from .disk import DiskNeed, disk_need
from .extraction import load_captures
from .preparation import Preparation, missing_segments, prepare
from .probe import probe
from .shown import shown_bytes


def plan(config: PlanConfig) -> dict[str, Any]:
    """Check dataset and settings and size the cache; without ``probe`` no target is loaded.

    Returns the report: sequences, tokens, truncated, dropped {reason: rows}, segments,
    batch_tokens (what ``auto`` came to, if that is set), batches, padding (share of the target's
    work), bytes_estimated {codec: bytes}, free_bytes, max_disk_smallest, the least --max-disk that
    ``extract`` takes, and probe {..} on request.
    """
    with connected(config):
        preparation = prepare(config)
    if config.batch_tokens != "auto" and not config.probe:
        return _sizes(preparation, config.batch_tokens)
    # One target shows what several do, each on devices of its own.
    (capture,) = load_captures(replace(preparation, devices=preparation.devices[:1])).values()
    with closing(capture):
        batch_tokens = batch_tokens_of(preparation, capture)
        found = probe(preparation, capture, batch_tokens)
    return _sizes(preparation, batch_tokens) | {"probe": found}


def _sizes(preparation: Preparation, batch_tokens: int) -> dict[str, Any]:
    found, segments = preparation.survey, preparation.plan
    num_tokens = int(found.lengths.sum())
    batches = [
        segment.lengths[batch]
        for segment in segments
        for batch in plan_batches(segment.lengths, batch_tokens)
    ]
    padded = sum(int(lengths.max()) * len(lengths) for lengths in batches)
    return {
        "sequences": len(found.row_ids),
        "tokens": num_tokens,
        "truncated": found.num_truncated,
        "dropped": dict(Counter(row.reason for row in found.dropped)),
        "segments": len(segments),
        "batch_tokens": batch_tokens,
        "batches": len(batches),
        "padding": round(1 - num_tokens / padded, 4),
        "bytes_estimated": estimate_bytes(preparation.spec, num_tokens, len(segments)),
        "free_bytes": preparation.storage.free_bytes(),
        "max_disk_smallest": disk_need(preparation, None).smallest,
    }


def require_room(preparation: Preparation, cache: Cache | None, need: DiskNeed) -> None:
    """``ConfigError`` if what is left to extract, or the budget for it, will not fit on the disk.

    Or if the budget is too small for any work.
    """
    _require_workable(need)
    config, spec = preparation.config, preparation.spec
    missing = missing_segments(preparation, cache)
    num_tokens = sum(segment.num_tokens for segment in missing)
    estimates = estimate_bytes(spec, num_tokens, len(missing))
    needed, free = estimates[spec.codec], preparation.storage.free_bytes()
    if need.limit is not None:
        needed = min(needed, max(0, need.limit - need.held))
    if free is not None and needed > free:
        choices = ", ".join(f"{name} {shown_bytes(size)}" for name, size in estimates.items())
        raise ConfigError(
            f"--cache {config.cache}: about {shown_bytes(needed)} are needed and "
            f"{shown_bytes(free)} are free. Use another disk, --limit, --max-seq-len, "
            f"--dtype bfloat16 or another --codec ({choices})"
        )


def _require_workable(need: DiskNeed) -> None:
    if need.limit is not None and need.limit < need.smallest:
        raise ConfigError(
            f"--max-disk {need.limit}: too small for the target's parts, the plan and one segment "
            f"at a time; the smallest that works is --max-disk {need.smallest} "
            f"({shown_bytes(need.smallest)}). Smaller --segment-tokens need less, in a new cache"
        )


def require_whole(preparation: Preparation, need: DiskNeed) -> None:
    """``ConfigError`` if the budget cannot hold the whole cache."""
    _require_workable(need)
    if need.exceeds_limit:
        raise ConfigError(
            f"--max-disk {need.limit}: the whole cache may take {shown_bytes(need.whole)}, and one "
            "phase after the other needs it whole. With --overlap the cache in "
            f"{preparation.config.cache} is extracted and evicted in turn"
        )
