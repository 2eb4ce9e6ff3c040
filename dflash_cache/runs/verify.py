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

from .extract import cache_content, extract
from .extraction import load_captures
from .preparation import Preparation, open_matching, prepare
from .progress import OnProgress, ignore


def verify(config: VerifyConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Check every byte; with ``repair`` make again what is damaged, from dataset and target.

    Returns the report: segments, chunks, bad [{path, problem, segment, rows}] as it is at the end,
    and repaired, the number of faults that were mended.
    """
    root = config.cache
    faults = verify_cache(root)
    found = len(faults)
    if faults and config.repair:
        faults = _repair(root, faults, on_progress)
    readable = not any(Path(fault.path) in (root / SPEC, root / LOG) for fault in faults)
    segments = Cache.open(root).segments.values() if readable else ()
    return {
        "segments": len(segments),
        "chunks": sum(len(segment.chunk_crcs) for segment in segments),
        "bad": [asdict(fault) for fault in faults],
        "repaired": found - len(faults),
    }


def _repair(root: Path, faults: list[Fault], on_progress: OnProgress) -> list[Fault]:
    with writer_lock(root):
        for name, restore in ((SPEC, restore_spec), (LOG, rebuild_log)):
            if any(Path(fault.path) == root / name for fault in faults):
                restore(root)
                faults = verify_cache(root)
        settings = Cache.open(root).settings
        # Nothing is given up before dataset and target are known to be those of the cache.
        preparation = prepare(build(ExtractConfig, settings, {"cache": str(root)}))
        cache = open_matching(preparation)
        assert cache is not None
        _rewrite_content(preparation, cache, faults)
        uncommit(cache, {fault.segment for fault in faults if fault.segment is not None})
    extract(preparation.config, on_progress)
    return verify_cache(root)


def _rewrite_content(preparation: Preparation, cache: Cache, faults: list[Fault]) -> None:
    damaged = {Path(fault.path) for fault in faults if fault.segment is None}
    names = {name for name in cache.fingerprints if cache.root / name in damaged}
    if not names and cache.root / ROOT / "zarr.json" not in damaged:
        return
    captures = load_captures(preparation)
    rewrite_content(cache, cache_content(preparation, captures), names)
    for capture in captures.values():
        capture.close()
