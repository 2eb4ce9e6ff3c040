"""Memory for bytes of chunks that cannot land where they are wanted."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .tokens import aligned_empty


class Landing:
    """Memory that is taken piece by piece, and all of it again after ``clear``."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._used = 0

    def clear(self) -> None:
        """Let everything that was taken be taken again."""
        self._used = 0

    def take(self, num_bytes: int) -> memoryview:
        start, self._used = self._used, self._used + num_bytes
        if self._used > len(self._memory):  # views of the old memory keep it
            num_bytes = max(self._used, 2 * len(self._memory))
            self._memory = aligned_empty((num_bytes,), np.uint8).data
        return self._memory[start : self._used]


# Kept from read to read, as many as there are reads at a time: a page fault costs more than reading
# the page. A deque's ends are safe to take from in any thread.
_idle: deque[Landing] = deque()


@contextmanager
def borrowed_landing() -> Iterator[Landing]:
    """A landing for one read."""
    try:
        landing = _idle.pop()
    except IndexError:
        landing = Landing()
    try:
        yield landing
    finally:
        _idle.append(landing)
