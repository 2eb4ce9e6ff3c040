import threading
import time

import pytest

from dflash_cache.pipeline import Channel, Pipeline, StageStatistics
from dflash_cache.pipeline.stage import Depth, begin_stage, end_stage, wait_until
from tests.support.threads import Call, no_thread_left, num_waiting, until


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def test_a_stage_without_input_is_starved_and_its_supplier_is_not():
    pipeline = Pipeline("p")
    items = pipeline.channel("items", 1)

    def supply():
        until(lambda: num_waiting(items) == 1)
        items.put("late")

    with pipeline:
        pipeline.spawn("supply", supply, into=[items])
        pipeline.spawn("take", lambda: list(items))
        pipeline.start()
    take, supply_statistics = pipeline.statistics["take"], pipeline.statistics["supply"]
    assert take.starved_s > 0
    assert take.blocked_s == 0
    assert supply_statistics.starved_s == supply_statistics.blocked_s == 0


def test_a_stage_without_room_is_blocked_and_its_consumer_is_not():
    pipeline = Pipeline("p")
    items = pipeline.channel("items", 1)

    def take():
        until(lambda: num_waiting(items) == 1 and len(items) == 1)
        items.get()
        until(lambda: len(items) == 1)
        items.get()

    with pipeline:
        pipeline.spawn("supply", lambda: [items.put(item) for item in range(2)], into=[items])
        pipeline.spawn("take", take)
        pipeline.start()
    supply, take_statistics = pipeline.statistics["supply"], pipeline.statistics["take"]
    assert supply.blocked_s > 0
    assert supply.starved_s == 0
    assert take_statistics.starved_s == take_statistics.blocked_s == 0


def test_a_stage_that_waits_for_a_buffer_of_a_pool_is_blocked():
    pipeline = Pipeline("p")
    pool = pipeline.pool("staging", ["buffer"])
    buffer = pool.get()
    with pipeline:
        pipeline.spawn("work", pool.get)
        pipeline.start()
        until(lambda: num_waiting(pool) == 1)
        pool.put(buffer)
    assert pipeline.statistics["work"].blocked_s > 0
    assert pipeline.statistics["work"].starved_s == 0


def test_a_stage_that_never_waits_is_only_busy():
    with Pipeline("p") as pipeline:
        pipeline.spawn("work", lambda: sum(range(1000)))
        pipeline.start()
    statistics = pipeline.statistics["work"]
    assert statistics.starved_s == statistics.blocked_s == 0
    assert statistics.busy_s == statistics.alive_s > 0


def test_busy_starved_and_blocked_add_up_to_the_time_alive():
    pipeline = Pipeline("p")
    numbers, doubled = pipeline.channel("numbers", 1), pipeline.channel("doubled", 1)
    with pipeline:
        pipeline.spawn("supply", lambda: [numbers.put(n) for n in range(200)], into=[numbers])
        pipeline.spawn("double", lambda: [doubled.put(2 * n) for n in numbers], into=[doubled])
        pipeline.spawn("take", lambda: list(doubled))
        pipeline.start()
    assert set(pipeline.statistics) == {"supply", "double", "take"}
    for statistics in pipeline.statistics.values():
        parts = statistics.busy_s + statistics.starved_s + statistics.blocked_s
        assert parts == pytest.approx(statistics.alive_s)
        assert min(statistics.busy_s, statistics.starved_s, statistics.blocked_s) >= 0


def test_the_threads_of_one_stage_are_summed():
    pipeline = Pipeline("p")
    items = pipeline.channel("items", 1)
    items.add_producer()
    with pipeline:
        for _ in range(3):
            pipeline.spawn("take", lambda: list(items))
        pipeline.start()
        until(lambda: num_waiting(items) == 3)
        began = time.perf_counter()
        until(lambda: time.perf_counter() > began)
        together_s = time.perf_counter() - began
        items.remove_producer()
    assert list(pipeline.statistics) == ["take"]
    assert pipeline.statistics["take"].starved_s >= 3 * together_s


def test_a_stage_that_fails_is_counted_too():
    pipeline = Pipeline("p")
    never = pipeline.channel("never", 1)

    def fail():
        until(lambda: num_waiting(never) == 1)
        raise ValueError("broken")

    def run():
        with pipeline:
            pipeline.spawn("wait", never.get)
            pipeline.spawn("fail", fail)
            pipeline.start()

    with pytest.raises(ValueError, match="broken"):
        run()
    assert pipeline.statistics["wait"].starved_s > 0
    assert pipeline.statistics["fail"].alive_s > 0


def test_a_spawned_stage_that_was_never_started_counts_nothing():
    pipeline = Pipeline("p")
    pipeline.spawn("work", lambda: None)
    assert pipeline.statistics == {"work": StageStatistics()}


def test_waits_of_a_thread_that_is_no_stage_are_not_counted():
    channel = Channel("c", 1)
    call = Call(channel.get)
    until(lambda: num_waiting(channel) == 1)
    channel.put("x")
    assert call.result() == "x"
    statistics = begin_stage()
    end_stage(statistics)
    call = Call(lambda: channel.put("y"))
    call.result()
    assert channel.get() == "y"
    assert statistics.starved_s == statistics.blocked_s == 0


def test_a_wait_is_counted_even_if_its_condition_fails():
    changed = threading.Condition()
    answers = iter([False])

    def ready():
        try:
            return next(answers)
        except StopIteration:
            raise ValueError("no more answers") from None

    statistics = begin_stage()
    with changed, pytest.raises(ValueError, match="no more"):
        wait_until(changed, ready, kind="blocked")
    end_stage(statistics)
    assert statistics.blocked_s > 0


def test_a_condition_that_holds_already_counts_no_wait():
    statistics = begin_stage()
    changed = threading.Condition()
    with changed:
        wait_until(changed, lambda: True, kind="starved")
        wait_until(changed, lambda: True, kind="blocked")
    end_stage(statistics)
    assert statistics.starved_s == statistics.blocked_s == 0
    assert statistics.alive_s > 0


def test_statistics_of_two_threads_add_up_field_by_field():
    total = StageStatistics(alive_s=10.0, starved_s=1.0, blocked_s=2.0)
    total.add(StageStatistics(alive_s=5.0, starved_s=0.5, blocked_s=0.25))
    assert total == StageStatistics(alive_s=15.0, starved_s=1.5, blocked_s=2.25)
    assert total.busy_s == 11.25


def test_what_a_channel_held_is_counted_when_a_stage_takes_from_it():
    channel = Channel("c", 100, size_of=len)
    for item in ("aaaa", "bb", "c"):
        channel.put(item)
    channel.get()  # by no stage
    statistics = begin_stage()
    channel.get()
    channel.get()
    end_stage(statistics)
    assert statistics.depths == {"c": Depth(capacity=100, num_taken=2, held=3 + 1)}
    total = StageStatistics(depths={"other": Depth(capacity=1, num_taken=1, held=1)})
    for _ in range(2):
        total.add(statistics)
    assert total.depths["c"] == Depth(capacity=100, num_taken=4, held=8)
    assert total.depths["c"].mean == 2.0
    assert total.num_threads == 2


def test_the_report_has_the_three_figures_in_seconds():
    statistics = StageStatistics(alive_s=3.0, starved_s=0.123456, blocked_s=1.0)
    assert statistics.as_dict() == {"busy_s": 1.8765, "starved_s": 0.1235, "blocked_s": 1.0}


def test_busy_time_is_never_negative():
    assert StageStatistics(alive_s=1.0, starved_s=0.7, blocked_s=0.4).busy_s == 0.0


def test_what_goes_on_is_counted_until_now():
    pipeline = Pipeline("p")
    items = pipeline.channel("items", 3)
    with pipeline:
        items.add_producer()
        pipeline.spawn("take", lambda: list(items))
        pipeline.start()
        until(lambda: num_waiting(items) == 1)
        first = pipeline.statistics_so_far()["take"]
        until(lambda: pipeline.statistics_so_far()["take"].starved_s > first.starved_s)
        later = pipeline.statistics_so_far()["take"]
        assert later.alive_s > first.alive_s >= first.starved_s > 0
        assert (later.blocked_s, later.num_threads) == (0, 1)
        assert pipeline.statistics["take"] == StageStatistics()  # it has not ended
        items.remove_producer()
    assert pipeline.statistics_so_far() == pipeline.statistics
    assert pipeline.statistics["take"].starved_s >= later.starved_s


def test_channels_of_a_pipeline_say_what_they_hold():
    pipeline = Pipeline("p")
    sized = pipeline.channel("sized", 100, len)
    pipeline.pool("pool", "ab")
    pipeline.source("source", range(5))
    sized.put("x" * 30)
    assert [(each.name, each.held, each.capacity) for each in pipeline.channels] == [
        ("sized", 30, 100),
        ("pool", 2, 2),
        ("source", 5, 5),
    ]
