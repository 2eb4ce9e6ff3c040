"""One pass over all rows before any work: what is wrong, what is left out, what is usable."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from dflash_cache.errors import DataError
from dflash_cache.types import Array, DroppedRow, Int64Array

from .rows import TokenRows

BLOCK_ROWS = 1 << 16
# Reasons for which a row is left out, in the order in which they are looked for.
REASONS = ("null", "empty", "too_long", "no_loss_token", "no_anchor")
_KEPT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Lengths of usable rows and the rows that are left out, by row number."""

    row_ids: Int64Array  # [rows kept], ascending
    lengths: Int64Array  # [rows kept], tokens after truncation
    dropped: tuple[DroppedRow, ...]
    num_truncated: int
    fingerprint: str  # of the content, whatever Arrow types and chunks hold it


@dataclass(frozen=True, slots=True)
class _Block:
    """Findings for a run of rows."""

    lengths: Int64Array  # [rows] before truncation, 0 for null
    reasons: Int64Array  # [rows] index into REASONS or _KEPT
    faults: list[tuple[int, str]]  # (row, message)


def survey(rows: TokenRows, *, vocab_size: int, max_seq_len: int, too_long: str) -> Survey:
    """Check all rows. ``DataError`` names the first faulty row and position, and counts the rest.

    ``too_long`` is ``truncate`` or ``drop``, for rows of more than ``max_seq_len`` tokens.
    """
    digests = tuple(xxhash.xxh3_128() for _ in range(3))  # lengths, ids, mask: chunks do not show
    blocks = [
        _survey_block(rows, start, stop, digests, (vocab_size, max_seq_len, too_long))
        for start, stop in _block_bounds(rows, rows.num_rows)
    ]
    _raise_faults([fault for block in blocks for fault in block.faults])
    empty = np.zeros(0, np.int64)
    digest = xxhash.xxh3_128(b"".join(part.digest() for part in digests))
    lengths = np.concatenate([empty, *(block.lengths for block in blocks)])
    reasons = np.concatenate([empty, *(block.reasons for block in blocks)])
    kept = np.flatnonzero(reasons == _KEPT)
    dropped = np.flatnonzero(reasons != _KEPT)
    return Survey(
        row_ids=kept,
        lengths=np.minimum(lengths[kept], max_seq_len),
        dropped=tuple(
            DroppedRow(row_id=row, reason=REASONS[reasons[row]]) for row in dropped.tolist()
        ),
        num_truncated=int((lengths[kept] > max_seq_len).sum()),
        fingerprint=digest.hexdigest(),
    )


def _block_bounds(rows: TokenRows, num_rows: int) -> Iterator[tuple[int, int]]:
    """Cut so that a block lies in one chunk of each column."""
    cuts = np.unique(
        np.concatenate(
            [rows.input_ids.starts, rows.loss_mask.starts, np.arange(0, num_rows, BLOCK_ROWS)]
        )
    )
    return pairwise(np.append(cuts[cuts < num_rows], num_rows).tolist())


def _survey_block(
    rows: TokenRows,
    start: int,
    stop: int,
    digests: tuple[xxhash.xxh3_128, ...],
    rules: tuple[int, int, str],
) -> _Block:
    vocab_size, max_seq_len, too_long = rules
    offsets, ids, valid = rows.input_ids.block(start, stop)
    mask_offsets, mask, mask_valid = rows.loss_mask.block(start, stop)
    valid = valid & mask_valid
    lengths = np.where(valid, np.diff(offsets), 0)
    mask_lengths = np.where(valid, np.diff(mask_offsets), 0)
    hashed = (np.where(valid, lengths, -1), ids.astype(np.int32, copy=False), mask != 0)
    for digest, part in zip(digests, hashed, strict=True):
        digest.update(np.ascontiguousarray(part).data)
    faults = [
        (start + row, f"loss_mask has {mask_lengths[row]} values for {lengths[row]} input_ids")
        for row in np.flatnonzero(lengths != mask_lengths).tolist()
    ]
    faults += _value_faults(
        ids, offsets, valid, start, (ids < 0) | (ids >= vocab_size),
        f"id {{}} is outside the target's vocabulary 0..{vocab_size - 1}",
    )  # fmt: skip
    faults += _value_faults(
        mask, mask_offsets, valid, start, (mask != 0) & (mask != 1),
        "loss_mask value {} is neither 0 nor 1",
    )  # fmt: skip
    if rows.seq_len is not None:
        stated = rows.seq_len[start:stop].to_numpy()
        faults += [
            (start + row, f"seq_len says {stated[row]}, input_ids has {lengths[row]}")
            for row in np.flatnonzero(valid & (stated != lengths)).tolist()
        ]
    if faults:
        return _Block(lengths, np.full(stop - start, _KEPT), faults)
    cut = np.minimum(lengths, max_seq_len)
    supervised = mask != 0
    loss_tokens = _count(supervised, mask_offsets[:-1], cut)
    pairs = _count(supervised[:-1] & supervised[1:], mask_offsets[:-1], np.maximum(cut - 1, 0))
    found = (
        ~valid,
        lengths == 0,
        (lengths > max_seq_len) & (too_long == "drop"),
        loss_tokens == 0,
        pairs == 0,
    )
    return _Block(lengths, np.select(found, range(len(REASONS)), default=_KEPT), [])


def _count(flags: Array, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """How many of ``flags`` are set in each ``starts[i] : starts[i] + lengths[i]``."""
    totals: Int64Array = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    last = len(flags)
    counts: Int64Array = totals[np.minimum(starts + lengths, last)]
    return counts - totals[np.minimum(starts, last)]


def _value_faults(
    values: Array, offsets: Int64Array, valid: Array, start: int, wrong: Array, message: str
) -> list[tuple[int, str]]:
    """One fault a row for values that are ``wrong``, at its first wrong position."""
    positions = np.flatnonzero(wrong)
    owners = np.searchsorted(offsets, positions, side="right") - 1
    owners, firsts = np.unique(owners, return_index=True)
    return [
        (start + row, f"position {positions[first] - offsets[row]}: "
         + message.format(values[positions[first]]))
        for row, first in zip(owners.tolist(), firsts.tolist(), strict=True)
        if valid[row]
    ]  # fmt: skip


def _raise_faults(faults: list[tuple[int, str]]) -> None:
    if faults:
        row, message = min(faults)
        others = len({other for other, _ in faults} - {row})
        also = (
            f" {others} more {'rows have' if others > 1 else 'row has'} faults." if others else ""
        )
        raise DataError(f"row {row}: {message}.{also} Mend or drop these rows and run again")
