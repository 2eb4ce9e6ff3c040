"""``inspect`` of a dataset of tokens, before a target is loaded."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.config import InspectConfig
from dflash_cache.data import TokenRows, mask_warnings, masked_text, survey
from dflash_cache.errors import ConfigError
from dflash_cache.types import Array

from .lengths import length_figures

NO_LIMIT = 1 << 31  # no row is longer


def inspect_dataset(config: InspectConfig) -> dict[str, Any]:
    """Check all rows as ``extract`` does, but for what depends on the target.

    Returns the report: dataset, rows, sequences (that would be kept), tokens (of those), lengths
    as for a cache, dropped {reason: rows}, dropped_first {reason: row and detail}, mask_share (of
    all tokens), warnings [..]; row {..} on request.
    """
    if config.quality:
        raise ConfigError(f"--quality is of a cache, and {config.cache} is a dataset")
    rows = TokenRows.open(Path(config.cache), split=config.split)
    found = survey(rows, vocab_size=None, max_seq_len=NO_LIMIT, too_long="drop", on_bad_row="drop")
    first = {row.reason: f"row {row.row_id} {row.detail}" for row in reversed(found.dropped)}
    report: dict[str, Any] = {
        "dataset": config.cache,
        "rows": rows.num_rows,
        "sequences": len(found.row_ids),
        "tokens": int(found.lengths.sum()),
        "lengths": length_figures(found.lengths),
        "dropped": dict(Counter(row.reason for row in found.dropped)),
        "dropped_first": {reason: shown.strip() for reason, shown in first.items()},
        "mask_share": round(found.mask_share, 4),
        "warnings": mask_warnings(found.mask_share),
    }
    if config.row is not None:
        faults = {row.row_id: f"{row.reason} {row.detail}".strip() for row in found.dropped}
        report["row"] = _row(config, rows, config.row, faults.get(config.row))
    return report


def _row(
    config: InspectConfig, rows: TokenRows, row_id: int, left_out: str | None
) -> dict[str, Any]:
    """Text, ids and mask of a row; a row that is ``left_out`` has no text, but the reason."""
    if row_id >= rows.num_rows:
        raise ConfigError(f"--row {row_id}: {config.cache} has rows 0..{rows.num_rows - 1}")
    ids, mask = rows.input_ids.row(row_id), rows.loss_mask.row(row_id)
    shows_text = config.target is not None and left_out is None
    return {
        "row_id": row_id,
        "left_out": left_out,
        "input_ids": _integers(ids),
        "loss_mask": _integers(mask),
        "text": masked_text(str(config.target), ids, mask) if shows_text else None,
    }


def _integers(values: Array) -> list[int | float | None]:
    """Also of a mask of booleans or floats, one that is none as it is; None for a null in it."""
    missing = np.isnan(values.astype(float)).tolist()
    pairs = zip(values.tolist(), missing, strict=True)
    plain = (None if is_missing else value for value, is_missing in pairs)
    return [value if value is None or value % 1 else int(value) for value in plain]
