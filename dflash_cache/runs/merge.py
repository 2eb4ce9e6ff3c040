"""``merge``: several caches become one."""

from pathlib import Path
from typing import Any

from dflash_cache.cache import Cache, dead_links, merge_caches, missing_file, open_storage
from dflash_cache.config import MergeConfig
from dflash_cache.errors import ConfigError

from .progress import OnProgress, ignore, segment_progress


def merge(config: MergeConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Put the segments of ``config.caches`` together in ``config.into``.

    Returns the report: segments, missing (planned and in no source), sequences, tokens, parts,
    bytes_stored, linked {cache folder: segments}.
    """
    if config.symlink:
        _require_folders(*config.caches, config.into)
    into = open_storage(config.into)
    sources = [Cache.open(address) for address in config.caches]
    if not sources or any(_same_place(source.address, into.address) for source in sources):
        raise ConfigError(f"--into {config.into}: name at least one cache, and another folder")
    with into.lock():
        cache = merge_caches(
            sources, into, symlink=config.symlink, on_segment=segment_progress("merge", on_progress)
        )
    if dead := dead_links(cache, cache.segments):
        raise missing_file(cache.storage, dead[0])
    segments = cache.segments.values()
    return {
        "segments": len(segments),
        "missing": cache.spec.first_segments[-1] - len(segments),
        "sequences": sum(segment.num_sequences for segment in segments),
        "tokens": sum(segment.num_tokens for segment in segments),
        "parts": len(cache.spec.parts),
        "bytes_stored": sum(segment.bytes_stored for segment in segments),
        "linked": cache.linked,
    }


def _require_folders(*addresses: str) -> None:
    for address in addresses:
        if "://" in address:
            raise ConfigError(
                f"--symlink: {address} is in an object store, and links lead from folder to "
                "folder; without --symlink the segments are copied"
            )


def _same_place(address: str, other: str) -> bool:
    """Through links too, where the addresses are folders."""
    return address == other or Path(address).resolve() == Path(other).resolve()
