"""Ctrl-C and SIGTERM as an exception in the main thread, once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.01  # by then what could not raise is over


class Interrupted(BaseException):
    """A signal asked the process to stop. No ``Exception``: an error handler must not take it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put back the handlers of SIGINT and SIGTERM that a library replaces in the block.

    Only the main thread has any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise ``Interrupted`` in the main thread on the first SIGINT or SIGTERM; ignore later ones.

    The stop itself takes seconds (a checkpoint is written), and a second Ctrl-C in that time must
    not tear it. A signal that arrives while Python cannot raise, as in ``__del__``, comes again.
    """
    stopping = False

    def handle(signal_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise Interrupted(signal_number)

    def come_again(unraisable: "sys.UnraisableHookArgs") -> None:
        nonlocal stopping
        if not isinstance(unraisable.exc_value, Interrupted):
            report(unraisable)
            return
        stopping = False
        number = unraisable.exc_value.exit_code - 128
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, handle) for number in numbers}
    report, sys.unraisablehook = sys.unraisablehook, come_again
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in previous.items():
            signal.signal(number, handler)
