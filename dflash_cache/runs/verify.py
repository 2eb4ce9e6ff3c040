"""``verify``: every byte of a cache, and its repair."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_cache.cache import (
    LOG,
    ROOT,
    SPEC,
    Cache,
    Fault,
    rebuild_log,
    restore_spec,
    rewrite_content,
    uncommit,
    verify_cache,
    writer_lock,
)
from dflash_cache.config import ExtractConfig, VerifyConfig, build
from dflash_cache.errors import CacheCorruptError

from .extract import cache_content, extract
from .extraction import load_captures
from .preparation import Preparation, prepare, require_matching
from .progress import OnProgress, ignore


def verify(config: VerifyConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Check every byte; with ``repair`` make again what is damaged, from dataset and target.

    Returns the report: segments, missing (planned and not extracted yet), chunks, bad [{path,
    problem, segment, rows}] as it is at the end, and repaired, the number of faults mended.
    """
    root = config.cache
    before = faults = verify_cache(root)
    if config.repair and (faults or _num_missing(root)):
        faults = _repair(config, on_progress)
    remaining = {fault.path for fault in faults}
    readable = not remaining & {str(root / SPEC), str(root / LOG)}
    segments = Cache.open(root).segments.values() if readable else ()
    return {
        "segments": len(segments),
        "missing": _num_missing(root) if readable else 0,
        "chunks": sum(len(segment.chunk_crcs) for segment in segments),
        "bad": [asdict(fault) for fault in faults],
        "repaired": sum(fault.path not in remaining for fault in before),
    }


def _num_missing(root: Path) -> int:
    try:
        cache = Cache.open(root)
        return len(cache.plan) - len(cache.segments)
    except CacheCorruptError:
        return 0  # the fault that stands in the way is reported itself


def _repair(config: VerifyConfig, on_progress: OnProgress) -> list[Fault]:
    root = config.cache
    with writer_lock(root):
        for name, restore in ((SPEC, restore_spec), (LOG, rebuild_log)):
            if any(Path(fault.path) == root / name for fault in verify_cache(root, alone=True)):
                restore(root)
        faults = verify_cache(root, alone=True)
        cache = Cache.open(root)
        # Nothing is given up before dataset and target are known to be those of the cache.
        preparation = prepare(_extract_config(config, cache))
        require_matching(preparation, cache)
        _rewrite_content(preparation, cache, faults)
        uncommit(cache, {fault.segment for fault in faults if fault.segment is not None})
    extract(preparation.config, on_progress)
    return verify_cache(root)


def _extract_config(config: VerifyConfig, cache: Cache) -> ExtractConfig:
    """The settings that made the cache, on this machine and with what the user says now."""
    settings = dict(cache.settings) | {
        "cache": config.cache,
        "dtype": cache.spec.dtype,
        "devices": config.devices,
        "trust_remote_code": config.trust_remote_code,  # never because a cache says so
    }
    moved = {name: value for name in ("data", "target") if (value := getattr(config, name))}
    return build(ExtractConfig, settings, moved)


def _rewrite_content(preparation: Preparation, cache: Cache, faults: list[Fault]) -> None:
    damaged = {Path(fault.path) for fault in faults if fault.segment is None}
    names = {name for name in cache.fingerprints if cache.root / name in damaged}
    if not names and cache.root / ROOT / "zarr.json" not in damaged:
        return
    captures = load_captures(preparation)
    rewrite_content(cache, cache_content(preparation, captures), names)
