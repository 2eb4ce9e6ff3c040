"""Watch threads from tests: who waits, who is left, and no test that hangs."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GUARD_S = 10.0  # far beyond what any of these tests takes: reached only by a hang


@contextmanager
def no_thread_left() -> Iterator[None]:
    """No thread of ours: libraries keep theirs for the next call."""
    before = set(threading.enumerate())
    yield
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith("asyncio_")
    ]
    assert not left, f"threads left behind: {left}"


def until(true: Callable[[], Any]) -> None:
    """Wait until ``true()``; an AssertionError instead of a hang."""
    deadline = time.monotonic() + GUARD_S
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def num_waiting(place: Any) -> int:
    """How many threads wait on ``place``, a channel or arrivals."""
    return len(place._changed._waiters)


class Call:
    """A function running in a thread of its own; ``result`` is what it returned or raises."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = (self._work(), None)
        except BaseException as error:  # noqa: BLE001  raised again by result
            self._outcome = (None, error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, *, release: Callable[[], Any] = lambda: None) -> Any:
        """Wait for the end. A call that hangs is let go with ``release`` and fails the test."""
        self._thread.join(GUARD_S)
        if self._thread.is_alive():
            release()
            self._thread.join(GUARD_S)
            raise AssertionError("hangs")
        value, error = self._outcome
        if error is not None:
            raise error
        return value
