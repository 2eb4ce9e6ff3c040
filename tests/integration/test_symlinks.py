"""One cache over several disks: its states are symbolic links into other caches."""

import os
import shutil
import tempfile
from pathlib import Path

import datasets
import pytest

from dflash_cache import demo
from dflash_cache.cache import Cache, CacheWriter, folder_bytes, segment_bytes, verify_cache
from dflash_cache.cache.layout import segment_folder
from dflash_cache.cache.segment import SHARD_KEY
from dflash_cache.config import InspectConfig, MergeConfig, VerifyConfig
from dflash_cache.errors import CacheAwayError, ConfigError
from dflash_cache.runs.extract import extract
from dflash_cache.runs.inspect import inspect
from dflash_cache.runs.merge import merge
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from tests.support.caches import assert_same_content
from tests.support.runs import extract_config, train_config

MEMORY = Path("/dev/shm")  # another file system than that of temporary files, where there is one


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """A whole cache, and its two shares, the second on another file system."""
    folder = tmp_path_factory.mktemp("disks")
    rows = datasets.load_from_disk(str(demo.DATA))
    for name, part in (("rows", range(16)), ("more", range(16, 20))):
        rows.select(part).save_to_disk(folder / name)
    other = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=other) as elsewhere:
        (folder / "b").symlink_to(elsewhere)
        extract(of(folder, folder / "whole"))
        for number, name in ((1, "a/cache"), (2, "b/cache")):
            extract(of(folder, folder / name, share=f"{number}/2"))
        yield folder


def of(disks, cache, **changes):
    settings = {"data": disks / "rows", "limit": None, "cache": cache}
    return extract_config(disks, **settings | changes)


def link(*sources: Path, into: Path) -> Cache:
    merge(MergeConfig(caches=tuple(map(str, sources)), into=str(into), symlink=True))
    return Cache.open(into)


def shard(cache: Cache, index: int) -> Path:
    return cache.storage.root / segment_folder(index) / SHARD_KEY


def content(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}


def test_links_over_two_file_systems_hold_what_one_cache_holds(disks, tmp_path, monkeypatch):
    monkeypatch.chdir(disks)
    link(Path("a/cache"), Path("b/cache"), into=tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "cache")
    linked, whole = Cache.open(tmp_path / "cache"), Cache.open("whole")
    assert_same_content(linked, whole)
    assert verify_cache(tmp_path / "cache") == []
    assert all(shard(linked, index).readlink().is_absolute() for index in linked.segments)
    places = [str((disks / name / "cache").resolve()) for name in "ab"]
    assert inspect(InspectConfig(cache="whole"))["linked"] == {}
    found = inspect(InspectConfig(cache=str(tmp_path / "cache"), row=3))["linked"]
    assert list(found) == places
    assert sum(found.values()) == len(whole.segments)
    stored = sum(segment.bytes_stored for segment in whole.segments.values())
    assert folder_bytes(tmp_path / "cache/cache.zarr/segments") < stored / 4
    assert train(train_config(tmp_path, steps=2))["steps"] == 2


def test_a_disk_that_is_away_is_named_and_nothing_on_it_is_made_again(disks, tmp_path):
    shutil.copytree(disks / "a/cache", tmp_path / "a")
    linked = link(tmp_path / "a", disks / "b/cache", into=tmp_path / "cache")
    before = content(tmp_path / "cache")
    (tmp_path / "a").rename(tmp_path / "away")
    faults = verify_cache(tmp_path / "cache")
    assert [fault.segment for fault in faults] == list(range(0, len(linked.plan), 2))
    away = f"{shard(linked, 0)}: a link to {tmp_path}/a/.*, which is not there; mount its disk"
    assert all("which is not there; mount" in fault.problem for fault in faults)
    with pytest.raises(CacheAwayError, match=away) as raised:
        Cache.open(tmp_path / "cache").read(0)
    assert "--repair" not in str(raised.value)
    assert linked.read(1).row_ids.size
    assert segment_bytes(linked, 0) > 0
    with pytest.raises(CacheAwayError, match=f"{away}.*{len(faults)} segments.*-xtype l -delete"):
        verify(VerifyConfig(cache=str(tmp_path / "cache"), repair=True))
    (tmp_path / "away").rename(tmp_path / "a")
    assert verify_cache(tmp_path / "cache") == []
    assert content(tmp_path / "cache") == before


def test_a_repair_writes_in_the_place_of_the_link_and_not_through_it(disks, tmp_path):
    shutil.copytree(disks / "a/cache", tmp_path / "a")
    linked = link(tmp_path / "a", disks / "b/cache", into=tmp_path / "cache")
    damaged, lost = (shard(linked, index).readlink() for index in (0, 2))
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    lost.unlink()
    shard(linked, 2).unlink()  # as the refusal says for states that are lost
    assert {fault.segment for fault in verify_cache(tmp_path / "cache")} == {0, 2}
    report = verify(VerifyConfig(cache=str(tmp_path / "cache"), repair=True))
    assert (report["bad"], report["missing"]) == ([], 0)
    assert damaged.read_bytes() == data
    assert not lost.exists()
    assert [shard(linked, index).is_symlink() for index in range(3)] == [False, True, False]
    assert_same_content(Cache.open(tmp_path / "cache"), Cache.open(disks / "whole"))


def test_extraction_goes_on_beside_links_and_an_eviction_leaves_what_they_lead_to(disks, tmp_path):
    source = content(disks / "a/cache")
    linked = link(disks / "a/cache", into=tmp_path / "cache")
    assert 1 not in linked.segments
    CacheWriter(linked).evict(0)
    assert not shard(linked, 0).parents[1].exists()
    assert extract(of(disks, tmp_path / "cache"))["segments_missing"] == 0
    found = Cache.open(tmp_path / "cache")
    assert [shard(found, index).is_symlink() for index in range(3)] == [False, False, True]
    assert_same_content(found, Cache.open(disks / "whole"))
    extract(of(disks, tmp_path / "cache", data=disks / "more", append=True))
    assert len(Cache.open(tmp_path / "cache").spec.parts) == 2
    assert verify_cache(tmp_path / "cache") == []
    assert content(disks / "a/cache") == source


def test_merging_a_cache_of_links_copies_the_states_or_links_to_where_they_lie(disks, tmp_path):
    first = link(disks / "a/cache", disks / "b/cache", into=tmp_path / "first")
    second = link(tmp_path / "first", into=tmp_path / "second")
    assert [shard(second, index).readlink() for index in (0, 1)] == [
        shard(first, index).readlink() for index in (0, 1)
    ]
    merge(MergeConfig(caches=(str(tmp_path / "first"),), into=str(tmp_path / "copied")))
    copied = Cache.open(tmp_path / "copied")
    assert copied.linked == {}
    assert_same_content(copied, second)


def test_a_link_never_leads_to_itself(disks, tmp_path):
    shutil.copytree(disks / "a/cache", tmp_path / "a")
    link(tmp_path / "a", into=tmp_path / "cache")
    CacheWriter(Cache.open(tmp_path / "a")).evict(0)
    with pytest.raises(CacheAwayError, match=r"a link to .*, which is not there"):
        link(tmp_path / "cache", into=tmp_path / "a")


@pytest.mark.parametrize("places", [("s3://bucket/a", "into"), ("a", "s3://bucket/into")])
def test_links_from_or_to_an_object_store_are_refused(places):
    source, into = places
    with pytest.raises(ConfigError, match=r"--symlink: s3://bucket/\w+ is in an object store"):
        merge(MergeConfig(caches=(source,), into=into, symlink=True))
