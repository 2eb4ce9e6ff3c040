"""Something small, done again and again beside the main work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(beat: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call ``beat`` every ``every_s`` seconds on a thread of its own until the block ends.

    An error of ``beat`` ends the calls, and is raised when the block ends without another error.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.wait(every_s):
                beat()
        except Exception as error:  # noqa: BLE001  raised below, on the thread of the block
            errors.append(error)

    thread = threading.Thread(target=run, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
