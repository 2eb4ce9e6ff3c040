"""Lists of numbers in Arrow memory, viewed and never copied as a whole."""

from bisect import bisect_right
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
    numbers: Array | None  # a view of values; None where Arrow packs bits or has nulls
    valid: Array | None  # [rows] bool; None when no row is null


@dataclass(frozen=True, kw_only=True, slots=True)
class ListBlock:
    """A run of rows of one chunk; a null row has no values, whatever lies under it."""

    offsets: Int64Array  # [rows + 1] into values, from 0
    values: Array  # a null inside a list is 0 here
    valid: Array  # [rows] bool: not null
    nulls: Int64Array  # positions in values of nulls inside lists


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
        self._starts: list[int] = self.starts.tolist()  # searched faster than an array

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, row: int) -> Array:
        """The values of ``row``: a view of the memory map where the type allows it."""
        index = bisect_right(self._starts, row) - 1
        chunk = self._chunks[index]
        local = row - self._starts[index]
        start, stop = int(chunk.offsets[local]), int(chunk.offsets[local + 1])
        if chunk.numbers is not None:
            return chunk.numbers[start:stop]
        values: Array = chunk.values[start:stop].to_numpy(zero_copy_only=False)
        return values

    def block(self, start: int, stop: int) -> ListBlock:
        """Rows ``start:stop``, all of one chunk."""
        index = bisect_right(self._starts, start) - 1
        chunk = self._chunks[index]
        first, last = start - self._starts[index], stop - self._starts[index]
        offsets = chunk.offsets[first : last + 1].astype(np.int64)
        bounds = slice(int(offsets[0]), int(offsets[-1]))
        offsets -= offsets[0]
        valid = np.ones(last - first, bool) if chunk.valid is None else chunk.valid[first:last]
        if chunk.numbers is not None and valid.all():
            no_nulls = np.zeros(0, np.int64)
            return ListBlock(
                offsets=offsets, values=chunk.numbers[bounds], valid=valid, nulls=no_nulls
            )
        lengths = np.diff(offsets)
        values = chunk.values[bounds].filter(pa.array(np.repeat(valid, lengths)))
        if pa.types.is_null(values.type):
            values = values.cast(pa.int8())
        present = values.is_valid().to_numpy(zero_copy_only=False)
        if not present.all():
            values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        return ListBlock(
            offsets=np.concatenate([[0], np.cumsum(np.where(valid, lengths, 0))]),
            values=values.to_numpy(zero_copy_only=False),
            valid=valid,
            nulls=np.flatnonzero(~present),
        )


def _view(chunk: pa.Array) -> _Chunk:
    if pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        offsets = (chunk.offset + np.arange(len(chunk) + 1, dtype=np.int64)) * size
    else:
        offsets = chunk.offsets.to_numpy()
    valid = chunk.is_valid().to_numpy(zero_copy_only=False) if chunk.null_count else None
    values = chunk.values
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    numbers = values.to_numpy() if is_number and not values.null_count else None
    return _Chunk(offsets, values, numbers, valid)
