"""Size and digest of each file as it was written, and reading files checked against them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from dflash_cache.errors import CacheCorruptError

from .storage import Storage, missing_file

BLOCK_BYTES = 8 << 20
Fingerprints = Mapping[str, tuple[int, str]]  # name -> (size in bytes, digest)


def digest(data: bytes) -> str:
    """XXH3-64 of a whole file.

    A CRC would not do: over data that ends with its own CRC it is the same whatever the data.
    """
    return xxhash.xxh3_64_hexdigest(data)


def file_fingerprint(path: Path) -> tuple[int, str]:
    """Size and digest of a local file of any size."""
    state = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            state.update(block)
        return file.tell(), state.hexdigest()


def fingerprint_files(folder: Path, *, skip: str = "") -> dict[str, tuple[int, str]]:
    """Size and digest of every file below the local ``folder`` but ``skip``, by relative name."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: file_fingerprint(path)
        for name, path in paths.items()
        if path.is_file() and name != skip
    }


def read_fingerprinted(storage: Storage, name: str, recorded: tuple[int, str]) -> bytes:
    """A whole file, checked against what was recorded when it was written."""
    try:
        data = storage.read(name)
    except FileNotFoundError:
        raise missing_file(storage, name) from None
    _require(storage.place(name), (len(data), digest(data)), recorded)
    return data


def check_fingerprint(storage: Storage, name: str, recorded: tuple[int, str]) -> None:
    """Check a file of any size against what was recorded when it was written."""
    try:
        reader = storage.open(name)
    except FileNotFoundError:
        raise missing_file(storage, name) from None
    try:
        state, block = xxhash.xxh3_64(), np.empty(min(BLOCK_BYTES, reader.size), np.uint8)
        for start in range(0, reader.size, BLOCK_BYTES):
            part = block[: reader.size - start]
            reader.read_into([part.data], start)
            state.update(part.data)
        _require(storage.place(name), (reader.size, state.hexdigest()), recorded)
    finally:
        reader.close()


def _require(place: str, found: tuple[int, str], recorded: tuple[int, str]) -> None:
    if found[0] != recorded[0]:
        raise CacheCorruptError(f"{place}: {found[0]} bytes, expected {recorded[0]}")
    if found != recorded:
        raise CacheCorruptError(
            f"{place}: its content is not what was recorded when it was written"
        )
