"""A cache seen as if it held fewer layers."""

from collections.abc import Sequence
from dataclasses import replace

from dflash_cache.types import HiddenSegment, Int64Array

from .batches import SegmentSource


class SelectedStates:
    """The segments of ``source`` with the states at ``columns`` of the K axis only."""

    def __init__(self, source: SegmentSource, columns: Sequence[int]) -> None:
        self._source = source
        self._columns = list(columns)

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        segment = self._source.read(index, row_ids)
        scales_TK = segment.scales_TK
        return replace(
            segment,
            hidden_TKH=segment.hidden_TKH[:, self._columns],
            scales_TK=None if scales_TK is None else scales_TK[:, self._columns],
        )
