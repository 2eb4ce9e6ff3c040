"""A disk that turns read-only, as a kernel does on errors: nothing is lost, and it goes on."""

import errno
import os
from pathlib import Path

import pytest

from dflash_cache.cache import Cache, CacheWriter, verify_cache
from dflash_cache.runs.extract import extract
from tests.support.caches import assert_same_content
from tests.support.mounts import remount, small_disk
from tests.support.runs import extract_config


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", size="100m") as folder:
        yield folder


@pytest.fixture
def half_done(disk, monkeypatch):
    """The disk, with a cache on it whose extraction was stopped after two commits."""

    class StoppedError(Exception):
        pass

    commit, calls = CacheWriter.commit, []

    def twice(*arguments) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            raise StoppedError
        commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CacheWriter, "commit", twice)
        with pytest.raises(StoppedError):
            extract(extract_config(disk))
    return disk


def finishes(disk: Path, tmp_path: Path) -> None:
    assert extract(extract_config(disk))["sequences"] == 40
    assert verify_cache(disk / "cache") == []
    extract(extract_config(tmp_path))
    assert_same_content(Cache.open(disk / "cache"), Cache.open(tmp_path / "cache"))


def test_a_resume_on_a_read_only_disk_names_the_file_and_changes_nothing(half_done, tmp_path):
    remount(half_done, "ro")
    with pytest.raises(OSError, match=f"Read-only file system: '{half_done}/cache") as caught:
        extract(extract_config(half_done))
    assert caught.value.errno == errno.EROFS
    assert len(Cache.open(half_done / "cache").segments) == 2
    assert verify_cache(half_done / "cache") == []
    remount(half_done, "rw")
    finishes(half_done, tmp_path)


def test_a_finished_cache_on_a_read_only_disk_is_left_as_it_is(disk):
    extract(extract_config(disk))
    remount(disk, "ro")
    assert extract(extract_config(disk))["sequences"] == 40
    assert verify_cache(disk / "cache") == []
    remount(disk, "rw")


def test_a_disk_that_turns_read_only_in_the_middle_keeps_what_was_committed(
    disk, tmp_path, monkeypatch
):
    """The commit record cannot be written; the kernel's own remount does not ask who writes."""
    opened, calls = os.open, []

    def refusing(path, flags, *arguments, **keywords):
        if str(path).endswith("commits.log") and flags & os.O_WRONLY:
            calls.append(path)
            if len(calls) > 2:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        with pytest.raises(OSError, match=r"Read-only file system: .*commits\.log"):
            extract(extract_config(disk))
    remount(disk, "ro")
    cache = Cache.open(disk / "cache")
    assert len(cache.segments) == 2
    for index in cache.segments:
        cache.read(index)
    remount(disk, "rw")
    finishes(disk, tmp_path)
