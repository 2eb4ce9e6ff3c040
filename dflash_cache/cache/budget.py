"""How many bytes of a disk budget are taken: in place, promised to segments being written, beside.

Bytes are counted as ``du`` counts them, in whole blocks, so that the sum of sizes is below as well.
"""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dflash_cache.types import DroppedRow, SegmentPlan

from .arrays import CHUNK_BYTES
from .cache import Cache
from .layout import LOG, SEGMENTS, STAGING, segment_folder
from .local import LocalStorage
from .segment import chunking
from .spec import CacheSpec

BLOCK_BYTES = 4096
# More than these ever take: a Zarr array's metadata, a segment's record
# and a line of the log without their lists, a row's entry in a
# ledger or a record, and spec, its copy, the target's configuration and empty folders together.
METADATA_BYTES, RECORD_BYTES, LINE_BYTES, ROW_RECORD_BYTES, CREATION_BYTES = (
    4096,
    2048,
    512,
    160,
    256 << 10,
)
CHUNK_OVERHEAD_BYTES = 128  # blosc's header, checksum, zeros up to the next chunk, index entry
SCALE_BYTES = 4
SMALL_ITEM_BYTES = {"input_ids": 4, "loss_mask": 1}


class Budget:
    """The account of one cache folder. No threads: its owner holds a lock."""

    def __init__(self, limit: int, beside: int, stored: Mapping[int, int]) -> None:
        """``beside`` is what the cache takes beside segments, ``stored`` each segment's bytes."""
        self._limit = limit - beside
        self._stored = dict(stored)
        self._reserved: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Negative when the folder held more than the budget from the start."""
        return self._limit - sum(self._stored.values()) - sum(self._reserved.values())

    def reserve(self, index: int, count: int) -> bool:
        """Promise ``count`` bytes to a segment that will be written, if they are free."""
        if count > self.free:
            return False
        self._reserved[index] = count
        return True

    def settle(self, index: int, count: int) -> None:
        """A promised segment is in place and takes ``count`` bytes."""
        assert count <= self._reserved[index], f"segment {index} takes more than the most it can"
        del self._reserved[index]
        self._stored[index] = count

    def release(self, index: int) -> None:
        """A segment in place was removed."""
        del self._stored[index]


def open_budget(cache: Cache, limit: int, plans: Sequence[SegmentPlan], extractions: int) -> Budget:
    """The account of ``cache`` as it is, whose segments will be extracted ``extractions`` times."""
    stored = {index: segment_bytes(cache, index) for index in cache.segments}
    beside = content_bytes(cache) + most_log_bytes(plans, extractions)
    return Budget(limit, beside, stored)


def folder_bytes(folder: Path, leave_out: Collection[Path] = ()) -> int:
    """Whole blocks of every file and folder in ``folder``, itself included; links as links."""
    total = 0
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = [name for name in folders if here / name not in leave_out]
        files = [here / name for name in names if here / name not in leave_out]
        total += blocks(here.stat().st_size) + sum(blocks(path.lstat().st_size) for path in files)
    return total


def blocks(count: int) -> int:
    """``count`` bytes in whole blocks."""
    return math.ceil(count / BLOCK_BYTES) * BLOCK_BYTES


def segment_bytes(cache: Cache, index: int) -> int:
    """What a segment in place takes."""
    return folder_bytes(_root(cache) / segment_folder(index))


def content_bytes(cache: Cache) -> int:
    """What a cache that exists takes beside segments and log."""
    root = _root(cache)
    return folder_bytes(root, {root / SEGMENTS, root / STAGING, root / LOG}) + METADATA_BYTES


def _root(cache: Cache) -> Path:
    assert isinstance(cache.storage, LocalStorage), "only a folder has a disk budget"
    return cache.storage.root


def most_content_bytes(
    spec: CacheSpec, plans: Sequence[SegmentPlan], dropped: Sequence[DroppedRow]
) -> int:
    """At least what ``content_bytes`` will be, before there is a cache; a head may be tied."""
    num_rows = sum(len(plan.row_ids) for plan in plans)
    part = _most_array_bytes(spec.vocab_size, spec.hidden_size * spec.item_bytes)
    planned = 2 * _most_array_bytes(num_rows, 8) + _most_array_bytes(len(plans), 8)
    # A character may take six in JSON.
    ledger = sum(ROW_RECORD_BYTES + 6 * len(row.detail) for row in dropped)
    return 2 * part + planned + blocks(ledger) + CREATION_BYTES


def most_log_bytes(plans: Sequence[SegmentPlan], extractions: int) -> int:
    """The log at its longest: lines of all extractions, and its copy while it is shortened."""
    lines = sum(LINE_BYTES + ROW_RECORD_BYTES * len(plan.row_ids) for plan in plans)
    return (extractions + 2) * lines + 2 * BLOCK_BYTES


def most_segment_bytes(spec: CacheSpec, plan: SegmentPlan) -> int:
    """The most that a segment takes, in staging or in place, whatever its states are."""
    num_chunks, chunk_tokens = chunking(plan.num_tokens, spec.stored_token_bytes)
    chunk_bytes = chunk_tokens * spec.stored_token_bytes + CHUNK_OVERHEAD_BYTES
    shard = blocks(num_chunks * chunk_bytes) + METADATA_BYTES
    small = sum(_most_array_bytes(plan.num_tokens, size) for size in SMALL_ITEM_BYTES.values())
    small += 2 * _most_array_bytes(len(plan.row_ids) + 1, 8)
    if spec.quantized:
        small += _most_array_bytes(plan.num_tokens, SCALE_BYTES * spec.num_states)
    folders = 7 * BLOCK_BYTES
    return shard + small + folders + blocks(_most_record_bytes(spec, plan))


def _most_record_bytes(spec: CacheSpec, plan: SegmentPlan) -> int:
    num_chunks, _ = chunking(plan.num_tokens, spec.stored_token_bytes)
    return RECORD_BYTES + 12 * num_chunks + ROW_RECORD_BYTES * len(plan.row_ids)


def _most_array_bytes(num_rows: int, row_bytes: int) -> int:
    """A small array with its metadata; its last chunk is as long as the others."""
    rows = max(1, min(num_rows, CHUNK_BYTES // row_bytes))
    num_chunks = math.ceil(num_rows / rows)
    return num_chunks * blocks(rows * row_bytes + 4) + METADATA_BYTES + BLOCK_BYTES
