"""One writer at a time, by a lock that the operating system drops with its holder."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dflash_cache.errors import CacheBusyError, ConfigError

from .layout import LOCK

LOOKS, LOOK_S = 3, 0.02


@contextmanager
def writer_lock(root: Path, flag: str = "--cache") -> Iterator[None]:
    """Hold a cache's or a run's lock; ``CacheBusyError`` at once if a live process has it.

    The file stays when its holder dies, the lock does not: nothing is ever cleaned up by hand.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{flag} {root} is a file, or below one; name a folder") from None
    path = root / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _take(descriptor)
        except BlockingIOError:
            other = os.read(descriptor, 4096).decode(errors="replace").strip() or "unknown"
            raise CacheBusyError(
                f"{root} is being written by another process ({other}); wait until it ends, or "
                f"choose another {flag}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    """``BlockingIOError`` if somebody holds the lock, for longer than one who only looks at it."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOOK_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_being_written(root: Path) -> bool:
    """Whether a live process holds the lock; leaves the lock as it is."""
    try:
        descriptor = os.open(root / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def writer_of(root: Path) -> dict[str, Any] | None:
    """Who holds the lock now (host, pid, since), as far as it says; None if nobody does."""
    if not is_being_written(root):
        return None
    try:
        return dict(json.loads((root / LOCK).read_bytes()))
    except ValueError:
        return {}  # it took the lock this moment


def holder() -> dict[str, Any]:
    """Who we are, as a lock names it."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
