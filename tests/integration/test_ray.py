"""Extraction by the actors of a Ray cluster, one of this machine."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dflash_cache import demo
from dflash_cache.cache import Cache, open_storage, verify_cache
from dflash_cache.config import BothConfig, ExtractConfig
from dflash_cache.errors import ConfigError
from dflash_cache.runs import actors
from dflash_cache.runs.extract import extract
from tests.support.actors import (
    FailingActor,
    PlannedFaultError,
    actors_at_work,
)
from tests.support.caches import assert_same_content
from tests.support.processes import title_of, titles
from tests.support.runs import extract_config, train_config
from tests.support.tiny_targets import NAN_TOKEN, rows_of, save_rows, save_spoilt_target

PATIENCE_S = 120


@pytest.fixture(scope="module")
def cluster(s3_server):
    """Two CPUs; its actors reach the S3 server by the environment that it was started in."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=100 << 20,
        )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def by_threads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    extract(extract_config(folder))
    return Cache.open(folder / "cache")


def ray_config(folder, **changes) -> ExtractConfig:
    return extract_config(folder, **{"engine": "ray", "devices": ("cpu", "cpu")} | changes)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """Settings of a target and rows of which some are bad, and some have no finite states."""
    folder = tmp_path_factory.mktemp("spoilt")
    save_spoilt_target(folder / "target")
    ids = [[20 + row, 1, 2, 3, 4, 5] for row in range(24)]
    ids[2][4] = ids[16][0] = NAN_TOKEN
    ids[5][1] = -1
    save_rows(folder / "rows", rows_of(ids))
    return {
        "data": folder / "rows",
        "target": str(folder / "target"),
        "limit": None,
        "segment_tokens": 20,
        "on_bad_row": "drop",
    }


def test_actors_make_in_a_bucket_the_cache_that_threads_make(cluster, bucket, spoilt, tmp_path):
    report = extract(ray_config(tmp_path, cache=bucket, **spoilt))
    expected = extract(extract_config(tmp_path, **spoilt))
    assert report["dropped"] == expected["dropped"] == {"non_finite": 2, "id_out_of_range": 1}
    assert report["stages"].keys() >= {"read", "actor", "target", "write", "commit"}
    cache, other = Cache.open(bucket), Cache.open(tmp_path / "cache")
    assert_same_content(cache, other)
    assert cache.ledger == other.ledger
    assert verify_cache(bucket) == []
    assert open_storage(bucket).names("staging") == []


def test_a_killed_actor_costs_the_segments_it_had_alone(cluster, by_threads, tmp_path, monkeypatch):
    returned, killed = [], []
    give_back = actors.HandOut.give_back

    def noting(hand_out, read):
        returned.append(read.plan.index)
        give_back(hand_out, read)

    def kill_one(progress):
        if not killed and (busy := actors_at_work()):
            killed.append(busy[0])
            os.kill(busy[0], signal.SIGKILL)

    monkeypatch.setattr(actors.HandOut, "give_back", noting)
    report = extract(ray_config(tmp_path), kill_one)
    assert report["segments_missing"] == 0
    assert 1 <= len(set(returned)) == len(returned) <= actors.UNDER_WAY
    assert_same_content(Cache.open(tmp_path / "cache"), by_threads)
    assert list((tmp_path / "cache" / "staging").iterdir()) == []
    assert verify_cache(str(tmp_path / "cache")) == []


def test_an_error_in_an_actor_ends_the_run_and_names_the_actor(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "SegmentActor", FailingActor)
    with pytest.raises(PlannedFaultError, match="segment") as caught:
        extract(ray_config(tmp_path, devices=("cpu",)))
    assert any("actor 1 (cpu) on" in note for note in caught.value.__notes__)


def test_more_placements_than_the_cluster_has_are_refused(cluster, tmp_path):
    with pytest.raises(ConfigError, match="3 CPUs are needed, and the cluster has 2"):
        extract(ray_config(tmp_path, devices=("cpu",) * 3))
    with pytest.raises(ConfigError, match="2 GPUs are needed, and the cluster has 0"):
        extract(ray_config(tmp_path, devices=("cuda:0+cuda:1",)))
    with pytest.raises(ConfigError, match="tpu: no device name"):
        extract(ray_config(tmp_path, devices=("tpu",)))


def test_ctrl_c_stops_actors_and_cluster_and_threads_go_on(by_threads, tmp_path):
    flags = {
        "data": demo.DATA, "target": demo.TARGET, "cache": tmp_path / "cache", "limit": 40,
        "segment-tokens": 1024, "batch-tokens": 1024, "codec": "crc32c", "devices": "cpu,cpu",
        "engine": "ray", "address": "local",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_cache.cli", "extract", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log, end = tmp_path / "cache" / "commits.log", time.monotonic() + PATIENCE_S
    while not log.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    processes = titles(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of the group get it
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert "the same command continues" in stderr
    assert any(title.startswith("ray::SegmentActor") for title in processes.values())
    assert [title for pid, title in processes.items() if title_of(pid) == title] == []
    assert 0 < len(Cache.open(tmp_path / "cache").segments) < len(by_threads.segments)
    extract(extract_config(tmp_path))
    assert_same_content(Cache.open(tmp_path / "cache"), by_threads)


def test_ray_is_asked_for_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'dflash-cache\[ray\]'"):
        extract(ray_config(tmp_path))


def test_settings_that_do_not_go_with_the_engine_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--address auto: only --engine ray"):
        extract_config(tmp_path, address="auto")
    with pytest.raises(ConfigError, match="on a machine of the cluster"):
        ray_config(tmp_path, address="ray://host:10001")
    with pytest.raises(ConfigError, match="--engine ray: only extract"):
        BothConfig(extract=ray_config(tmp_path), train=train_config(tmp_path))
