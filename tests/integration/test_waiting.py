"""Training says when it waited for its data, and for which stage."""

import time

import pytest

from dflash_cache.cache import Cache
from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import TrainingRun
from dflash_cache.runs.waiting import waiting
from tests.support.runs import extract_config, train_config


class SlowSource:
    def __init__(self, cache):
        self._cache = cache

    def read(self, index, row_ids=None):
        time.sleep(1.0)
        return self._cache.read(index, row_ids)


def test_a_reader_that_is_too_slow_is_named(tmp_path):
    extract(extract_config(tmp_path, limit=12))
    config = train_config(tmp_path, epochs=1, holdout=0, shuffle_segments=1, prefetch_readers=1)
    cache = Cache.open(config.cache)
    run = TrainingRun(config, cache)
    with Pipeline("slow") as pipeline:
        run.spawn(pipeline, SlowSource(cache), lambda progress: None)
        pipeline.start()
    report = run.report(pipeline.statistics, 1.0)
    assert report["slow_stage"] == "prefetch"
    assert report["waiting_share"] > 0.05


@pytest.mark.parametrize(
    ("starved", "stage"), [(0.2, None), (4.0, "target"), (9.9, "target")]
)  # of 10 seconds
def test_the_stage_that_waits_least_is_the_slow_one(starved, stage):
    statistics = {
        "target": StageStatistics(alive_s=10, starved_s=0.5, num_threads=1),
        "prefetch": StageStatistics(alive_s=20, starved_s=15, num_threads=2),
        "pack": StageStatistics(alive_s=10, blocked_s=9, num_threads=1),
        "train": StageStatistics(alive_s=10, starved_s=starved, num_threads=1),
    }
    found = waiting(statistics)
    assert found == {
        "waiting_share": starved / 10,
        "slow_stage": stage,
        "critical_stage": stage or "train",
    }


def test_a_stage_that_hardly_worked_is_not_named_however_little_it_lived():
    """As in a resumed run, whose extraction has only a segment left."""
    statistics = {
        "read": StageStatistics(alive_s=0.001, num_threads=1),  # all of it busy
        "target": StageStatistics(alive_s=2.0, starved_s=0.1, num_threads=1),
        "pack": StageStatistics(alive_s=10.0, starved_s=9.0, num_threads=1),
        "train": StageStatistics(alive_s=10.0, starved_s=2.0, num_threads=1),
    }
    assert waiting(statistics)["slow_stage"] == "target"


def test_a_run_in_which_nothing_trained_waited_for_nothing():
    assert waiting({}) == {"waiting_share": 0.0, "slow_stage": None, "critical_stage": None}
