"""Which stage of an extraction is named as the one that sets the pace."""

import time

import pytest

from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.runs.critical import critical_stage, stages_and_channels


def stage(alive_s, starved_s=0.0, blocked_s=0.0, threads=1):
    return StageStatistics(
        alive_s=alive_s, starved_s=starved_s, blocked_s=blocked_s, num_threads=threads
    )


def test_the_stage_that_works_most_of_its_threads_time_is_critical():
    statistics = {
        "read": stage(20, blocked_s=18, threads=2),
        "target": stage(10, starved_s=0.5),
        "write": stage(40, starved_s=20, threads=4),  # 20 busy seconds, half of each thread's
        "commit": stage(10, starved_s=9),
    }
    assert critical_stage(statistics) == {"critical_stage": "target", "critical_share": 0.95}


def test_a_stage_that_ended_early_was_not_waited_for():
    statistics = {"read": stage(0.2, threads=2), "target": stage(10, starved_s=1)}
    assert critical_stage(statistics)["critical_stage"] == "target"


@pytest.mark.parametrize("statistics", [{}, {"read": StageStatistics()}])
def test_where_nothing_ran_no_stage_is_critical(statistics):
    assert critical_stage(statistics) == {"critical_stage": None, "critical_share": 0.0}


@pytest.mark.parametrize("slow", ["read", "target", "write"])
def test_in_a_pipeline_the_slow_stage_is_named_and_the_channels_are_counted(slow):
    def work(name):
        time.sleep(0.02 if name == slow else 0.0)

    with Pipeline("p") as pipeline:
        rows, states = pipeline.channel("rows", 2), pipeline.channel("states", 2)

        def read():
            for item in range(12):
                work("read")
                rows.put(item)

        def run():
            for item in rows:
                work("target")
                states.put(item)

        def write():
            for _ in states:
                work("write")

        pipeline.spawn("read", read, into=[rows])
        pipeline.spawn("target", run, into=[states])
        pipeline.spawn("write", write)
        pipeline.start()
    assert critical_stage(pipeline.statistics)["critical_stage"] == slow
    channels = stages_and_channels(pipeline.statistics)["channels"]
    assert {name: each["capacity"] for name, each in channels.items()} == {"rows": 2, "states": 2}
    assert all(1 <= each["depth"] <= 2 for each in channels.values())
