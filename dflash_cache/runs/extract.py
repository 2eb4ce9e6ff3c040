"""``extract``: a dataset and a target become a cache."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_cache.cache import Cache, CacheWriter, PlannedPart, open_budget
from dflash_cache.config import ExtractConfig
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.settings import to_json

from .batch_size import batch_tokens_of
from .cluster import connected
from .critical import critical_stage, stages_and_channels
from .disk import DiskNeed, disk_need
from .dropped import DroppedRows
from .extraction import Extraction, dropped_by_reason, load_captures
from .plan import require_room
from .preparation import (
    Preparation,
    missing_segments,
    open_matching,
    part_in,
    prepare,
    spec_to_be,
)
from .progress import OnProgress, ignore
from .room import RollingRoom, Room, RoomUntilFull
from .shown import shown_bytes
from .workers import ThreadWorkers, Workers, closing_all


def extract(config: ExtractConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Fill the cache; an unfinished one is resumed and a finished one left as it is.

    Returns the report: sequences, tokens, truncated, dropped {reason: rows}, bytes_raw,
    bytes_stored, batch_tokens (of this run; None if nothing was left to do), segments_missing (not
    extracted, for the disk budget was reached), wall_s, critical_stage, critical_share, stages
    {name: {busy_s, starved_s, blocked_s}}, channels {name: {capacity, depth}}.
    """
    began = time.perf_counter()
    with connected(config):
        preparation = prepare(config)
        with extracting(preparation, on_progress) as (cache, pipeline, extraction):
            pipeline.start()
    wall_s = time.perf_counter() - began
    return extract_report(preparation, cache, extraction, pipeline.statistics, wall_s)


@contextmanager
def extracting(
    preparation: Preparation, on_progress: OnProgress, passes: int = 0
) -> Iterator[tuple[Cache, Pipeline, Extraction | None]]:
    """A pipeline with phase one's stages in it, not started, under the cache's writer lock.

    Without anything left to do it is empty, and no target is loaded. Where a disk budget does not
    hold the whole cache, ``passes`` reads of it by training, in the same pipeline, let segments be
    evicted and extracted again; without any, extraction ends at the budget.
    """
    storage, cache = preparation.storage, open_matching(preparation)
    need = disk_need(preparation, cache, passes or 1)
    rolling = passes > 0 and need.exceeds_limit
    _require_budget_for(preparation, cache, need, rolling)
    if cache is not None and not rolling and not _is_left(preparation, cache):
        with Pipeline("extract") as pipeline:
            yield cache, pipeline, None
        return
    if cache is None:
        storage.require_free()
    require_room(preparation, cache, need)
    if cache is not None:
        DroppedRows(preparation, cache)  # before a target is loaded
    with storage.lock(), _workers(preparation) as workers:
        cache = _lay_out(preparation, workers)
        with Pipeline("extract") as pipeline:
            writer = CacheWriter(cache)
            room = _room(pipeline, preparation, cache, passes) if need.exceeds_limit else None
            extraction = Extraction(pipeline, preparation, writer, workers, room, on_progress)
            yield cache, pipeline, extraction
        if room is None:  # else the cache may be no whole one
            _require_sequences(cache)


@contextmanager
def _workers(preparation: Preparation) -> Iterator[Workers]:
    """What the settings name, with targets loaded or on the way."""
    if preparation.config.engine == "ray":
        from .actors import ActorWorkers

        with ActorWorkers(preparation) as workers:
            yield workers
        return
    with closing_all(load_captures(preparation)) as captures:
        batch_tokens = batch_tokens_of(preparation, captures[preparation.devices[0]])
        yield ThreadWorkers(preparation, captures, batch_tokens)


def _is_left(preparation: Preparation, cache: Cache) -> bool:
    appends = part_in(preparation, cache) is None
    return appends or bool(missing_segments(preparation, cache))


def _room(pipeline: Pipeline, preparation: Preparation, cache: Cache, passes: int) -> Room:
    limit = preparation.config.max_disk
    assert limit is not None
    monitor = pipeline.monitor("disk budget")
    budget = open_budget(cache, limit, cache.plan, passes or 1)
    if passes:
        return RollingRoom(monitor, budget, cache)
    return RoomUntilFull(monitor, budget, cache.spec, missing_segments(preparation, cache))


def _require_budget_for(
    preparation: Preparation, cache: Cache | None, need: DiskNeed, rolling: bool
) -> None:
    """``ConfigError`` if the budget does not go with the cache that is there, or with the share."""
    config = preparation.config
    several = cache is not None and len(cache.spec.parts) > 1
    if rolling and (several or config.append or config.share):
        raise ConfigError(
            f"--max-disk {need.limit}: evicted segments are extracted again from --data, so a "
            "cache of several datasets, --append and --share do not go with it, unless it holds all"
        )
    if not rolling and need.limit is not None and need.held > need.limit:
        raise ConfigError(
            f"--max-disk {need.limit}: --cache {config.cache} takes {shown_bytes(need.held)} "
            "already, and only `both --overlap` evicts segments"
        )


def _require_sequences(cache: Cache) -> None:
    if not any(segment.num_sequences for segment in cache.segments.values()):
        row = cache.ledger[-1]
        raise DataError(
            f"{cache.address}: every row was left out, the last one, row {row.row_id}, for "
            f"{row.reason} ({row.detail}); is the target whole, and --dtype right for it?"
        )


def _lay_out(preparation: Preparation, workers: Workers) -> Cache:
    """The cache with these settings' dataset part in it, made or extended if need be."""
    config, cache = preparation.config, open_matching(preparation)
    resolved = replace(config, data=config.data.absolute(), batch_tokens=workers.batch_tokens)
    settings = json.loads(to_json(resolved))
    if Path(config.target).is_dir():
        settings["target"] = str(Path(config.target).absolute())
    part = PlannedPart(segments=preparation.plan, dropped=preparation.survey.dropped)
    if cache is None:
        target = workers.target_parts()
        return Cache.create(preparation.storage, preparation.spec, settings, target, part)
    if part_in(preparation, cache) is None:
        cache.append(spec_to_be(preparation, cache), settings, part)
    return cache


def extract_report(
    preparation: Preparation,
    cache: Cache,
    extraction: Extraction | None,
    statistics: dict[str, StageStatistics],
    wall_s: float,
) -> dict[str, Any]:
    segments = cache.segments.values()
    return {
        "sequences": sum(segment.num_sequences for segment in segments),
        "tokens": sum(segment.num_tokens for segment in segments),
        "truncated": preparation.survey.num_truncated,
        "dropped": dropped_by_reason(cache),
        "bytes_raw": sum(segment.bytes_raw for segment in segments),
        "bytes_stored": sum(segment.bytes_stored for segment in segments),
        "batch_tokens": extraction.batch_tokens if extraction else None,
        "segments_missing": cache.spec.first_segments[-1] - len(segments),
        "wall_s": round(wall_s, 3),
        **critical_stage(statistics),
        **stages_and_channels(statistics),
    }
