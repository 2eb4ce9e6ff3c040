"""Rows that extraction leaves out, and how many are too many."""

from dflash_cache.cache import Cache
from dflash_cache.errors import DataError
from dflash_cache.types import CommittedSegment, DroppedRow

from .preparation import Preparation, part_in


class DroppedRows:
    """Counts the rows of these settings' part whose states are not finite."""

    def __init__(self, preparation: Preparation, cache: Cache) -> None:
        """``DataError`` if there are too many in ``cache`` already."""
        self._cache, self._share = cache.address, preparation.config.max_dropped
        self._planned = len(preparation.survey.row_ids)
        self._rows: set[int] = set()  # a segment that was evicted comes again
        number = part_in(preparation, cache)
        if number is not None:
            first, end = cache.spec.first_segments[number : number + 2]
            for index in sorted(cache.segments.keys() & set(range(first, end))):
                self.add(cache.segments[index])

    def add(self, segment: CommittedSegment) -> None:
        """``DataError`` if ``segment`` makes them too many."""
        self._rows |= {row.row_id for row in segment.dropped}
        if segment.dropped and len(self._rows) > self._share * self._planned:
            raise self._error(segment.dropped[-1])

    def _error(self, last: DroppedRow) -> DataError:
        return DataError(
            f"{self._cache}: states of {len(self._rows)} of {self._planned} rows are not finite, "
            f"more than --max-dropped {self._share:g} allows; the last one is row {last.row_id}, "
            f"{last.detail}. Is the target whole, and --dtype right for it? What was extracted is "
            "kept: the same command with a larger --max-dropped goes on"
        )
