"""Waiting for a time, which a stop cuts short."""

import threading

from .channel import Cancelled


class Pause:
    """Any number of threads may wait in it; ``abort`` ends all waits, also later ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._aborted = threading.Event()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``; raises ``Cancelled`` once ``abort`` was called."""
        if self._aborted.wait(seconds):
            raise Cancelled(self.name)

    def abort(self) -> None:
        self._aborted.set()
