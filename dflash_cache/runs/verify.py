"""``verify``: every byte of a cache, and its repair."""

import re
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from dflash_cache.cache import (
    ROOT,
    SPEC,
    TARGET,
    Cache,
    Fault,
    PlannedPart,
    Storage,
    TargetParts,
    open_storage,
    rebuild_commits,
    require_links_lead,
    restore_spec,
    rewrite_content,
    uncommit,
    verify_cache,
)
from dflash_cache.config import ExtractConfig, VerifyConfig
from dflash_cache.errors import CacheCorruptError, ConfigError
from dflash_cache.settings import build

from .extract import extract
from .extraction import load_captures
from .preparation import Preparation, part_in, prepare
from .progress import OnProgress, ignore, segment_progress


def verify(config: VerifyConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Check every byte; with ``repair`` make again what is damaged, from dataset and target.

    Returns the report: segments, missing (planned and not extracted yet), chunks, bad [{path,
    problem, segment, rows}] as it is at the end, and repaired, the number of faults mended.
    """
    storage = open_storage(config.cache)
    before = faults = _check(storage, on_progress)
    if config.repair and (faults or _num_missing(storage)):
        faults = _repair(config, storage, on_progress)
    remaining = {fault.path for fault in faults}
    readable = not remaining & {storage.place(SPEC), storage.place(storage.commits.name)}
    segments = Cache.open(storage).segments.values() if readable else ()
    return {
        "segments": len(segments),
        "missing": _num_missing(storage) if readable else 0,
        "chunks": sum(segment.num_chunks for segment in segments),
        "bad": [asdict(fault) for fault in faults],
        "repaired": sum(fault.path not in remaining for fault in before),
    }


def _check(storage: Storage, on_progress: OnProgress, *, alone: bool = False) -> list[Fault]:
    return verify_cache(storage, alone=alone, on_segment=segment_progress("verify", on_progress))


def _num_missing(storage: Storage) -> int:
    try:
        cache = Cache.open(storage)
    except CacheCorruptError:
        return 0  # the fault that stands in the way is reported itself
    return cache.spec.first_segments[-1] - len(cache.segments)


def _repair(config: VerifyConfig, storage: Storage, on_progress: OnProgress) -> list[Fault]:
    with storage.lock():
        restores = ((SPEC, restore_spec), (storage.commits.name, rebuild_commits))
        for name, restore in restores:
            faults = _check(storage, on_progress, alone=True)
            if any(fault.path == storage.place(name) for fault in faults):
                restore(storage)
        faults = _check(storage, on_progress, alone=True)
        cache = Cache.open(storage)
        damaged = {fault.segment for fault in faults if fault.segment is not None}
        require_links_lead(cache, damaged)
        # Nothing is given up before datasets and target are known to be those of the cache.
        preparations = _preparations(config, cache, faults)
        _rewrite_content(preparations, cache, faults)
        uncommit(cache, damaged)
    for preparation in preparations.values():
        extract(preparation.config, on_progress)
    return _check(storage, on_progress)


def _preparations(
    config: VerifyConfig, cache: Cache, faults: Collection[Fault]
) -> dict[int, Preparation]:
    """One for each dataset part that something is to be made again of."""
    lost = {fault.segment for fault in faults if fault.segment is not None}
    lost |= set(range(cache.spec.first_segments[-1])) - cache.segments.keys()
    found = {cache.spec.part_of(index) for index in lost}
    numbers = found | {
        number for name in _damaged_files(cache, faults) if (number := _part_of(name)) is not None
    }
    if len(numbers) > 1 and config.data:
        raise ConfigError(
            f"--data {config.data}: {len(numbers)} datasets are needed for this repair; put them "
            "where they were: " + ", ".join(cache.spec.parts[n].dataset for n in sorted(numbers))
        )
    preparations = {}
    for number in sorted(numbers) or [0]:
        preparations[number] = prepare(_extract_config(config, cache, number))
        part_in(preparations[number], cache)
    return preparations


def _part_of(name: str) -> int | None:
    """The dataset part that a plan's or ledger's file belongs to; None for the target's."""
    if name.startswith(TARGET):
        return None
    return next((int(word) for word in re.split("[/.]", name) if word.isdecimal()), None)


def _damaged_files(cache: Cache, faults: Collection[Fault]) -> set[str]:
    damaged = {fault.path for fault in faults if fault.segment is None}
    return {name for name in cache.fingerprints if cache.storage.place(name) in damaged}


def _extract_config(config: VerifyConfig, cache: Cache, number: int) -> ExtractConfig:
    """The settings that made a dataset part, on this machine and with what the user says now."""
    settings = dict(cache.settings[number]) | {
        "cache": str(config.cache),
        "dtype": cache.spec.dtype,
        "share": None,
        "max_disk": None,  # a repair fills no more than was there
        "max_dropped": 1.0,  # rows without finite states are no damage
        "devices": config.devices,
        "compile": False,  # there may be no compiler here
        "engine": "threads",  # a repair is this machine's work
        "address": None,
        "trust_remote_code": config.trust_remote_code,  # never because a cache says so
    }
    moved = {name: value for name in ("data", "target") if (value := getattr(config, name))}
    return build(ExtractConfig, settings, moved)


def _rewrite_content(
    preparations: dict[int, Preparation], cache: Cache, faults: list[Fault]
) -> None:
    names = _damaged_files(cache, faults)
    copy = cache.storage.place(f"{ROOT}/zarr.json")
    if not names and all(fault.path != copy for fault in faults):
        return
    parts = {
        number: PlannedPart(segments=preparation.plan, dropped=preparation.survey.dropped)
        for number, preparation in preparations.items()
    }
    target = None
    if any(name.startswith(TARGET) for name in names):
        target = _target_parts(next(iter(preparations.values())))
    rewrite_content(cache, target, parts, names)


def _target_parts(preparation: Preparation) -> TargetParts:
    (capture,) = load_captures(replace(preparation, devices=preparation.devices[:1])).values()
    try:
        return capture.target.parts()
    finally:
        capture.close()
