"""Snapshots from what phases say, at times that the test sets."""

import json
from dataclasses import asdict, replace

import pytest

from dflash_cache.pipeline import StageStatistics
from dflash_cache.pipeline.stage import Depth
from dflash_cache.runs.progress import ChannelState, Progress, Sample
from dflash_cache.runs.watch import Watch


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Phase:
    """An extraction whose sums the test changes."""

    def __init__(self):
        self.stages = {}
        self.channels = {}
        self.tokens = {"cuda:0": 0, "cuda:1": 0}

    def sample(self):
        return Sample(
            stages=dict(self.stages), channels=self.channels, device_tokens=dict(self.tokens)
        )

    def progress(self, done, **more):
        return Progress(
            phase="extract", done=done, total=10, unit="segments", sample=self.sample, **more
        )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock):
    return Watch(clock)


def at(clock, watch, now_s):
    clock.now_s = now_s
    return watch.snapshot()


def test_before_the_first_phase_there_is_nothing_to_show(clock, watch):
    snapshot = at(clock, watch, 3.0)
    assert (snapshot.elapsed_s, snapshot.phases) == (3.0, ())


def test_tokens_per_second_are_those_of_each_device_and_their_sum(clock, watch):
    phase = Phase()
    watch(phase.progress(0))
    watch.snapshot()
    phase.tokens = {"cuda:0": 3000, "cuda:1": 1000}
    (found,) = at(clock, watch, 2.0).phases
    assert found.device_tokens_per_s == {"cuda:0": 1500, "cuda:1": 500}
    assert found.figures == {"tokens_per_s": 2000}


def test_shares_of_a_stage_are_of_the_last_seconds(clock, watch):
    phase = Phase()
    watch(phase.progress(0))
    phase.stages = {"target": StageStatistics(alive_s=1, num_threads=1)}
    watch.snapshot()
    phase.stages = {"target": StageStatistics(alive_s=61, starved_s=60, num_threads=1)}
    (found,) = at(clock, watch, 60.0).phases
    assert found.stages[0].starved == 1
    phase.stages = {"target": StageStatistics(alive_s=71, starved_s=61, blocked_s=2, num_threads=1)}
    (found,) = at(clock, watch, 70.0).phases
    (stage,) = found.stages
    assert (stage.busy, stage.starved, stage.blocked) == (0.7, 0.1, 0.2)


def test_a_stage_has_the_channels_that_it_takes_from_and_lanes_are_one(clock, watch):
    phase = Phase()
    watch(phase.progress(0))
    depths = {name: Depth(capacity=2) for name in ("staged-0", "staged-1", "elsewhere")}
    phase.stages = {"write": StageStatistics(alive_s=1, num_threads=2, depths=depths)}
    phase.channels = {
        "rows": ChannelState(held=4, capacity=4),
        "staged-0": ChannelState(held=2, capacity=2),
        "staged-1": ChannelState(held=1, capacity=2),
    }
    (found,) = watch.snapshot().phases
    assert found.stages[0].channels == {"staged": ChannelState(held=3, capacity=4)}


def test_the_time_left_is_known_from_the_second_step_on(clock, watch):
    phase = Phase()
    watch(phase.progress(0))
    watch.snapshot()
    watch(phase.progress(1))
    assert at(clock, watch, 100.0).phases[0].left_s is None  # loading is no pace
    watch(phase.progress(2))
    assert at(clock, watch, 110.0).phases[0].left_s == 80
    assert at(clock, watch, 115.0).phases[0].left_s == 75
    watch(phase.progress(10))
    (found,) = at(clock, watch, 120.0).phases
    assert (found.left_s, found.over) == (None, False)


def test_a_phase_that_is_over_keeps_its_figures_and_has_no_stages(clock, watch):
    phase = Phase()
    phase.stages = {"target": StageStatistics(alive_s=1, num_threads=1)}
    watch(phase.progress(9, figures={"tokens": 90}))
    assert watch.snapshot().phases[0].stages
    over = replace(phase.progress(9, figures={"tokens": 90}), sample=None, over=True)
    watch(over)
    (found,) = at(clock, watch, 1.0).phases
    assert (found.over, found.stages) == (True, ())
    assert found.figures == {"tokens": 90, "tokens_per_s": 0}


def test_a_phase_that_begins_once_more_has_a_pace_of_its_own(clock, watch):
    phase = Phase()
    watch(phase.progress(0))
    for done in (1, 5):
        watch(phase.progress(done))
        at(clock, watch, float(done))
    watch(phase.progress(10, over=True))
    watch.snapshot()
    watch(phase.progress(5))
    assert watch.snapshot().phases[0].left_s is None


def test_phases_come_in_the_order_in_which_they_follow(watch):
    watch(Progress(phase="train", done=0, total=1, unit="steps"))
    watch(Progress(phase="extract", done=0, total=1, unit="segments"))
    assert [each.phase for each in watch.snapshot().phases] == ["extract", "train"]


def test_a_snapshot_is_written_as_json(clock, watch):
    phase = Phase()
    phase.stages = {
        "read": StageStatistics(alive_s=1, num_threads=1, depths={"plan": Depth(capacity=9)})
    }
    phase.channels = {"plan": ChannelState(held=7, capacity=9)}
    watch(phase.progress(1, figures={"rows": 20}))
    found = json.loads(json.dumps(asdict(watch.snapshot())))
    assert found["phases"][0]["stages"] == [
        {
            "name": "read", "busy": 1.0, "starved": 0.0, "blocked": 0.0,
            "channels": {"plan": {"held": 7, "capacity": 9}},
        }
    ]  # fmt: skip
    assert found["phases"][0]["figures"] == {"rows": 20, "tokens_per_s": 0}
