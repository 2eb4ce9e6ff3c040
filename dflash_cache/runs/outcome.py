"""What the starts of a run came to, kept in its folder for ``report``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_cache.cache import Cache, write_atomically
from dflash_cache.run_files import OUTCOME
from dflash_cache.shapes import ANY, NUMBER, misfit

_STAGES = {ANY: {f"{state}_s": NUMBER for state in ("busy", "starved", "blocked")}}
_SIZES = ("segments", "num_sequences", "num_tokens", "bytes_raw", "bytes_stored")
_SHAPES: dict[str, Any] = {
    "extract": {"stages": _STAGES},
    "train": {"stages": _STAGES, "waiting_share": NUMBER, "wall_s": NUMBER},
    "cache": {"address": str, **dict.fromkeys(_SIZES, int)},
}


def keep_outcome(run: Path, phases: Mapping[str, Any], cache: Cache | None = None) -> None:
    """Keep the reports of ``phases``, extract or train, and the size of ``cache``.

    A phase in which nothing was left to do leaves what is kept of an earlier start.
    """
    before = load_outcome(run)
    kept = before | {name: own for name, own in phases.items() if own["stages"]}
    if cache is not None:
        kept["cache"] = _figures(cache)
    if kept != before:
        write_atomically(run / OUTCOME, (json.dumps(kept, indent=1) + "\n").encode())


def load_outcome(run: Path) -> dict[str, Any]:
    """Reports by phase, and the cache's figures; empty before a start came to its end.

    What is cut or altered is left out: the next end writes it again.
    """
    try:
        kept: Any = json.loads((run / OUTCOME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    if not isinstance(kept, dict):
        return {}
    whole = [name for name in _SHAPES if name in kept and not misfit(kept[name], _SHAPES[name])]
    return {name: kept[name] for name in whole}


def _figures(cache: Cache) -> dict[str, Any]:
    segments = cache.segments.values()
    names = ("num_sequences", "num_tokens", "bytes_raw", "bytes_stored")
    return {
        "address": cache.address,
        "segments": len(segments),
        **{name: sum(getattr(segment, name) for segment in segments) for name in names},
    }
