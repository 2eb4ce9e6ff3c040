"""Writing files so that a crash leaves the old state or the new one, and reading them checked."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import xxhash

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import Array

BLOCK_BYTES = 8 << 20
Fingerprints = Mapping[str, tuple[int, str]]  # path -> (size in bytes, digest)


def crc32c(data: bytes | Array) -> int:
    """CRC-32C of ``data`` (contiguous)."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
    return int(google_crc32c.value(data))


def digest(data: bytes) -> str:
    """XXH3-64 of a whole file.

    A CRC would not do: over data that ends with its own CRC it is the same whatever the data.
    """
    return xxhash.xxh3_64_hexdigest(data)


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove ``folder`` and what is in it, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


def fsync_tree(folder: Path) -> None:
    """Make every file and folder below ``folder`` durable, contents before their folder."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync_path(Path(parent, name))
        fsync_path(Path(parent))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, durable when this returns."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)


def checked_line(record: Mapping[str, Any]) -> bytes:
    """One JSON object as a line that carries its own checksum: ``<crc32c> <json>``."""
    body = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (crc32c(body), body)


def parse_checked_line(line: bytes, where: str) -> dict[str, Any]:
    """The object of a ``checked_line``; ``CacheCorruptError`` names ``where`` if it was altered."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % crc32c(body):
        raise CacheCorruptError(
            f"{where}: the record's checksum does not match its content; the file was altered "
            "after it was written; `dflash-cache verify --repair` mends it"
        )
    return dict(json.loads(body))


def fingerprint_files(folder: Path, *, skip: str = "") -> dict[str, tuple[int, str]]:
    """Size and digest of every file below ``folder`` but ``skip``, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != skip:
            data = path.read_bytes()
            found[name] = (len(data), digest(data))
    return found


def read_fingerprinted(folder: Path, name: str, fingerprints: Fingerprints) -> bytes:
    """The bytes of ``folder/name``, checked against what was recorded when it was written."""
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CacheCorruptError(f"{path}: the file is missing") from None
    _require_fingerprint(path, (len(data), digest(data)), fingerprints[name])
    return data


def file_fingerprint(path: Path) -> tuple[int, str]:
    """Size and digest of a file of any size."""
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            state.update(block)
        return file.tell(), state.hexdigest()


def check_fingerprint(folder: Path, name: str, fingerprints: Fingerprints) -> None:
    """Check ``folder/name``, of any size, against what was recorded when it was written."""
    path = folder / name
    try:
        found = file_fingerprint(path)
    except FileNotFoundError:
        raise CacheCorruptError(f"{path}: the file is missing") from None
    _require_fingerprint(path, found, fingerprints[name])


def _require_fingerprint(path: Path, found: tuple[int, str], recorded: tuple[int, str]) -> None:
    if found[0] != recorded[0]:
        raise CacheCorruptError(f"{path}: {found[0]} bytes, expected {recorded[0]}")
    if found != recorded:
        raise CacheCorruptError(f"{path}: its content is not what was recorded when it was written")
