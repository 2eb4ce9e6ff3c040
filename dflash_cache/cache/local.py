"""A cache in a local folder."""

import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dflash_cache.errors import CacheCorruptError, ConfigError

from .commits import CommitLog
from .durable import fsync_path, remove_temporaries, remove_tree, write_atomically
from .layout import LEDGERS, LOCK, LOG, ROOT, SEGMENTS, SPEC, STAGING, segment_folder
from .lock import is_being_written, writer_lock, writer_of
from .record import own_record
from .storage import missing_file, repair_command, segments_in_place

MOST_BUFFERS = 1024  # of one call, Linux' IOV_MAX


class LocalReader:
    """One file, read straight into the caller's buffers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size

    def read_into(self, buffers: list[memoryview], offset: int) -> None:
        buffers = [buffer for buffer in buffers if len(buffer)]
        while buffers:
            count = os.preadv(self._descriptor, buffers[:MOST_BUFFERS], offset)
            if not count:
                expected = offset + sum(len(buffer) for buffer in buffers)
                raise CacheCorruptError(f"{self._path}: ends at byte {offset}, expected {expected}")
            offset += count
            while buffers and count >= len(buffers[0]):  # a read may be short
                count -= len(buffers.pop(0))
            if buffers:
                buffers[0] = buffers[0][count:]

    def close(self) -> None:
        os.close(self._descriptor)


class LocalStorage:
    """A folder. Renames and fsyncs make what is written whole and durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)
        self.commits = CommitLog(root / LOG)

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"  # half the time of joining paths

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def read(self, name: str) -> bytes:
        with open(self.place(name), "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()

    def open(self, name: str) -> LocalReader:
        return LocalReader(self.place(name))

    def names(self, prefix: str = "") -> list[str]:
        paths = (self.root / prefix).rglob("*")
        return sorted(p.relative_to(self.root).as_posix() for p in paths if not p.is_dir())

    def folders(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def take(self, folder: Path, name: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(path)
        fsync_path(path.parent)

    def link_of(self, name: str) -> str | None:
        path = self.root / name
        return str(path.readlink()) if path.is_symlink() else None

    def copy(self, name: str, path: Path) -> None:
        file = self._file_of(name)
        try:
            path.hardlink_to(file)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(file, path)

    def link(self, name: str, path: Path) -> None:
        """Make ``path``, in whatever file system, a symbolic link to a file of this cache."""
        path.symlink_to(self._file_of(name))

    def _file_of(self, name: str) -> Path:
        """The absolute path of a file, which is no link."""
        try:
            return (self.root / name).resolve(strict=True)
        except FileNotFoundError:
            raise missing_file(self, name) from None

    def discard(self, names: Iterable[str]) -> None:
        staging = self.root / STAGING
        staging.mkdir(exist_ok=True)
        for name in names:
            path = self.root / name
            remove_tree(staging / path.name)
            path.rename(staging / path.name)
            fsync_path(path.parent)
            remove_tree(staging / path.name)

    def recover(self) -> None:
        remove_temporaries(self.root)
        remove_temporaries(self.root / ROOT)
        self.commits.cut_unterminated_line()
        committed, evicted = self.commits.read(), self.commits.evicted()
        if evicted:  # a crash may have come before they were removed
            gone = evicted - committed.keys()
            self.discard(segment_folder(i) for i in segments_in_place(self) if i in gone)
            self.commits.replace(committed.values())  # or it would grow with every eviction
        for index in segments_in_place(self):
            if index not in committed:  # in place, durable, when a crash came before its line
                self.commits.append(own_record(self, index).committed())

    def staging(self) -> Path:
        folder = self.root / STAGING
        remove_tree(folder)
        folder.mkdir(parents=True)
        return folder

    def shared_staging(self, worker: str) -> Path:  # noqa: ARG002  names are never the same
        return self.root / STAGING

    def share(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix()

    def accept(self, shared: str, name: str) -> None:
        self.take(self.root / shared, name)

    def require_free(self) -> None:
        root = self.root
        if not root.exists():
            return
        if not root.is_dir():
            raise ConfigError(f"--cache {root} is a file; name a new or empty folder")
        if (root / LOG).exists() or self.folders(SEGMENTS):
            raise CacheCorruptError(
                f"{root / SPEC} is missing beside committed segments; mend it with: "
                f"{repair_command(str(root))}"
            )
        foreign = self._others("", {LOCK, STAGING, ROOT, LEDGERS})
        foreign += self._others(STAGING, {ROOT, LEDGERS})
        foreign += self._others(ROOT, {"plan", "segments", "target", "zarr.json"})
        if foreign:
            raise ConfigError(
                f"--cache {root} is a folder with other things in it "
                f"({', '.join(foreign[:5])}); name a new or empty folder"
            )

    def _others(self, folder: str, ours: set[str]) -> list[str]:
        """What is in ``folder`` and not ours, nor left of a ``spec.json`` in the making."""
        if not (self.root / folder).is_dir():
            return []
        names = {path.name for path in (self.root / folder).iterdir()} - ours
        return sorted(str(Path(folder, name)) for name in names if not name.startswith(f".{SPEC}."))

    def clear(self) -> None:
        for leftover in self.root.glob(f".{SPEC}.*"):
            leftover.unlink()
        for name in (STAGING, ROOT, LEDGERS):
            remove_tree(self.root / name)

    def free_bytes(self) -> int | None:
        existing = self.root.absolute()
        while not existing.exists():
            existing = existing.parent
        return shutil.disk_usage(existing).free

    def lock(self) -> AbstractContextManager[None]:
        return writer_lock(self.root)

    def is_being_written(self) -> bool:
        return is_being_written(self.root)

    def writer(self) -> dict[str, Any] | None:
        return writer_of(self.root)
