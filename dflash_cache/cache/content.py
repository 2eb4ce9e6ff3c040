"""What a cache holds beside its segments: plans, ledgers, the target's frozen parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.types import Array, DroppedRow, Int64Array, SegmentPlan

from .arrays import write_array, write_group
from .layout import PLAN, SEGMENTS, TARGET, ledger_name, plan_folder

PLAN_ARRAYS = ("row_ids", "lengths", "segment_sequences")


def write_groups(folder: Path) -> None:
    """Write the groups that hold plans and segments, empty, below ``folder``."""
    for name in (SEGMENTS, PLAN):
        write_group(folder / name)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetParts:
    """What training needs of the target. Arrays are float32, or bfloat16 bits as uint16."""

    config: Mapping[str, Any]  # the text model's configuration, every value written out
    embedding: Array  # [vocabulary, H]
    head: Array | None  # [vocabulary, H]; None when tied to the embedding
    norm: Array | None  # [H], the final norm's weight, where it has one
    mask_token_id: int | None  # what its tokenizer offers as a mask token

    def write(self, folder: Path) -> None:
        """Write the target's group below ``folder``, the same bytes every time."""
        attributes = {"config": dict(self.config), "mask_token_id": self.mask_token_id}
        write_group(folder / TARGET, attributes)
        logical = "bfloat16" if self.embedding.dtype == np.uint16 else "float32"
        for name in ("embedding", "head", "norm"):
            if (data := getattr(self, name)) is not None:
                write_array(folder / TARGET / name, data, logical_dtype=logical)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPart:
    """One dataset part's plan, and the rows that it leaves out; rows by number in the dataset."""

    segments: Sequence[SegmentPlan]
    dropped: Sequence[DroppedRow]

    def write(self, folder: Path, number: int) -> None:
        """Write part ``number`` below ``folder``, the same bytes every time."""
        plan = folder / plan_folder(number)
        write_group(plan)
        for name, data in self._arrays().items():
            write_array(plan / name, data)
        ledger = folder / ledger_name(number)
        ledger.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{json.dumps(asdict(row))}\n" for row in self.dropped]
        ledger.write_text("".join(lines), encoding="utf-8")

    def _arrays(self) -> dict[str, Int64Array]:
        empty = np.zeros(0, np.int64)
        return {
            "row_ids": np.concatenate([empty, *(segment.row_ids for segment in self.segments)]),
            "lengths": np.concatenate([empty, *(segment.lengths for segment in self.segments)]),
            "segment_sequences": np.array([len(s.row_ids) for s in self.segments], np.int64),
        }
