"""Processes that a library starts: which they are, and that none outlives it."""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

GONE_S = 5.0  # a killed process is away at once, unless the kernel holds it in a call


def descendants(pid: int) -> set[int]:
    """The processes that ``pid`` started, those that they started, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):  # it has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(path.name))
    found: set[int] = set()
    left = [pid]
    while left:
        started = children.get(left.pop(), [])
        found.update(started)
        left += started
    return found


@contextmanager
def ending(pids: Iterable[int]) -> Iterator[None]:
    """Kill those of the processes that are still there after the block, and wait for their end.

    They are held from its begin, so that a number which another process takes over is safe.
    """
    with ExitStack() as closing:
        held = []
        for pid in pids:
            with suppress(ProcessLookupError):
                held.append(os.pidfd_open(pid))
                closing.callback(os.close, held[-1])
        try:
            yield
        finally:
            for process in held:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            for process in held:
                select.select([process], [], [], GONE_S)
