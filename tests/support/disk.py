"""Watch how large a folder becomes while something else runs."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def size_of(folder: Path) -> int:
    """The sizes of all files in ``folder``."""
    return sum(_sizes(folder).values())


def _sizes(folder: Path) -> dict[tuple[str, int], int]:
    """Size by name and inode, for others may move, remove and add files meanwhile."""
    found: dict[tuple[str, int], int] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    found |= _sizes(Path(entry.path))
                else:
                    found[entry.name, entry.inode()] = entry.stat().st_size
    except FileNotFoundError:
        pass
    return found


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """The sizes that ``folder`` had, sampled all the time by a thread.

    A walk takes a while, so what it counts may never have been there together. What two walks
    counted both was there between them, with at least the size that it had in the first.
    """
    sizes: list[int] = []
    over = threading.Event()

    def sample() -> None:
        before = _sizes(folder)
        while not over.wait(0.01):
            now = _sizes(folder)
            sizes.append(sum(size for file, size in before.items() if file in now))
            before = now

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()
