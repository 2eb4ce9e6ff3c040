"""State that several stages share: a lock, and waiting until it has changed."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from .channel import Cancelled
from .stage import WaitKind, wait_until

T = TypeVar("T")


class Monitor:
    """Held with ``with`` by whoever reads or changes the state; leaving wakes all who wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._aborted = False

    def __enter__(self) -> Self:
        self._changed.acquire()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._changed.notify_all()
        self._changed.release()

    def wait_for(self, attempt: Callable[[], T | None], *, kind: WaitKind) -> T:
        """Call ``attempt``, again after each change, until it gives something; the holder calls.

        What the holder changed before is seen by the others first. ``Cancelled`` after ``abort``.
        """
        found: T | None = None

        def ready() -> bool:
            nonlocal found
            found = None if self._aborted else attempt()
            return found is not None or self._aborted

        self._changed.notify_all()
        wait_until(self._changed, ready, kind=kind)
        if found is None:
            raise Cancelled(self.name)
        return found

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
