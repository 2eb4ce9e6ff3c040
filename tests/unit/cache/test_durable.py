import os

import numpy as np
import pytest

from dflash_cache.cache.durable import (
    checked_line,
    crc32c,
    fsync_tree,
    parse_checked_line,
    remove_tree,
    write_atomically,
)
from dflash_cache.errors import CacheCorruptError


def test_crc32c_is_the_castagnoli_checksum():
    assert crc32c(b"123456789") == 0xE3069283


def test_crc32c_of_an_array_is_that_of_its_bytes():
    values = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    assert crc32c(values) == crc32c(values.tobytes())


def test_an_atomic_write_replaces_the_old_content(tmp_path):
    path = tmp_path / "spec.json"
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_an_atomic_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path, monkeypatch, call
):
    path = tmp_path / "spec.json"
    path.write_bytes(b"old")

    def fail(*_arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(
        *(("os.fsync", fail) if call == "fsync" else ("pathlib.Path.replace", fail))
    )
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_atomic_write_is_durable_before_and_after_the_rename(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, type(tmp_path).replace

    def record_fsync(descriptor):
        is_folder = os.fstat(descriptor).st_ino == tmp_path.stat().st_ino
        events.append("folder" if is_folder else "file")
        fsync(descriptor)

    def record_replace(path, target):
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr("os.fsync", record_fsync)
    monkeypatch.setattr("pathlib.Path.replace", record_replace)
    write_atomically(tmp_path / "spec.json", b"new")
    assert events == ["file", "rename", "folder"]


def test_a_tree_is_made_durable_to_its_last_file_with_contents_before_their_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "a" / "b").mkdir(parents=True)
    files = [tmp_path / "top", tmp_path / "a" / "one", tmp_path / "a" / "b" / "two"]
    for path in files:
        path.write_bytes(b"x")
    names = {path.stat().st_ino: path for path in [tmp_path, *tmp_path.rglob("*")]}
    order = []
    monkeypatch.setattr("os.fsync", lambda fd: order.append(names[os.fstat(fd).st_ino]))
    fsync_tree(tmp_path)
    assert sorted(order) == sorted(names.values())
    for path in names.values():
        assert path == tmp_path or order.index(path) < order.index(path.parent)


def test_what_a_link_leads_to_is_neither_removed_nor_has_to_be_there(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.0").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "dead").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    fsync_tree(tmp_path / "folder")
    remove_tree(tmp_path / "folder")
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert (tmp_path / "elsewhere" / "c.0").read_bytes() == b"data"


def test_a_checked_line_gives_its_record_back():
    record = {"index": 3, "files": {"c.0": [12, 34]}, "text": "ü \n \r \u2028 \\"}
    line = checked_line(record)
    assert line.count(b"\n") == 1
    assert parse_checked_line(line, "here") == record


def test_every_flipped_bit_of_a_checked_line_is_found():
    line = checked_line({"index": 3, "name": "a b", "files": {"c.0": [12, 34]}})
    for bit in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CacheCorruptError, match=r"commits\.log, line 7"):
            parse_checked_line(bytes(flipped), "commits.log, line 7")


def test_every_shortened_checked_line_is_found():
    line = checked_line({"index": 3})
    for length in range(len(line)):
        with pytest.raises(CacheCorruptError):
            parse_checked_line(line[:length], "here")
