"""A cache in an object store."""

import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import xxhash

from dflash_cache.errors import CacheCorruptError, ConfigError

from .commit_objects import COMMITS, SUMMARY, CommitObjects
from .durable import remove_tree
from .layout import LEDGERS, LOCK, ROOT, SEGMENTS, SPEC, STAGING
from .lease import Lease
from .object_store import ObjectStore, hasty_store, naming, obstore, open_store
from .storage import repair_command

_OURS = {LOCK, ROOT, LEDGERS, COMMITS, SUMMARY, STAGING}


class ObjectReader:
    """One object, read by ranges."""

    def __init__(self, store: ObjectStore, name: str, place: str) -> None:
        self._store = store
        self._name = name
        self._place = place
        with naming(place):
            self.size = obstore.head(store, name)["size"]

    def read_into(self, buffers: list[memoryview], offset: int) -> None:
        length = sum(len(buffer) for buffer in buffers)
        if offset + length > self.size:
            expected = offset + length
            raise CacheCorruptError(f"{self._place}: ends at byte {self.size}, expected {expected}")
        if not length:
            return
        with naming(self._place):
            data = memoryview(
                obstore.get_range(self._store, self._name, start=offset, length=length)
            )
        for buffer in buffers:
            buffer[:] = data[: len(buffer)]
            data = data[len(buffer) :]

    def close(self) -> None:
        """Nothing is held open."""


class ObjectStorage:
    """Objects below a prefix. A segment is uploaded, then one small object commits it."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._store = open_store(self.address)
        self._lease = Lease(hasty_store(self.address), self.place(LOCK))
        self.commits = CommitObjects(self._store, self.place(COMMITS), self._lease.require)
        key = xxhash.xxh3_64_hexdigest(self.address.encode())
        self._staging = Path(tempfile.gettempdir()) / f"dflash-cache-{key}"

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"

    def exists(self, name: str) -> bool:
        with naming(self.place(name)):
            try:
                obstore.head(self._store, name)
            except FileNotFoundError:
                return False
        return True

    def read(self, name: str) -> bytes:
        with naming(self.place(name)):
            return bytes(obstore.get(self._store, name).bytes())

    def open(self, name: str) -> ObjectReader:
        return ObjectReader(self._store, name, self.place(name))

    def link_of(self, name: str) -> str | None:  # noqa: ARG002  a store has no links
        return None

    def names(self, prefix: str = "") -> list[str]:
        with naming(self.place(prefix)):
            listed = obstore.list(self._store, prefix or None)
            return sorted(item["path"] for batch in listed for item in batch)

    def folders(self, prefix: str) -> list[str]:
        with naming(self.place(prefix)):
            listed = obstore.list_with_delimiter(self._store, prefix)
        return sorted(path.rsplit("/", 1)[-1] for path in listed["common_prefixes"])

    def write(self, name: str, data: bytes) -> None:
        self._lease.require()
        with naming(self.place(name)):
            obstore.put(self._store, name, data)

    def take(self, folder: Path, name: str) -> None:
        for path, key in _uploads(folder, name):
            self._lease.require()  # before each: an upload may take longer than a lease
            with naming(self.place(key)):
                obstore.put(self._store, key, path)
        remove_tree(folder)

    def copy(self, name: str, path: Path) -> None:
        with naming(self.place(name)), path.open("wb") as file:
            for block in obstore.get(self._store, name).stream():
                file.write(block)

    def discard(self, names: Iterable[str]) -> None:
        self._lease.require()
        for name in names:
            with naming(self.place(name)):
                obstore.delete(self._store, self.names(name))

    def recover(self) -> None:
        """An upload without its commit is no segment; the next one replaces its objects.

        What other processes uploaded for an earlier writer is removed.
        """
        if self.names(STAGING):
            self.discard([STAGING])

    def staging(self) -> Path:
        return _emptied(self._staging)

    def shared_staging(self, worker: str) -> Path:
        return _emptied(self._staging.with_name(f"{self._staging.name}-{worker}"))

    def share(self, folder: Path) -> str:
        """Without the lease, so never where a segment is read: its name is of its own."""
        name = f"{STAGING}/{folder.name}"
        for path, key in _uploads(folder, name):
            with naming(self.place(key)):
                obstore.put(self._store, key, path)
        remove_tree(folder)
        return name

    def accept(self, shared: str, name: str) -> None:
        """Copied by the store itself: nothing comes through this machine."""
        for key in self.names(shared):
            self._lease.require()
            with naming(self.place(key)):
                obstore.copy(self._store, key, f"{name}{key.removeprefix(shared)}")
        self.discard([shared])

    def require_free(self) -> None:
        if self.names(COMMITS) or self.folders(SEGMENTS):
            raise CacheCorruptError(
                f"{self.place(SPEC)} is missing beside committed segments; mend it with: "
                f"{repair_command(self.address)}"
            )
        foreign = [name for name in self.names() if name.split("/")[0] not in _OURS]
        if foreign:
            raise ConfigError(
                f"--cache {self.address} holds other things ({', '.join(foreign[:5])}); name a new "
                "or empty prefix"
            )

    def clear(self) -> None:
        self.discard(name for name in (ROOT, LEDGERS) if self.names(name))

    def free_bytes(self) -> int | None:
        return None

    def lock(self) -> AbstractContextManager[None]:
        return self._lease.held()

    def is_being_written(self) -> bool:
        return self._lease.holder() is not None

    def writer(self) -> dict[str, Any] | None:
        return self._lease.holder()


def _emptied(folder: Path) -> Path:
    remove_tree(folder)
    folder.mkdir(mode=0o700)
    return folder


def _uploads(folder: Path, name: str) -> list[tuple[Path, str]]:
    """Every file below ``folder``, with its key below ``name``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, f"{name}/{path.relative_to(folder).as_posix()}") for path in paths]
