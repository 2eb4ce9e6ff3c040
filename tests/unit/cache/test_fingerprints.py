from pathlib import Path

import pytest

from dflash_cache.cache.durable import crc32c
from dflash_cache.cache.fingerprints import (
    check_fingerprint,
    digest,
    fingerprint_files,
    read_fingerprinted,
)
from dflash_cache.cache.local import LocalStorage
from dflash_cache.errors import CacheCorruptError


def read_from(folder: Path, fingerprints, name: str) -> bytes:
    return read_fingerprinted(LocalStorage(folder), name, fingerprints[name])


def check(folder: Path, fingerprints, name: str) -> None:
    check_fingerprint(LocalStorage(folder), name, fingerprints[name])


@pytest.fixture
def fingerprinted(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "c.0").write_bytes(b"some bytes")
    (tmp_path / "big").write_bytes(b"left out")
    return tmp_path, fingerprint_files(tmp_path, skip="big")


def test_fingerprints_hold_size_and_checksum_of_every_file_but_the_skipped_one(fingerprinted):
    _, fingerprints = fingerprinted
    assert fingerprints == {"inner/c.0": (10, digest(b"some bytes"))}


def test_unaltered_bytes_are_read(fingerprinted):
    assert read_from(*fingerprinted, "inner/c.0") == b"some bytes"


@pytest.mark.parametrize("read", [read_from, check])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.write_bytes(b"some"), "4 bytes, expected 10"),
        (lambda path: path.write_bytes(b"some bytes more"), "15 bytes, expected 10"),
        (lambda path: path.write_bytes(b"some bytez"), "not what was recorded"),
    ],
    ids=["missing", "shorter", "longer", "altered"],
)
def test_altered_bytes_are_an_error_that_names_the_file(fingerprinted, damage, message, read):
    folder, fingerprints = fingerprinted
    damage(folder / "inner" / "c.0")
    with pytest.raises(CacheCorruptError, match=f"inner/c.0: .*{message}"):
        read(folder, fingerprints, "inner/c.0")


def test_a_whole_file_in_the_place_of_another_is_found(tmp_path):
    """A file that ends with its own CRC has the same CRC as any other such file."""
    one, other = (text + crc32c(text).to_bytes(4, "little") for text in (b"row 1", b"row 2"))
    assert crc32c(one) == crc32c(other)
    (tmp_path / "c.0").write_bytes(one)
    fingerprints = fingerprint_files(tmp_path)
    (tmp_path / "c.0").write_bytes(other)
    with pytest.raises(CacheCorruptError, match="not what was recorded"):
        read_from(tmp_path, fingerprints, "c.0")


def test_a_file_larger_than_a_block_is_checked_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.fingerprints.BLOCK_BYTES", 4)
    (tmp_path / "big").write_bytes(b"ten bytes.")
    fingerprints = fingerprint_files(tmp_path)
    check(tmp_path, fingerprints, "big")
    (tmp_path / "big").write_bytes(b"ten bytes,")
    with pytest.raises(CacheCorruptError, match="not what was recorded"):
        check(tmp_path, fingerprints, "big")
