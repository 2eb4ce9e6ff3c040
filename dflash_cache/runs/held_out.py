"""What the held-out rows hold, noted for the export."""

import numpy as np

from dflash_cache.train import SegmentSource
from dflash_cache.types import HiddenSegment, Int64Array, RowContent


class NotingSource:
    """Notes what the rows hold that are read: evaluate finds them again in other datasets."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self.contents: list[RowContent] = []

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        segment = self._source.read(index, row_ids)
        bounds = segment.offsets[1:-1]
        self.contents += [RowContent.of(ids) for ids in np.split(segment.input_ids, bounds)]
        return segment
