"""Lists of numbers in Arrow memory, viewed and never copied as a whole."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dflash_cache.errors import DataError
from dflash_cache.types import Array, Int64Array

TypeCheck = Callable[[pa.DataType], bool]

# A column whose lists are all empty may have been written with the type null.
INTEGERS: tuple[TypeCheck, ...] = (pa.types.is_integer, pa.types.is_null)
NUMBERS: tuple[TypeCheck, ...] = (*INTEGERS, pa.types.is_boolean, pa.types.is_floating)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


@dataclass(frozen=True, slots=True)
class _Chunk:
    offsets: Int64Array | Array  # [rows + 1] into values
    values: pa.Array
    valid: Array | None  # [rows] bool; None when no row is null


class ListColumn:
    """A column of list, large_list or fixed_size_list, in any number of chunks."""

    def __init__(
        self, name: str, column: pa.ChunkedArray, kinds: Collection[TypeCheck] = NUMBERS
    ) -> None:
        """``kinds`` are the accepted types of the values in the lists."""
        is_list = any(check(column.type) for check in _LISTS)
        if not is_list or not any(check(column.type.value_type) for check in kinds):
            raise DataError(f"column {name!r} has type {column.type}, expected a list of integers")
        self.name = name
        self._chunks = [_view(chunk) for chunk in column.chunks]
        self.starts = np.cumsum([0] + [len(chunk) for chunk in column.chunks])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def row(self, row: int) -> Array:
        """The values of ``row``: a view of the memory map where the type allows it."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        chunk = self._chunks[index]
        local = row - int(self.starts[index])
        start, stop = int(chunk.offsets[local]), int(chunk.offsets[local + 1])
        values: Array = chunk.values[start:stop].to_numpy(zero_copy_only=False)
        return values

    def block(self, start: int, stop: int) -> tuple[Int64Array, Array, Array]:
        """Rows ``start:stop`` of one chunk: offsets [rows + 1] from 0, values, valid [rows]."""
        index = int(np.searchsorted(self.starts, start, side="right")) - 1
        chunk = self._chunks[index]
        first = start - int(self.starts[index])
        last = stop - int(self.starts[index])
        offsets = chunk.offsets[first : last + 1].astype(np.int64)
        values = chunk.values[int(offsets[0]) : int(offsets[-1])]
        offsets -= offsets[0]
        valid = np.ones(last - first, bool)
        if chunk.valid is not None:  # what lies under a null row is no content
            valid = chunk.valid[first:last]
            lengths = np.diff(offsets)
            values = values.filter(pa.array(np.repeat(valid, lengths)))
            offsets = np.concatenate([[0], np.cumsum(np.where(valid, lengths, 0))])
        if values.null_count:
            position = int(np.flatnonzero(~values.is_valid().to_numpy(zero_copy_only=False))[0])
            row = int(np.searchsorted(offsets, position, side="right")) - 1
            raise DataError(
                f"row {start + row}, column {self.name!r}, "
                f"position {position - int(offsets[row])}: null inside a list; write a number "
                "there, or drop the row"
            )
        return offsets, values.to_numpy(zero_copy_only=False), valid


def _view(chunk: pa.Array) -> _Chunk:
    if pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        offsets = (chunk.offset + np.arange(len(chunk) + 1, dtype=np.int64)) * size
    else:
        offsets = chunk.offsets.to_numpy()
    valid = chunk.is_valid().to_numpy(zero_copy_only=False) if chunk.null_count else None
    return _Chunk(offsets, chunk.values, valid)
