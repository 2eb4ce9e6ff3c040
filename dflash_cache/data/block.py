"""A run of rows, and what is wrong with them or leaves them out."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dflash_cache.types import Array, DroppedRow, Int64Array

from .columns import ListBlock
from .rows import TokenRows

# Reasons for which a row is left out, in the order in which they are looked for.
REASONS = ("null", "empty", "too_long", "no_loss_token", "no_anchor")
KEPT = -1
MOST_IDS = 1 << 31  # a cache has them as int32


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """Rows from ``start`` on, as views of the memory map."""

    start: int
    valid: Array  # [rows] bool: neither list is null
    ids: ListBlock
    mask: ListBlock
    supervised: Array  # [values of mask] bool
    stated: Array | None  # [rows] seq_len as floats, NaN where it says nothing

    @classmethod
    def read(cls, rows: TokenRows, start: int, stop: int) -> "RowBlock":
        ids, mask = rows.input_ids.block(start, stop), rows.loss_mask.block(start, stop)
        return cls(
            start=start,
            valid=ids.valid & mask.valid,
            ids=ids,
            mask=mask,
            supervised=mask.values != 0,
            stated=None if rows.seq_len is None else _numbers(rows.seq_len[start:stop]),
        )

    @property
    def lengths(self) -> Int64Array:
        """[rows] before truncation, 0 for null."""
        return np.where(self.valid, np.diff(self.ids.offsets), 0)

    @property
    def _mask_lengths(self) -> Int64Array:
        return np.where(self.valid, np.diff(self.mask.offsets), 0)

    def content(self, faulty: Int64Array) -> tuple[Array, Array, Array]:
        """What the fingerprint is of, in one type whatever the dataset's.

        Rows in ``faulty`` hold what these types cannot, so that they are marked.
        """
        lengths = np.where(self.valid, self.lengths, -1)
        lengths[faulty - self.start] = -2 - lengths[faulty - self.start]
        return lengths, self.ids.values.astype(np.int32, copy=False), self.supervised

    def reasons(self, max_seq_len: int, too_long: str) -> Int64Array:
        """[rows] index into ``REASONS``, or ``KEPT``."""
        lengths, starts, flags = self.lengths, self.mask.offsets[:-1], self.supervised
        cut = np.minimum(np.minimum(lengths, max_seq_len), self._mask_lengths)
        found = (
            ~self.valid,
            lengths == 0,
            (lengths > max_seq_len) & (too_long == "drop"),
            ~_any(flags, starts, cut),
            ~_any(flags[:-1] & flags[1:], starts, cut - 1),
        )
        return np.select(found, range(len(REASONS)), default=KEPT)

    def faults(self, vocab_size: int | None) -> list[DroppedRow]:
        """Each row that breaks the format, once, ascending; what a null row hides is no fault.

        Without a vocabulary an id has to be one that some target may have.
        """
        ids, mask = self.ids, self.mask
        faults = [
            *self._value_faults(ids, ids.nulls, "null_value", "null in input_ids"),
            *self._value_faults(mask, mask.nulls, "null_value", "null in loss_mask"),
            *self._length_faults(),
        ]
        bound = MOST_IDS if vocab_size is None else vocab_size
        if len(ids.values) and (ids.values.min() < 0 or ids.values.max() >= bound):
            positions = np.flatnonzero((ids.values < 0) | (ids.values >= bound))
            words = "id {} is no token's"
            if vocab_size is not None:
                words = f"id {{}} is outside the target's vocabulary 0..{vocab_size - 1}"
            faults += self._value_faults(ids, positions, "id_out_of_range", words)
        positions = np.flatnonzero(self.supervised & (mask.values != 1))
        words = "loss_mask value {} is neither 0 nor 1"
        faults += self._value_faults(mask, positions, "mask_value", words)
        first: dict[int, DroppedRow] = {}
        for fault in faults:
            first.setdefault(fault.row_id, fault)
        return [first[row] for row in sorted(first)]

    def _length_faults(self) -> list[DroppedRow]:
        lengths, mask_lengths = self.lengths, self._mask_lengths
        faults = [
            DroppedRow(
                row_id=self.start + row,
                reason="mask_length",
                detail=f"loss_mask has {mask_lengths[row]} values for {lengths[row]} ids",
            )
            for row in np.flatnonzero(lengths != mask_lengths).tolist()
        ]
        if self.stated is not None:
            wrong = self.valid & ~np.isnan(self.stated) & (self.stated != lengths)
            faults += [
                DroppedRow(
                    row_id=self.start + row,
                    reason="seq_len",
                    detail=f"seq_len says {self.stated[row]:.16g}, input_ids has {lengths[row]}",
                )
                for row in np.flatnonzero(wrong).tolist()
            ]
        return faults

    def _value_faults(
        self, lists: ListBlock, positions: Int64Array, reason: str, words: str
    ) -> list[DroppedRow]:
        """One fault a row for the values at ``positions``, at the first of them."""
        owners = np.searchsorted(lists.offsets, positions, side="right") - 1
        owners, firsts = np.unique(owners, return_index=True)
        return [
            DroppedRow(
                row_id=self.start + row,
                reason=reason,
                detail=f"position {position - lists.offsets[row]}: "
                + words.format(lists.values[position]),
            )
            for row, position in zip(owners.tolist(), positions[firsts].tolist(), strict=True)
            if self.valid[row]
        ]


def _numbers(column: pa.ChunkedArray) -> Array:
    numbers: Array = column.cast(pa.float64(), safe=False).to_numpy()
    return numbers


def _any(flags: Array, starts: Int64Array, lengths: Int64Array) -> Array:
    """[rows] whether any of ``flags`` is set in ``starts[i] : starts[i] + lengths[i]``."""
    found = np.zeros(len(starts), bool)
    rows = np.flatnonzero(lengths > 0)
    if len(rows):
        bounds = np.stack([starts[rows], starts[rows] + lengths[rows]], axis=1).ravel()
        padded = np.append(flags, False)  # a bound may be the end
        found[rows] = np.logical_or.reduceat(padded, bounds)[::2]
    return found
