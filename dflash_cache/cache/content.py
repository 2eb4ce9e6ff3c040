"""What a cache holds beside its segments: the plan, the ledger, the target's frozen parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.types import Array, DroppedRow, Int64Array, SegmentPlan

from .arrays import write_array, write_group
from .folder import LEDGER, ROOT

PLAN_ARRAYS = ("row_ids", "lengths", "segment_sequences")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetParts:
    """What training needs of the target. Arrays are float32, or bfloat16 bits as uint16."""

    config: Mapping[str, Any]  # the text model's configuration, every value written out
    embedding: Array  # [vocabulary, H]
    head: Array | None  # [vocabulary, H]; None when tied to the embedding
    norm: Array | None  # [H], the final norm's weight, where it has one
    mask_token_id: int | None  # what its tokenizer offers as a mask token


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheContent:
    """What a cache holds beside its segments."""

    plan: Sequence[SegmentPlan]
    dropped: Sequence[DroppedRow]
    target: TargetParts

    def write(self, folder: Path) -> Path:
        """Write plan, target and ledger below ``folder``, the same bytes every time."""
        root, target = folder / ROOT, self.target
        attributes = {"config": dict(target.config), "mask_token_id": target.mask_token_id}
        for name, group in (("segments", {}), ("plan", {}), ("target", attributes)):
            write_group(root / name, group)
        for name, data in _plan_arrays(self.plan).items():
            write_array(root / "plan" / name, data)
        logical = "bfloat16" if target.embedding.dtype == np.uint16 else "float32"
        for name in ("embedding", "head", "norm"):
            if (data := getattr(target, name)) is not None:
                write_array(root / "target" / name, data, logical_dtype=logical)
        lines = [f"{json.dumps(asdict(row))}\n" for row in self.dropped]
        (folder / LEDGER).write_text("".join(lines), encoding="utf-8")
        return folder


def _plan_arrays(plan: Sequence[SegmentPlan]) -> dict[str, Int64Array]:
    empty = np.zeros(0, np.int64)
    return {
        "row_ids": np.concatenate([empty, *(segment.row_ids for segment in plan)]),
        "lengths": np.concatenate([empty, *(segment.lengths for segment in plan)]),
        "segment_sequences": np.array([len(segment.row_ids) for segment in plan], np.int64),
    }
