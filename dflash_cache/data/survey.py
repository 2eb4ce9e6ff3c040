"""One pass over all rows before any work: what is wrong, what is left out, what is usable."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from dflash_cache.errors import DataError
from dflash_cache.types import Array, DroppedRow, Int64Array

from .rows import TokenRows

BLOCK_ROWS = 1 << 11  # bounds the memory of a pass, also for long rows
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


def survey(rows: TokenRows, *, vocab_size: int, max_seq_len: int, too_long: str) -> Survey:
    """Check all rows. ``DataError`` names the first faulty row and position, and counts the rest.

    ``too_long`` is ``truncate`` or ``drop``, for rows of more than ``max_seq_len`` tokens.
    """
    digests = tuple(xxhash.xxh3_128() for _ in range(3))  # lengths, ids, mask: chunks do not show
    lengths, reasons = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    faults: list[tuple[int, str]] = []
    for start, stop in _block_bounds(rows):
        block = _Block.read(rows, start, stop)
        for digest, part in zip(digests, block.content(), strict=True):
            digest.update(np.ascontiguousarray(part).data)
        faults += block.faults(vocab_size)
        lengths.append(block.lengths)
        reasons.append(block.reasons(max_seq_len, too_long))
    _raise_faults(faults)
    length, reason = np.concatenate(lengths), np.concatenate(reasons)
    kept = np.flatnonzero(reason == _KEPT)
    return Survey(
        row_ids=kept,
        lengths=np.minimum(length[kept], max_seq_len),
        dropped=tuple(
            DroppedRow(row_id=row, reason=REASONS[reason[row]])
            for row in np.flatnonzero(reason != _KEPT).tolist()
        ),
        num_truncated=int((length[kept] > max_seq_len).sum()),
        fingerprint=xxhash.xxh3_128_hexdigest(b"".join(part.digest() for part in digests)),
    )


def _block_bounds(rows: TokenRows) -> Iterator[tuple[int, int]]:
    """Cut so that a block lies in one chunk of each column."""
    num_rows = rows.num_rows
    cuts = np.unique(
        np.concatenate(
            [rows.input_ids.starts, rows.loss_mask.starts, np.arange(0, num_rows, BLOCK_ROWS)]
        )
    )
    return pairwise(np.append(cuts[cuts < num_rows], num_rows).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A run of rows from ``start`` on, as views of the memory map."""

    start: int
    valid: Array  # [rows] bool: neither list is null
    ids: Array
    id_offsets: Int64Array  # [rows + 1]
    mask: Array
    mask_offsets: Int64Array  # [rows + 1]
    stated: Array | None  # [rows] seq_len

    @classmethod
    def read(cls, rows: TokenRows, start: int, stop: int) -> "_Block":
        id_offsets, ids, ids_valid = rows.input_ids.block(start, stop)
        mask_offsets, mask, mask_valid = rows.loss_mask.block(start, stop)
        return cls(
            start=start,
            valid=ids_valid & mask_valid,
            ids=ids,
            id_offsets=id_offsets,
            mask=mask,
            mask_offsets=mask_offsets,
            stated=None if rows.seq_len is None else rows.seq_len[start:stop].to_numpy(),
        )

    @property
    def lengths(self) -> Int64Array:
        """[rows] before truncation, 0 for null."""
        return np.where(self.valid, np.diff(self.id_offsets), 0)

    def content(self) -> tuple[Array, Array, Array]:
        """What the fingerprint is of, in one type whatever the dataset's."""
        lengths = np.where(self.valid, self.lengths, -1)
        return lengths, self.ids.astype(np.int32, copy=False), self.mask != 0

    def reasons(self, max_seq_len: int, too_long: str) -> Int64Array:
        """[rows] index into ``REASONS``, or ``_KEPT``."""
        lengths, starts = self.lengths, self.mask_offsets[:-1]
        cut = np.minimum(lengths, max_seq_len)
        supervised = self.mask != 0
        pairs = supervised[:-1] & supervised[1:]
        found = (
            ~self.valid,
            lengths == 0,
            (lengths > max_seq_len) & (too_long == "drop"),
            _count(supervised, starts, cut) == 0,
            _count(pairs, starts, np.maximum(cut - 1, 0)) == 0,
        )
        return np.select(found, range(len(REASONS)), default=_KEPT)

    def faults(self, vocab_size: int) -> list[tuple[int, str]]:
        """(row, message) for each fault that no policy covers."""
        lengths = self.lengths
        mask_lengths = np.where(self.valid, np.diff(self.mask_offsets), 0)
        faults = [
            (self.start + row, f"loss_mask has {mask_lengths[row]} values for {lengths[row]} ids")
            for row in np.flatnonzero(lengths != mask_lengths).tolist()
        ]
        if self.stated is not None:
            faults += [
                (self.start + row, f"seq_len says {self.stated[row]}, input_ids has {lengths[row]}")
                for row in np.flatnonzero(self.valid & (self.stated != lengths)).tolist()
            ]
        message = f"id {{}} is outside the target's vocabulary 0..{vocab_size - 1}"
        wrong = (self.ids < 0) | (self.ids >= vocab_size)
        faults += self._value_faults(self.ids, self.id_offsets, wrong, message)
        message = "loss_mask value {} is neither 0 nor 1"
        wrong = (self.mask != 0) & (self.mask != 1)
        return faults + self._value_faults(self.mask, self.mask_offsets, wrong, message)

    def _value_faults(
        self, values: Array, offsets: Int64Array, wrong: Array, message: str
    ) -> list[tuple[int, str]]:
        """One fault a row for values that are ``wrong``, at its first wrong position."""
        positions = np.flatnonzero(wrong)
        owners = np.searchsorted(offsets, positions, side="right") - 1
        owners, firsts = np.unique(owners, return_index=True)
        faults = []
        for row, position in zip(owners.tolist(), positions[firsts].tolist(), strict=True):
            if self.valid[row]:
                value = message.format(values[position])
                faults.append((self.start + row, f"position {position - offsets[row]}: {value}"))
        return faults


def _count(flags: Array, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """How many of ``flags`` are set in each ``starts[i] : starts[i] + lengths[i]``."""
    totals: Int64Array = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    last = len(flags)
    counts: Int64Array = totals[np.minimum(starts + lengths, last)]
    return counts - totals[np.minimum(starts, last)]


def _raise_faults(faults: list[tuple[int, str]]) -> None:
    if faults:
        row, message = min(faults)
        others = len({other for other, _ in faults} - {row})
        rows = "rows have" if others > 1 else "row has"
        also = f" {others} more {rows} faults." if others else ""
        raise DataError(f"row {row}: {message}.{also} Mend or drop these rows and run again")
