"""``inspect`` of a cache. Nothing here imports torch, so that it starts at once."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.cache import Cache, float32_states
from dflash_cache.config import InspectConfig
from dflash_cache.errors import ConfigError
from dflash_cache.types import HiddenSegment, Int64Array, SegmentPlan

from .lengths import length_figures


def inspect_cache(config: InspectConfig) -> dict[str, Any]:
    """Read the records of a cache, finished or not, also while it is written.

    Returns the report: identity {..}, segments, segments_planned, sequences, tokens, lengths
    {shortest, median, longest, histogram [{from, to, rows}]}, dropped {reason: rows}, codec,
    bytes_raw, bytes_stored, linked {cache folder: segments}, writer {host, pid, since} or null;
    row {..} and quality {..} on request.
    """
    cache = Cache.open(config.cache)
    plan = cache.plan
    segments = cache.segments.values()
    report: dict[str, Any] = {
        "identity": cache.spec.as_dict(),
        "segments": len(segments),
        "segments_planned": len(plan),
        "sequences": sum(segment.num_sequences for segment in segments),
        "tokens": sum(segment.num_tokens for segment in segments),
        "lengths": length_figures(stored_rows(cache, plan)[1]),
        "dropped": dict(Counter(row.reason for row in cache.ledger)),
        "codec": cache.spec.codec,
        "bytes_raw": sum(segment.bytes_raw for segment in segments),
        "bytes_stored": sum(segment.bytes_stored for segment in segments),
        "linked": cache.linked,
        "writer": cache.storage.writer(),
    }
    if config.row is not None:
        report["row"] = _row(config, cache, plan, config.row)
    if config.quality:
        from .quality import quality

        report["quality"] = quality(config, cache)
    return report


def stored_rows(
    cache: Cache, plan: Sequence[SegmentPlan]
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Row ids, lengths in tokens and segment of every stored sequence, in plan order."""
    done = [segment for segment in plan if segment.index in cache.segments]
    empty = np.zeros(0, np.int64)
    rows = np.concatenate([empty, *(segment.row_ids for segment in done)])
    lengths = np.concatenate([empty, *(segment.lengths for segment in done)])
    owners = np.repeat(
        np.array([segment.index for segment in done], np.int64),
        [len(segment.row_ids) for segment in done],
    )
    kept = ~np.isin(rows, [row.row_id for row in cache.ledger])
    return rows[kept], lengths[kept], owners[kept]


def _row(
    config: InspectConfig, cache: Cache, plan: Sequence[SegmentPlan], row_id: int
) -> dict[str, Any]:
    """Text, ids, mask and, by layer, the norms of the states of one row's tokens."""
    segment = cache.read(_segment_of(cache, plan, row_id), np.array([row_id], np.int64))
    norms_TK = np.linalg.norm(float32_states(segment), axis=2)
    layers = [
        {
            "layer": layer,
            "norm_mean": float(norms.mean()),
            "norm_smallest": float(norms.min()),
            "norm_largest": float(norms.max()),
        }
        for layer, norms in zip(cache.spec.state_names, norms_TK.T, strict=True)
    ]
    return {
        "row_id": row_id,
        "segment": segment.index,
        "input_ids": segment.input_ids.tolist(),
        "loss_mask": segment.loss_mask.tolist(),
        "text": _text(config, cache, segment),
        "layers": layers,
    }


def _text(
    config: InspectConfig, cache: Cache, segment: HiddenSegment
) -> list[dict[str, Any]] | None:
    """None where the target's tokenizer is not named and no longer where it was."""
    target = config.target or str(cache.settings[0]["target"])  # absolute, if it is a folder
    if config.target is None and not Path(target, "tokenizer.json").is_file():
        return None
    from dflash_cache.data import masked_text

    return masked_text(target, segment.input_ids, segment.loss_mask)


def _segment_of(cache: Cache, plan: Sequence[SegmentPlan], row_id: int) -> int:
    """The committed segment that has ``row_id``; ``ConfigError`` says why there is none."""
    rows, _, owners = stored_rows(cache, plan)
    found = owners[rows == row_id]
    if len(found):
        return int(found[0])
    for row in cache.ledger:
        if row.row_id == row_id:
            raise ConfigError(f"--row {row_id}: it was left out, for {row.reason} {row.detail}")
    if any(row_id in segment.row_ids for segment in plan):
        raise ConfigError(f"--row {row_id}: its segment is not extracted yet")
    num_rows = sum(part.num_rows for part in cache.spec.parts)
    raise ConfigError(f"--row {row_id}: {cache.address} has rows 0..{num_rows - 1}")
