"""Keys that arrive in any order, for threads that wait for one of them."""

import threading
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from .channel import Cancelled
from .stage import wait_until

K = TypeVar("K", bound=Hashable)


class Arrivals(Generic[K]):
    """A growing set of keys; ``wait`` returns once its key is in it.

    Unlike a channel it is not bounded: it holds a key, never the thing itself.
    """

    def __init__(self, name: str, arrived: Iterable[K] = ()) -> None:
        self.name = name
        self._arrived = set(arrived)
        self._changed = threading.Condition()
        self._aborted = False

    def add(self, key: K) -> None:
        with self._changed:
            self._arrived.add(key)
            self._changed.notify_all()

    def wait(self, key: K) -> None:
        """Wait until ``key`` has arrived; raises ``Cancelled`` after ``abort``."""
        with self._changed:
            wait_until(self._changed, lambda: key in self._arrived or self._aborted, kind="starved")
            if self._aborted:
                raise Cancelled(self.name)

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
