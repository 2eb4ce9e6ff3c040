"""Where a cache lies: the operations that a folder and an object store both offer.

Names are relative to the cache, with slashes.
"""

import shlex
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from dflash_cache.errors import CacheAwayError, CacheCorruptError
from dflash_cache.types import CommittedSegment

from .layout import SEGMENTS


class RangeReader(Protocol):
    """One file, opened for reading in ranges."""

    size: int

    def read_into(self, buffers: list[memoryview], offset: int) -> None:
        """Fill ``buffers`` from ``offset`` on; ``CacheCorruptError`` if the file ends before."""

    def close(self) -> None: ...


class Commits(Protocol):
    """Which segments are part of the cache."""

    name: str  # of the file or folder that holds the records

    def files(self) -> list[str]:
        """Everything that holds records."""

    def is_cut_short(self) -> bool:
        """Whether a crash, or damage, left half a record at the end."""

    def read(self) -> dict[int, CommittedSegment]:
        """All committed segments by index; ``CacheCorruptError`` if a record was altered."""

    def evicted(self) -> set[int]:
        """Segments that were committed and then evicted, committed again since or not."""

    def append(self, segment: CommittedSegment) -> None:
        """Commit ``segment``, whose data must be durable already."""

    def replace(self, segments: Collection[CommittedSegment]) -> None:
        """Let ``segments`` be all that is committed."""


class Storage(Protocol):
    """A folder or a prefix in an object store. Reading is thread-safe."""

    address: str

    @property
    def commits(self) -> Commits: ...

    def place(self, name: str) -> str:
        """The full address of ``name``, for messages."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def read(self, name: str) -> bytes:
        """A whole file; ``FileNotFoundError`` if it is missing."""

    def open(self, name: str) -> RangeReader:
        """``FileNotFoundError`` if it is missing."""

    def link_of(self, name: str) -> str | None:
        """The file that a symbolic link ``name`` leads to, there or not; None if it is no link."""

    def names(self, prefix: str = "") -> list[str]:
        """Every file below ``prefix``."""

    def folders(self, prefix: str) -> list[str]:
        """The names, without their parents', of the folders in ``prefix``, sorted."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, whole or not at all; durable when this returns."""

    def take(self, folder: Path, name: str) -> None:
        """Move a finished local ``folder`` to ``name``; durable when this returns."""

    def copy(self, name: str, path: Path) -> None:
        """Bring a file to the local ``path``, by a hard link where that is possible."""

    def discard(self, names: Iterable[str]) -> None:
        """Remove folders: each is away at once, whatever happens then."""

    def recover(self) -> None:
        """Settle what a crash left between data and commit; only the holder of the lock may."""

    def staging(self) -> Path:
        """An empty local folder for what is in the making; only the holder of the lock has it."""

    def shared_staging(self, worker: str) -> Path:
        """A folder for what ``worker`` makes, another process than the holder of the lock."""

    def share(self, folder: Path) -> str:
        """Let the holder of the lock have a finished ``folder`` of a shared staging, by a name."""

    def accept(self, shared: str, name: str) -> None:
        """Move what another process shared to ``name``; durable when this returns."""

    def require_free(self) -> None:
        """Only an empty place, or one where a creation did not get to its end, may be laid out.

        ``ConfigError`` names what else is there; nothing is removed.
        """

    def clear(self) -> None:
        """Remove what a creation that did not get to its end left."""

    def free_bytes(self) -> int | None:
        """Free space; None where there is no such limit."""

    def lock(self) -> AbstractContextManager[None]:
        """Be the one writer; ``CacheBusyError`` at once if another one is alive."""

    def is_being_written(self) -> bool:
        """Whether a live writer holds the lock."""

    def writer(self) -> dict[str, Any] | None:
        """The live writer's host and pid, and since when; None if there is none."""


def repair_command(address: str) -> str:
    """As it can be given to a shell."""
    return f"dflash-cache verify --cache {shlex.quote(address)} --repair"


def missing_file(storage: Storage, name: str) -> CacheCorruptError:
    """The error of a file that is not there; that of a link names what it leads to."""
    if (linked := storage.link_of(name)) is None:
        return CacheCorruptError(f"{storage.place(name)}: the file is missing")
    return CacheAwayError(
        f"{storage.place(name)}: a link to {linked}, which is not there; mount its disk, or bring "
        "back the cache that it is of"
    )


def segments_in_place(storage: Storage) -> list[int]:
    """All segments that lie there, committed or not; what else lies there is not looked at."""
    return [int(name) for name in storage.folders(SEGMENTS) if name.isdecimal()]


def open_storage(address: str | Path) -> Storage:
    """A local folder, or an object store by its address, such as ``s3://bucket/prefix``."""
    if "://" in str(address):
        from .objects import ObjectStorage

        return ObjectStorage(str(address))
    from .local import LocalStorage

    return LocalStorage(Path(address))
