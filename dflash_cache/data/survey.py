"""One pass over all rows before any work: what is wrong, what is left out, what is usable."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from dflash_cache.errors import DataError
from dflash_cache.types import DroppedRow, Int64Array

from .block import KEPT, REASONS, RowBlock
from .rows import TokenRows

BLOCK_ROWS = 1 << 11  # bounds the memory of a pass, also for long rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Lengths of usable rows and the rows that are left out, by row number."""

    row_ids: Int64Array  # [rows kept], ascending
    lengths: Int64Array  # [rows kept], tokens after truncation
    dropped: tuple[DroppedRow, ...]
    num_truncated: int
    mask_share: float  # of the tokens of all rows, those whose loss mask is set
    fingerprint: str  # of the content, whatever Arrow types and chunks hold it


def survey(
    rows: TokenRows, *, vocab_size: int | None, max_seq_len: int, too_long: str, on_bad_row: str
) -> Survey:
    """Check all rows; without a ``vocab_size`` an id need only be one that some target may have.

    ``too_long`` is ``truncate`` or ``drop``, for rows of more than ``max_seq_len`` tokens.
    ``on_bad_row`` is for rows that break the format: with ``fail``, ``DataError`` names the first
    and its position, and counts the rest; with ``drop`` they are left out like others.
    """
    digests = tuple(xxhash.xxh3_128() for _ in range(3))  # lengths, ids, mask: chunks do not show
    lengths, reasons = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    bad: list[DroppedRow] = []
    flags = np.zeros(2, np.int64)  # that are set, and all
    for start, stop in _block_bounds(rows):
        block = RowBlock.read(rows, start, stop)
        faults = block.faults(vocab_size)
        faulty = np.array([fault.row_id for fault in faults], np.int64)
        for digest, part in zip(digests, block.content(faulty), strict=True):
            digest.update(np.ascontiguousarray(part).data)
        bad += faults
        flags += np.array([np.count_nonzero(block.supervised), len(block.supervised)])
        lengths.append(block.lengths)
        reasons.append(block.reasons(max_seq_len, too_long))
    if bad and on_bad_row == "fail":
        raise _refusal(bad)
    length, reason = np.concatenate(lengths), np.concatenate(reasons)
    good = np.ones(len(reason), bool)
    good[[fault.row_id for fault in bad]] = False
    kept = np.flatnonzero(good & (reason == KEPT))
    left = np.flatnonzero(good & (reason != KEPT)).tolist()
    others = [DroppedRow(row_id=row, reason=REASONS[reason[row]]) for row in left]
    return Survey(
        row_ids=kept,
        lengths=np.minimum(length[kept], max_seq_len),
        dropped=tuple(sorted([*bad, *others], key=lambda row: row.row_id)),
        num_truncated=int((length[kept] > max_seq_len).sum()),
        mask_share=float(flags[0] / max(1, flags[1])),
        fingerprint=xxhash.xxh3_128_hexdigest(b"".join(part.digest() for part in digests)),
    )


def _block_bounds(rows: TokenRows) -> Iterator[tuple[int, int]]:
    """Of blocks that each lie in one chunk of each column."""
    chunks = np.unique(np.concatenate([rows.input_ids.starts, rows.loss_mask.starts]))
    starts = chunks[chunks < rows.num_rows].tolist()
    for start, stop in pairwise([*starts, rows.num_rows]):
        yield from pairwise([*range(start, stop, BLOCK_ROWS), stop])


def _refusal(bad: Sequence[DroppedRow]) -> DataError:
    first, others = bad[0], len(bad) - 1
    rows = "rows have" if others > 1 else "row has"
    also = f" {others} more {rows} faults." if others else ""
    return DataError(
        f"row {first.row_id}: {first.detail}.{also} Mend these rows, or leave them out with "
        "--on-bad-row drop"
    )
