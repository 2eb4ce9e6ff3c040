"""When each segment will be needed next, as far as training's order says."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice


class Forecast:
    """Needs in order, numbered; two passes over the segments are looked ahead, not all epochs.

    It may be wrong about what comes after that; whoever uses it must not depend on it being right.
    """

    def __init__(self, num_segments: int) -> None:
        self._look_ahead = 2 * num_segments
        self._coming: Iterator[int] = iter(())
        self._ahead: dict[int, int] = {}  # number of the need -> segment, in order
        self._numbers: defaultdict[int, deque[int]] = defaultdict(deque)  # of each segment
        self._num_seen = 0

    def expect(self, needs: Iterable[int]) -> None:
        """``needs`` are the segments that will be read, in order."""
        self._coming = iter(needs)
        self._extend()

    def used(self, index: int) -> None:
        """Segment ``index`` was read once."""
        if self._numbers[index]:
            del self._ahead[self._numbers[index].popleft()]
            self._extend()

    def next_need(self, index: int) -> float:
        """The number of the next need of ``index``; infinite if none is known."""
        numbers = self._numbers[index]
        return numbers[0] if numbers else math.inf

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(number, segment) of each need that is known, in order."""
        return iter(self._ahead.items())

    def _extend(self) -> None:
        for index in islice(self._coming, self._look_ahead - len(self._ahead)):
            self._ahead[self._num_seen] = index
            self._numbers[index].append(self._num_seen)
            self._num_seen += 1
