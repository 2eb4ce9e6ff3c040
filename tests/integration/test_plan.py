"""Sizes before any work, and disks that are too small."""

import errno
import re
import shutil

import numpy as np
import pytest

from dflash_cache import demo
from dflash_cache.cache import CODECS, Cache, verify_cache
from dflash_cache.cache.local import LocalStorage
from dflash_cache.config import PlanConfig
from dflash_cache.data import plan_batches
from dflash_cache.errors import ConfigError
from dflash_cache.runs.extract import extract
from dflash_cache.runs.plan import plan
from dflash_cache.runs.preparation import prepare
from dflash_cache.runs.probe import spread_batches
from tests.support.mounts import remount, small_disk
from tests.support.refusals import run
from tests.support.runs import extract_config


def plan_config(**changes) -> PlanConfig:
    return PlanConfig(
        data=demo.DATA, target=str(demo.TARGET), limit=40, segment_tokens=1024, **changes
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_above_what_is_stored_and_not_far(dtype, tmp_path):
    report = plan(plan_config(dtype=dtype))
    for codec in CODECS:
        made = extract(extract_config(tmp_path / codec, codec=codec, dtype=dtype))
        stored = sum(f.stat().st_size for f in tmp_path.rglob(f"{codec}/cache/**/*") if f.is_file())
        assert stored <= report["bytes_estimated"][codec] <= 1.25 * stored
        assert made["tokens"] == report["tokens"]
        assert made["sequences"] == report["sequences"]


def test_planning_loads_no_target_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_cache.target.Target.load", None)
    report = plan(plan_config(cache=tmp_path / "cache"))
    assert report["segments"] > 1
    assert report["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_needs_no_device_unless_it_probes():
    far = "cuda:0+cuda:1,cuda:6"
    assert plan(plan_config(devices=tuple(far.split(","))))["sequences"] == 40
    with pytest.raises(ConfigError, match=r"--devices tpu: no device name"):
        plan(plan_config(devices=("tpu",)))
    with pytest.raises(ConfigError, match=r"--devices cuda:6: this machine has \d CUDA devices"):
        plan(plan_config(devices=("cuda:6",), probe=True))


def test_a_cache_that_cannot_fit_is_refused_before_a_target_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_cache.target.Target.load", None)
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda storage: 10_000_000)
    with pytest.raises(ConfigError, match=r"about [\d.]+ MB are needed and 10\.0 MB are free"):
        extract(extract_config(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def disk(tmp_path):
    """Of 20 MB, smaller than the cache."""
    with small_disk(tmp_path / "disk", size="20m") as folder:
        yield folder


def test_a_disk_that_fills_up_is_told_with_its_flag_and_its_room(disk, monkeypatch):
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda storage: 1 << 40)
    code, message = run(
        f"extract --data {demo.DATA} --target TARGET --cache {disk}/cache --limit 40 "
        "--segment-tokens 1024 --batch-tokens 1024 --quiet"
    )
    assert code == 1
    assert re.fullmatch(
        r"dflash-cache: \[Errno 28\] No space left on device; mend this, and the same command "
        rf"continues\nraised in stage 'write' of pipeline 'extract'\n"
        rf"--cache: \d+\.\d MB free on the disk of {disk}/cache",
        message,
    )


def test_a_disk_that_fills_up_ends_the_run_and_space_lets_it_go_on(disk, monkeypatch):
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda storage: 1 << 40)
    with pytest.raises(OSError, match="No space left") as caught:
        extract(extract_config(disk))
    assert caught.value.errno == errno.ENOSPC
    cache = Cache.open(disk / "cache")
    assert 0 < len(cache.segments) < len(cache.plan)
    for index in cache.segments:
        cache.read(index)
    remount(disk, "size=100m")
    assert extract(extract_config(disk))["sequences"] == 40
    assert verify_cache(disk / "cache") == []


def test_a_probe_times_the_target_on_batches_of_the_plan(tmp_path):
    plain = plan(plan_config(batch_tokens=512))
    report = plan(plan_config(probe=True, devices=("cpu", "cpu"), batch_tokens=512))
    found = report.pop("probe")
    assert plain.keys() == report.keys()
    assert found["device"] == "cpu"
    assert found["tokens_per_s"] > 0
    # Two workers on one device share it.
    assert found["seconds_by_devices"] == {"1": found["seconds_estimated"]}
    whole_s = report["tokens"] / found["tokens_per_s"]
    assert found["seconds_estimated"] == pytest.approx(whole_s, abs=0.06)


def test_a_probe_takes_a_short_a_median_and_a_long_batch_and_none_that_is_a_rest():
    longest = np.array([50, 900, 300, 20, 400, 900])
    padded = np.array([1000, 900, 900, 20, 400, 1000])
    assert longest[spread_batches(longest, padded)].tolist() == [50, 900]
    longest[1] = 600
    assert longest[spread_batches(longest, padded)].tolist() == [50, 600, 900]


def test_a_probe_reckons_each_batch_by_its_length(monkeypatch):
    """Seconds a token grow with the length: the whole is the sum over all batches."""
    monkeypatch.setattr(
        "dflash_cache.runs.probe.batch_seconds",
        lambda preparation, capture, rows: float(len(rows) * rows[:, 1].max() * rows[:, 1].max()),
    )
    config = plan_config(probe=True, devices=("cpu",), batch_tokens=512)
    expected = 0.0
    for segment in prepare(config).plan:
        for part in plan_batches(segment.lengths, 512):
            lengths = segment.lengths[part]
            expected += len(lengths) * float(lengths.max()) ** 2
    # Seconds a token are the length itself here, which interpolation gives back.
    found = plan(config)["probe"]["seconds_estimated"]
    assert found == pytest.approx(expected, rel=0.1)
