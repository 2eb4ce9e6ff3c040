"""Caches in an object store, on a real S3 server."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import obstore
import pytest
from obstore.store import from_url

from dflash_cache.cache import Cache, open_storage, verify_cache
from dflash_cache.cache.objects import ObjectStorage
from dflash_cache.config import MergeConfig, VerifyConfig
from dflash_cache.errors import CacheBusyError, CacheCorruptError, ConfigError
from dflash_cache.runs.extract import extract
from dflash_cache.runs.merge import merge
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from tests.support.caches import assert_same_content
from tests.support.runs import extract_config, final_weights, train_config


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    extract(extract_config(folder, limit=24))
    return folder


def uploaded(local, bucket: str) -> None:
    """Merging brings a cache anywhere, segment by segment, as an extraction does."""
    merge(MergeConfig(caches=(str(local / "cache"),), into=bucket))


def test_a_cache_in_a_bucket_equals_a_local_one_and_trains_the_same(bucket, local, tmp_path):
    report = extract(extract_config(tmp_path, limit=24, cache=bucket))
    assert report["sequences"] == 24
    assert verify_cache(bucket) == []
    assert_same_content(Cache.open(bucket), Cache.open(local / "cache"))
    train(train_config(local, epochs=1))
    train(train_config(tmp_path, epochs=1, cache=bucket))
    weights, others = final_weights(tmp_path / "run"), final_weights(local / "run")
    assert all(weights[name].equal(others[name]) for name in others)


def test_reading_lists_commits_only_and_reads_chunks_by_range(bucket, local, monkeypatch):
    uploaded(local, bucket)
    listed, ranges = [], []
    listing, get_range = obstore.list, obstore.get_range

    def watched(store, prefix=None, **keywords):
        listed.append(prefix)
        return listing(store, prefix, **keywords)

    def watched_range(store, path, **keywords):
        ranges.append(keywords["length"])
        return get_range(store, path, **keywords)

    monkeypatch.setattr(obstore, "list", watched)
    monkeypatch.setattr(obstore, "get_range", watched_range)
    cache = Cache.open(bucket)
    row = int(cache.read(0).row_ids[0])
    shard_bytes = cache.record(0).shard[0]
    ranges.clear()
    cache.read(0, np.array([row]))
    assert set(listed) == {"commits"}
    assert 0 < sum(ranges) < shard_bytes


def test_many_commits_are_read_from_their_summary(bucket, local, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.commit_objects.SUMMARY_EVERY", 2)
    uploaded(local, bucket)
    got, get = [], obstore.get

    def watched(store, path, **keywords):
        got.append(path)
        return get(store, path, **keywords)

    monkeypatch.setattr(obstore, "get", watched)
    cache = Cache.open(bucket)
    assert len(cache.segments) >= 4
    assert len([path for path in got if path.startswith("commits/")]) <= 1


def test_a_summary_that_tells_of_removed_commits_decides_nothing(bucket, local, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.commit_objects.SUMMARY_EVERY", 1)
    uploaded(local, bucket)
    obstore.delete(from_url(bucket), ["commits/00000001"])
    assert 1 not in Cache.open(bucket).segments
    uploaded(local, bucket)
    assert verify_cache(bucket) == []


def test_a_repair_cut_short_leaves_no_old_record_that_hides_a_later_one(bucket, local, monkeypatch):
    uploaded(local, bucket)
    storage, put = ObjectStorage(bucket), obstore.put

    def failing(store, path, *arguments, **keywords):
        if path.startswith("commits/"):
            raise obstore.exceptions.GenericError("the network is away")
        return put(store, path, *arguments, **keywords)

    with storage.lock():
        segments = storage.commits.read()
        storage.commits.replace(segments.values())
        lost = segments.pop(1)
        with monkeypatch.context() as patch:
            patch.setattr(obstore, "put", failing)
            with pytest.raises(OSError, match="network is away"):
                storage.commits.replace(segments.values())
        again = replace(lost, record_digest="of other bytes")
        storage.commits.append(again)
    assert open_storage(bucket).commits.read()[1] == again


@pytest.mark.parametrize("name", ["cut", "flip", "delete", "foreign"])
def test_damage_in_a_bucket_is_found_and_mended(name, bucket, local, tmp_path):
    uploaded(local, bucket)
    store, path = from_url(bucket), "cache.zarr/segments/00000001/hidden_states/c.0.0.0"
    data = bytearray(obstore.get(store, path).bytes())
    if name == "delete":
        obstore.delete(store, [path])
    elif name == "foreign":
        obstore.put(store, "cache.zarr/notes.txt", b"mine")
    elif name == "cut":
        obstore.put(store, path, bytes(data[:-100]))
    else:
        data[50] ^= 1
        obstore.put(store, path, bytes(data))
    faults = verify_cache(bucket)
    assert len(faults) == 1
    if name == "foreign":
        assert "notes.txt" in faults[0].problem
        return
    assert faults[0].segment == 1
    with pytest.raises(CacheCorruptError, match=r"s3://.*c\.0\.0\.0.* rows \d+"):
        train(train_config(tmp_path, cache=bucket))
    report = verify(VerifyConfig(cache=bucket, repair=True))
    assert (report["bad"], report["repaired"]) == ([], 1)
    assert_same_content(Cache.open(bucket), Cache.open(local / "cache"))


def test_a_second_writer_is_refused_by_name_and_a_dead_one_never_blocks(bucket, tmp_path):
    first, second = open_storage(bucket), open_storage(bucket)
    assert not second.is_being_written()
    with first.lock():
        assert second.is_being_written()
        with pytest.raises(CacheBusyError, match=r'"pid": \d+.*"since"'), second.lock():
            pass
    with second.lock():
        pass
    store = from_url(bucket)
    record = json.loads(bytes(obstore.get(store, "lock").bytes()))
    dead = record | {"pid": 2**22 + 1, "until": time.time() + 1000}  # no process has this number
    obstore.put(store, "lock", json.dumps(dead).encode())
    with second.lock():
        assert first.is_being_written()
    elsewhere = dead | {"host": "elsewhere", "machine": "another"}
    obstore.put(store, "lock", json.dumps(elsewhere).encode())
    with pytest.raises(CacheBusyError, match="elsewhere"), second.lock():
        pass
    obstore.put(store, "lock", json.dumps(elsewhere | {"until": time.time() - 1}).encode())
    with second.lock():
        pass


def test_a_writer_that_lost_its_lease_commits_nothing(bucket, local, monkeypatch):
    uploaded(local, bucket)
    storage = ObjectStorage(bucket)
    cache = Cache.open(storage)
    with storage.lock():
        monkeypatch.setattr("time.time", lambda: 4e9)
        with pytest.raises(CacheBusyError, match="could not be renewed"):
            storage.commits.append(cache.segments[0])


def test_an_address_that_cannot_be_opened_is_a_usage_error(tmp_path):
    with pytest.raises(ConfigError, match="--cache nonsense://x/y"):
        extract(extract_config(tmp_path, cache="nonsense://x/y"))


def test_a_prefix_with_other_things_in_it_is_refused_and_left_alone(bucket, tmp_path):
    obstore.put(from_url(bucket), "thesis.tex", b"years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        extract(extract_config(tmp_path, cache=bucket))
    assert open_storage(bucket).names() == ["thesis.tex"]


def test_a_copy_made_by_other_means_is_a_local_cache(bucket, local, tmp_path):
    """The objects are the files: what a bucket holds can be synced to a folder, commits apart."""
    uploaded(local, bucket)
    storage = open_storage(bucket)
    for name in storage.names():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.copy(name, path)
    shutil.rmtree(tmp_path / "copy" / "commits")
    (tmp_path / "copy" / "commits.summary").unlink(missing_ok=True)
    verify(VerifyConfig(cache=tmp_path / "copy", repair=True))
    assert verify_cache(tmp_path / "copy") == []
