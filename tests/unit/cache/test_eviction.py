"""An evicted segment is gone for every reader, and a crash in the middle leaves no half one."""

from pathlib import Path

import numpy as np
import pytest

from dflash_cache.cache import Cache, CacheWriter, local, verify_cache
from dflash_cache.cache.commits import CommitLog
from dflash_cache.cache.layout import segment_folder
from dflash_cache.runs.extract import extract
from tests.support.runs import extract_config


class CrashError(Exception):
    pass


@pytest.fixture
def cache(tmp_path) -> Cache:
    extract(extract_config(tmp_path, limit=8, segment_tokens=400))
    return Cache.open(tmp_path / "cache")


def folder_of(cache: Cache, index: int) -> Path:
    return cache.storage.root / segment_folder(index)


def crash(*_arguments):
    raise CrashError


def content(cache: Cache) -> dict[str, bytes]:
    files = (cache.storage.root / "cache.zarr" / "segments").rglob("*")
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_an_evicted_segment_is_missing_and_no_damage_and_is_extracted_again(cache, tmp_path):
    before = content(cache)
    CacheWriter(cache).evict(1)
    assert sorted(set(range(len(cache.plan))) - Cache.open(cache.storage.root).segments.keys()) == [
        1
    ]
    assert verify_cache(cache.storage.root) == []
    assert not folder_of(cache, 1).exists()
    assert list((cache.storage.root / "staging").iterdir()) == []
    assert extract(extract_config(tmp_path, limit=8, segment_tokens=400))["segments_missing"] == 0
    assert content(cache) == before


@pytest.mark.parametrize(
    ("owner", "name", "in_place"),
    [(local.LocalStorage, "discard", True), (local, "fsync_path", False)],
    ids=["after the log's line", "after the move"],
)
def test_a_crash_in_an_eviction_leaves_a_folder_that_the_next_writer_clears(
    owner, name, in_place, cache, monkeypatch
):
    evicting = CacheWriter(cache)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        with pytest.raises(CrashError):
            evicting.evict(1)
    assert folder_of(cache, 1).exists() == in_place
    assert 1 not in Cache.open(cache.storage.root).segments
    assert verify_cache(cache.storage.root) == []
    CacheWriter(cache)
    assert 1 not in cache.segments
    assert not folder_of(cache, 1).exists()
    assert list((cache.storage.root / "staging").iterdir()) == []
    assert verify_cache(cache.storage.root) == []


def test_a_reader_that_opened_a_segment_reads_it_to_its_end(cache):
    path = folder_of(cache, 1) / "hidden_states" / "c.0.0.0"
    expected = path.read_bytes()
    with path.open("rb") as file:
        CacheWriter(cache).evict(1)
        assert file.read() == expected


def test_a_segment_committed_again_after_its_eviction_counts(cache, tmp_path):
    CacheWriter(cache).evict(1)
    extract(extract_config(tmp_path, limit=8, segment_tokens=400))
    log = CommitLog(cache.storage.root / "commits.log")
    assert log.evicted() == set()
    assert np.array_equal(sorted(log.read()), range(len(cache.plan)))


def test_the_next_writer_shortens_a_log_that_evictions_have_lengthened(cache):
    evicting = CacheWriter(cache)
    for index in (0, 2):
        evicting.evict(index)
    log = cache.storage.root / "commits.log"
    lines, segments = log.read_bytes().splitlines(), Cache.open(cache.storage.root).segments
    CacheWriter(cache)
    assert len(log.read_bytes().splitlines()) == len(lines) - 4
    assert Cache.open(cache.storage.root).segments == segments
