"""A cache that stays within ``--max-disk``: it stops there, or rolls along with training."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_cache.cache import Cache, CacheWriter, SegmentWriter, verify_cache
from dflash_cache.cache.local import LocalStorage
from dflash_cache.config import BothConfig, ExtractConfig, PlanConfig, TrainConfig, VerifyConfig
from dflash_cache.errors import CacheIncompleteError, ConfigError
from dflash_cache.pipeline import Interrupted, stop_on_signals
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.plan import plan
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from dflash_cache.train import batches
from tests.support.disk import size_of, watched
from tests.support.runs import assert_same_training, metrics
from tests.support.threads import no_thread_left
from tests.support.tiny_targets import random_rows, save_rows, save_target

EPOCHS, ROWS = 3, 210
FLAGS = {
    "segment_tokens": 640, "batch_tokens": 640, "codec": "crc32c", "writers": 2,
    "target_layers": (0, 1, 2, 3, 4, 5, 6), "dtype": "float32",
}  # fmt: skip
TRAINING = {
    "draft_layers": 1, "block_size": 4, "anchors": 2, "batch_size": 8, "epochs": EPOCHS,
    "holdout": 10, "log_every": 1, "save_every": 10, "shuffle_segments": 2, "mask_token_id": 7,
    "prefetch_bytes": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """Target and rows, a whole cache and a run from it: what every other one is compared with."""
    folder = tmp_path_factory.mktemp("shared")
    save_target(folder / "target")
    save_rows(folder / "rows", random_rows(ROWS))
    extract(extract_config(folder, folder))
    train(train_config(folder))
    return folder


def extract_config(shared: Path, folder: Path, **changes) -> ExtractConfig:
    places = {"data": shared / "rows", "target": str(shared / "target"), "cache": folder / "cache"}
    return ExtractConfig(**places | {"devices": ("cpu",)} | FLAGS | changes)


def train_config(folder: Path, **changes) -> TrainConfig:
    places = {"cache": folder / "cache", "out": folder / "run", "device": "cpu"}
    return TrainConfig(**places | TRAINING | changes)


def both_config(shared: Path, folder: Path, max_disk: int, **changes) -> BothConfig:
    training = {name: changes.pop(name) for name in ("epochs", "steps") if name in changes}
    return BothConfig(
        extract=extract_config(shared, folder, max_disk=max_disk, **changes),
        train=train_config(folder, **training),
        overlap=True,
    )


def tenth_of(shared: Path) -> int:
    return size_of(shared / "cache") // 10


def smallest_of(config: BothConfig) -> int:
    """What the refusal of a budget far too small names."""
    tiny = replace(config, extract=replace(config.extract, max_disk=1))
    with pytest.raises(ConfigError, match="the smallest that works is --max-disk") as caught:
        both(tiny)
    return int(re.search(r"works is --max-disk (\d+)", str(caught.value)).group(1))


def content(folder: Path) -> dict[str, bytes]:
    files = [*(folder / "ledger").iterdir(), *(folder / "cache.zarr").glob("*/**/*")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.is_file()}


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.torture), 3])
def test_at_a_tenth_of_the_size_training_sees_every_row_as_often_and_gives_the_same_weights(
    devices, shared, tmp_path, monkeypatch
):
    trained: Counter[int] = Counter()
    whole_pack = batches.pack

    def counting_pack(group, *arguments):
        trained.update(sequence.row_id for sequence in group)
        return whole_pack(group, *arguments)

    monkeypatch.setattr(batches, "pack", counting_pack)
    budget = tenth_of(shared)
    config = both_config(shared, tmp_path, budget, devices=("cpu",) * devices)
    with watched(tmp_path / "cache") as sizes, no_thread_left():
        report = both(config)
    assert len(sizes) > 20
    assert max(sizes) <= budget
    num_segments = len(Cache.open(shared / "cache").plan)
    assert report["extract"]["segments_evicted"] >= 2 * num_segments
    plan_rows = {row for each in Cache.open(shared / "cache").plan for row in each.row_ids.tolist()}
    assert set(trained.values()) == {EPOCHS}
    assert len(plan_rows - trained.keys()) == TRAINING["holdout"]
    assert_same_training(shared / "run", tmp_path / "run")
    assert verify_cache(tmp_path / "cache") == []
    assert both(config)["train"]["steps"] == report["train"]["steps"]  # and again: nothing to train


def test_the_smallest_budget_that_is_named_works_and_a_byte_less_is_refused(shared, tmp_path):
    config = both_config(shared, tmp_path, 1, epochs=1)
    smallest = smallest_of(config)
    assert not (tmp_path / "cache").exists()
    less = replace(config, extract=replace(config.extract, max_disk=smallest - 1))
    with pytest.raises(ConfigError, match=f"--max-disk {smallest}"):
        both(less)
    with watched(tmp_path / "cache") as sizes:
        both(replace(config, extract=replace(config.extract, max_disk=smallest)))
    assert max(sizes) <= smallest
    train(replace(train_config(shared, epochs=1), out=tmp_path / "expected"))
    assert_same_training(tmp_path / "expected", tmp_path / "run")


def test_a_number_of_steps_ends_a_rolling_run_as_it_ends_another(shared, tmp_path):
    with watched(tmp_path / "cache") as sizes, no_thread_left():
        both(both_config(shared, tmp_path, tenth_of(shared), steps=31))
    assert max(sizes) <= tenth_of(shared)
    train(replace(train_config(shared, steps=31), out=tmp_path / "expected"))
    assert_same_training(tmp_path / "expected", tmp_path / "run")


def test_a_budget_that_holds_everything_leaves_a_finished_cache(shared, tmp_path):
    report = both(both_config(shared, tmp_path, 10 * size_of(shared / "cache"), epochs=1))
    assert report["extract"]["segments_evicted"] == report["extract"]["segments_missing"] == 0
    assert content(tmp_path / "cache") == content(shared / "cache")


def test_a_finished_cache_is_brought_down_to_a_smaller_budget(shared, tmp_path):
    extract(extract_config(shared, tmp_path))
    both(both_config(shared, tmp_path, tenth_of(shared)))
    assert size_of(tmp_path / "cache") <= tenth_of(shared)
    assert_same_training(shared / "run", tmp_path / "run")


def test_extract_stops_at_the_budget_and_goes_on_with_a_larger_one(shared, tmp_path):
    half = size_of(shared / "cache") // 2
    planned = len(Cache.open(shared / "cache").plan)
    told = []
    with watched(tmp_path / "cache") as sizes:
        report = extract(extract_config(shared, tmp_path, max_disk=half), told.append)
    assert max(sizes) <= half
    assert told[-1].over
    assert told[-1].done < told[-1].total
    assert 0 <= told[-1].figures["budget_free_bytes"] < told[0].figures["budget_free_bytes"] < half
    assert planned // 4 < planned - report["segments_missing"] < planned
    assert verify_cache(tmp_path / "cache") == []
    with pytest.raises(CacheIncompleteError):
        train(train_config(tmp_path))
    again = extract(extract_config(shared, tmp_path, max_disk=half))
    assert again["segments_missing"] == report["segments_missing"]
    assert extract(extract_config(shared, tmp_path))["segments_missing"] == 0
    assert content(tmp_path / "cache") == content(shared / "cache")
    next((tmp_path / "cache").rglob("input_ids/c.0")).unlink()
    repaired = verify(VerifyConfig(cache=str(tmp_path / "cache"), repair=True))
    assert (repaired["bad"], repaired["missing"]) == ([], 0)  # the first budget binds it no more


def test_a_budget_lets_a_cache_start_on_a_disk_that_cannot_hold_all_of_it(
    shared, tmp_path, monkeypatch
):
    tenth = tenth_of(shared)
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda storage: tenth)
    with pytest.raises(ConfigError, match="are free"):
        extract(extract_config(shared, tmp_path))
    with pytest.raises(ConfigError, match="are free"):
        extract(extract_config(shared, tmp_path, max_disk=2 * tenth))
    assert extract(extract_config(shared, tmp_path, max_disk=tenth))["segments_missing"] > 0


def test_phases_in_turn_are_refused_unless_the_whole_cache_fits(shared, tmp_path):
    config = replace(both_config(shared, tmp_path, tenth_of(shared)), overlap=False)
    with pytest.raises(ConfigError, match="With --overlap"):
        both(config)
    assert list(tmp_path.iterdir()) == []


def test_extract_refuses_a_budget_below_what_the_cache_takes_already(shared, tmp_path):
    extract(extract_config(shared, tmp_path, max_disk=size_of(shared / "cache") // 2))
    with pytest.raises(ConfigError, match=r"takes [\d.]+ MB already"):
        extract(extract_config(shared, tmp_path, max_disk=size_of(shared / "cache") // 4))


def test_plan_names_the_smallest_budget_before_any_work(shared, tmp_path):
    config = extract_config(shared, tmp_path)
    sized = PlanConfig(**{name: getattr(config, name) for name in config.__slots__})
    smallest = plan(sized)["max_disk_smallest"]
    assert extract(replace(config, max_disk=smallest))["segments_missing"] > 0
    with pytest.raises(ConfigError, match=f"--max-disk {smallest}"):
        extract(extract_config(shared, tmp_path / "other", max_disk=smallest - 1))


class UnpluggedError(Exception):
    pass


@pytest.mark.parametrize(
    ("owner", "name", "rolling"),
    [
        pytest.param(SegmentWriter, "finish", True, marks=pytest.mark.torture),
        pytest.param(CacheWriter, "commit", True, marks=pytest.mark.torture),
        (CacheWriter, "evict", True),
        pytest.param(Cache, "read", True, marks=pytest.mark.torture),
        (SegmentWriter, "finish", False),
    ],
)
def test_a_failure_while_others_wait_for_room_ends_the_run_and_the_next_one_goes_on(
    owner, name, rolling, shared, tmp_path, monkeypatch
):
    config = both_config(shared, tmp_path, 1, steps=10)
    smallest = smallest_of(config)
    config = replace(config, extract=replace(config.extract, max_disk=smallest))
    calls, whole = [], getattr(owner, name)

    def fail_later(*arguments):
        calls.append(name)
        if len(calls) == (4 if rolling else 1):
            raise UnpluggedError(name)
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail_later)
        with pytest.raises(UnpluggedError), no_thread_left():
            both(config) if rolling else extract(config.extract)
    assert verify_cache(tmp_path / "cache") == []
    both(config)
    assert size_of(tmp_path / "cache") <= smallest
    train(replace(train_config(shared, steps=10), out=tmp_path / "expected"))
    assert_same_training(tmp_path / "expected", tmp_path / "run")


def test_ctrl_c_while_others_wait_for_room_ends_the_run_and_the_next_one_goes_on(shared, tmp_path):
    config = both_config(shared, tmp_path, tenth_of(shared))

    def interrupt(progress):
        if (progress.phase, progress.done) == ("train", 35):
            os.kill(os.getpid(), signal.SIGINT)

    with stop_on_signals(), pytest.raises(Interrupted), no_thread_left():
        both(config, interrupt)
    both(config)
    assert_same_training(shared / "run", tmp_path / "run")


def command(config: BothConfig) -> list[str]:
    words = [sys.executable, "-m", "dflash_cache.cli", "both", "--overlap"]
    for part in (config.extract, config.train):
        for name in ("data", "target", "cache", "out", "device", "max_disk", *FLAGS, *TRAINING):
            value = getattr(part, name, None)
            if value is not None and (name != "cache" or part is config.extract):
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words += ["--" + name.replace("_", "-"), text]
    return [*words, "--devices", "cpu", "--json"]


@pytest.mark.parametrize(
    "moments", [(35,), pytest.param((3, 20, 35, 50, 65), marks=pytest.mark.torture)]
)
def test_a_rolling_run_killed_and_run_again_gives_the_same_weights(moments, shared, tmp_path):
    config = both_config(shared, tmp_path, tenth_of(shared))
    with watched(tmp_path / "cache") as sizes:
        for step in moments:
            logged = tmp_path / "run" / "metrics.jsonl"
            with subprocess.Popen(command(config), stdout=subprocess.DEVNULL) as process:
                while process.poll() is None and (
                    not logged.exists() or len(logged.read_bytes().splitlines()) < step
                ):
                    time.sleep(0.02)
                process.kill()
            assert process.returncode == -signal.SIGKILL
        assert len(metrics(tmp_path / "run")) < metrics(shared / "run")[-1]["step"]
        both(config)
    assert max(sizes) <= tenth_of(shared)
    assert_same_training(shared / "run", tmp_path / "run")
    assert verify_cache(tmp_path / "cache") == []
