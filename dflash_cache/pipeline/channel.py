"""A bounded first-in first-out channel on one condition."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from .stage import WaitKind, note_taken, wait_until

T = TypeVar("T")


class ChannelClosed(Exception):
    """The last producer left and everything it sent was taken."""


class Cancelled(Exception):
    """The pipeline is stopping; a stage lets this pass through, after saving what it must."""


class Channel(Generic[T]):
    """Carries items between stages and makes a fast stage wait for a slow one.

    It closes when its last producer leaves. ``abort`` wakes every waiting thread with
    ``Cancelled`` and drops what is queued. A channel without producers stays open: filled with
    buffers at the start, it is a pool whose empty state is the backpressure; there ``get`` counts
    as ``blocked`` and not as ``starved``.

    ``capacity`` counts items, or what ``size_of`` gives for each, such as bytes; an item larger
    than all of it passes alone.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        *,
        items: Iterable[T] = (),
        get_counts_as: WaitKind = "starved",
        size_of: Callable[[T], int] = lambda item: 1,  # noqa: ARG005
    ) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name!r}: capacity must be at least 1, got {capacity}")
        self.name = name
        self.capacity = capacity
        self._items = deque(items)
        self._size_of = size_of
        self._held = sum(map(size_of, self._items))
        self._get_counts_as = get_counts_as
        self._changed = threading.Condition()
        self._producers = 0
        self._closed = False
        self._aborted = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def held(self) -> int:
        """What it holds now, in the unit of its capacity."""
        return self._held

    def add_producer(self) -> None:
        with self._changed:
            self._producers += 1

    def remove_producer(self) -> None:
        with self._changed:
            self._producers -= 1
            if self._producers == 0:
                self._closed = True
                self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._items.clear()
            self._held = 0
            self._changed.notify_all()

    def put(self, item: T) -> None:
        """Add ``item``, waiting for room; raises ``Cancelled`` after ``abort``."""
        size = self._size_of(item)
        with self._changed:
            wait_until(
                self._changed,
                lambda: not self._items or self._held + size <= self.capacity or self._aborted,
                kind="blocked",
            )
            if self._aborted:
                raise Cancelled(self.name)
            assert not self._closed, f"channel {self.name!r}: put after the last producer left"
            self._items.append(item)
            self._held += size
            self._changed.notify_all()

    def get(self) -> T:
        """Take the oldest item, waiting for one; raises ``ChannelClosed`` or ``Cancelled``."""
        with self._changed:
            wait_until(
                self._changed,
                lambda: bool(self._items) or self._aborted or self._closed,
                kind=self._get_counts_as,
            )
            if self._aborted:
                raise Cancelled(self.name)
            if not self._items:
                raise ChannelClosed(self.name)
            note_taken(self.name, self.capacity, self._held)
            item = self._items.popleft()
            self._held -= self._size_of(item)
            self._changed.notify_all()
            return item

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                item = self.get()
            except ChannelClosed:
                return
            yield item
