"""One writer at a time in an object store: a lease, taken and renewed by conditional puts."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dflash_cache.errors import CacheBusyError
from dflash_cache.pipeline import repeating

from .layout import LOCK
from .lock import holder
from .object_store import ObjectStore, naming, obstore

LEASE_S = 90.0  # longer than a put is tried again, and a renewal; so long a dead holder blocks
RENEW_S = 15.0
_held_here: set[str] = set()  # nonces of the leases that this process holds


class Lease:
    """The ``lock`` object: who writes, and until when unless it is renewed."""

    def __init__(self, store: ObjectStore, place: str) -> None:
        self._store = store
        self._place = place
        self._tag: str | None = None  # of our last put; None while we do not hold it
        self._until = 0.0
        self._nonce = uuid.uuid4().hex

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease; ``CacheBusyError`` at once if a live writer has it."""
        self._take()
        _held_here.add(self._nonce)
        try:
            with repeating(self._renew, RENEW_S):
                yield
        finally:
            _held_here.discard(self._nonce)
            self._release()

    def require(self) -> None:
        """``CacheBusyError`` if the lease ran out, as when the store was away for too long."""
        if time.time() >= self._until:
            raise CacheBusyError(
                f"{self._place}: the right to write ran out, for it could not be renewed in time; "
                "run the same command again"
            )

    def holder(self) -> dict[str, Any] | None:
        """The live writer, if there is one."""
        record, _ = self._read()
        return record if record is not None and _is_alive(record) else None

    def _read(self) -> tuple[dict[str, Any] | None, str | None]:
        try:
            with naming(self._place):
                found = obstore.get(self._store, LOCK)
                return dict(json.loads(bytes(found.bytes()))), found.meta["e_tag"]
        except FileNotFoundError:
            return None, None

    def _take(self) -> None:
        record, tag = self._read()
        if record is not None and _is_alive(record):
            raise self._busy(record)
        try:
            self._put(LEASE_S, "create" if record is None else {"e_tag": tag})
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            raise self._busy(self._read()[0]) from None  # another one was faster

    def _busy(self, record: dict[str, Any] | None) -> CacheBusyError:
        return CacheBusyError(
            f"{self._place.rsplit('/', 1)[0]} is being written by another process "
            f"({json.dumps(record)}); wait until it ends, or choose another --cache"
        )

    def _put(self, seconds: float, mode: Any) -> None:
        until = time.time() + seconds
        _, started = _state_of(os.getpid())
        own = {"machine": _machine(), "nonce": self._nonce, "started": started}
        record = holder() | own | {"until": until}
        put = obstore.put(self._store, LOCK, json.dumps(record).encode(), mode=mode)
        self._tag, self._until = put["e_tag"], until

    def _renew(self) -> None:
        """Put the lease again; while the store is away it runs on, until its end."""
        with suppress(obstore.exceptions.BaseError, OSError):
            try:
                self._put(LEASE_S, {"e_tag": self._tag})
            except obstore.exceptions.PreconditionError:
                record, tag = self._read()
                if record is None or record["nonce"] != self._nonce:
                    self._until = 0.0  # another one has taken over: whatever is written now fails
                else:  # a renewal arrived whose answer was lost
                    self._tag = tag

    def _release(self) -> None:
        if time.time() < self._until:
            # A release that does not arrive must not hide what ended the run; the lease runs out.
            with suppress(obstore.exceptions.BaseError, OSError):
                self._put(0.0, {"e_tag": self._tag})
        self._tag, self._until = None, 0.0


def _is_alive(record: dict[str, Any]) -> bool:
    if record.get("machine") == _machine() and _is_gone(record):
        return False
    return bool(time.time() < record["until"])


def _machine() -> str:
    """Where a process number means the same process: this boot, this namespace of numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _is_gone(record: dict[str, Any]) -> bool:
    """Whether its process, of this machine, is no more, or holds the lease no more."""
    pid = record["pid"]
    if pid == os.getpid():
        return record["nonce"] not in _held_here
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's process
    state, started = _state_of(pid)
    return state == "Z" or started not in (None, record.get("started"))


def _state_of(pid: int) -> tuple[str | None, str | None]:
    """(state, when it started in clock ticks since boot) of a process, where Linux says so."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None, None
    fields = stat.rpartition(")")[2].split()  # a program's name may have blanks in it
    return fields[0], fields[19]
