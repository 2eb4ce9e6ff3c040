"""``extract``: a dataset and a target become a cache."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_cache.cache import Cache, CacheWriter, PlannedPart
from dflash_cache.config import ExtractConfig
from dflash_cache.errors import DataError
from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.settings import to_json
from dflash_cache.target import LayerCapture

from .extraction import Extraction, dropped_by_reason, load_captures
from .plan import require_room
from .preparation import Preparation, missing_segments, open_matching, part_in, prepare
from .progress import OnProgress, ignore


def extract(config: ExtractConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Fill the cache; an unfinished one is resumed and a finished one left as it is.

    Returns the report: sequences, tokens, truncated, dropped {reason: rows}, bytes_raw,
    bytes_stored, wall_s, stages {name: {busy_s, starved_s, blocked_s}}.
    """
    began = time.perf_counter()
    preparation = prepare(config)
    with extracting(preparation, on_progress) as (cache, pipeline, _):
        pipeline.start()
    return extract_report(preparation, cache, pipeline.statistics, time.perf_counter() - began)


@contextmanager
def extracting(
    preparation: Preparation, on_progress: OnProgress
) -> Iterator[tuple[Cache, Pipeline, Extraction | None]]:
    """A pipeline with phase one's stages in it, not started, under the cache's writer lock.

    Without anything left to do it is empty, and no target is loaded.
    """
    storage, cache = preparation.storage, open_matching(preparation)
    if cache is not None and not _is_left(preparation, cache):
        with Pipeline("extract") as pipeline:
            yield cache, pipeline, None
        return
    if cache is None:
        storage.require_free()
    require_room(preparation, cache)
    with storage.lock():
        captures = load_captures(preparation)
        cache = _lay_out(preparation, captures)
        try:
            with Pipeline("extract") as pipeline:
                extraction = Extraction(
                    pipeline, preparation, cache, CacheWriter(cache), captures, on_progress
                )
                yield cache, pipeline, extraction
            _require_sequences(cache)
        finally:
            for capture in captures.values():
                capture.close()


def _is_left(preparation: Preparation, cache: Cache) -> bool:
    appends = part_in(preparation, cache) is None
    return appends or bool(missing_segments(preparation, cache))


def _require_sequences(cache: Cache) -> None:
    if not any(segment.num_sequences for segment in cache.segments.values()):
        row = cache.ledger[-1]
        raise DataError(
            f"{cache.address}: every row was left out, the last one, row {row.row_id}, for "
            f"{row.reason} ({row.detail}); is the target whole, and --dtype right for it?"
        )


def _lay_out(preparation: Preparation, captures: Mapping[str, LayerCapture]) -> Cache:
    """The cache with these settings' dataset part in it, made or extended if need be."""
    config, cache = preparation.config, open_matching(preparation)
    settings = json.loads(to_json(replace(config, data=config.data.absolute())))
    if Path(config.target).is_dir():
        settings["target"] = str(Path(config.target).absolute())
    part = PlannedPart(segments=preparation.plan, dropped=preparation.survey.dropped)
    if cache is None:
        target = next(iter(captures.values())).target.parts()
        return Cache.create(preparation.storage, preparation.spec, settings, target, part)
    if part_in(preparation, cache) is None:
        parts = (*cache.spec.parts, *preparation.spec.parts)
        cache.append(replace(preparation.spec, parts=parts), settings, part)
    return cache


def extract_report(
    preparation: Preparation,
    cache: Cache,
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
        "wall_s": round(wall_s, 3),
        "stages": {name: stage.as_dict() for name, stage in statistics.items()},
    }
