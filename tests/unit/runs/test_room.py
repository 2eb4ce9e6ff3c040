"""What is extracted and evicted when, without any target or disk."""

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from dflash_cache.cache import Budget, most_segment_bytes
from dflash_cache.pipeline import Cancelled, Monitor
from dflash_cache.runs.room import Eviction, RollingRoom, RoomUntilFull
from dflash_cache.types import SegmentPlan
from tests.support import caches
from tests.support.threads import Call, num_waiting, until

SPEC = replace(caches.SPEC, hidden_size=128)  # 1024 bytes a token
SEGMENT_BYTES = most_segment_bytes(
    SPEC, SegmentPlan(index=0, row_ids=np.arange(2), lengths=np.full(2, 50))
)


class FakeCache:
    """Segments that are read at once and keep nothing."""

    def __init__(self, num_segments: int, present=()):
        rows, lengths = np.arange(2), np.full(2, 50)
        self.spec = SPEC
        self.plan = [
            SegmentPlan(index=index, row_ids=rows, lengths=lengths) for index in range(num_segments)
        ]
        self.segments = dict.fromkeys(present)

    def read(self, index, _row_ids=None):
        return index


def make_parts(num_segments, slots, present=()):
    monitor = Monitor("disk budget")
    budget = Budget(slots * SEGMENT_BYTES, 0, dict.fromkeys(present, SEGMENT_BYTES))
    return monitor, budget, FakeCache(num_segments, present)


def until_full(num_segments, slots, present=()):
    monitor, budget, cache = make_parts(num_segments, slots, present)
    missing = [plan for plan in cache.plan if plan.index not in present]
    return RoomUntilFull(monitor, budget, SPEC, missing), monitor


def rolling(needs, num_segments, slots, present=()):
    monitor, budget, cache = make_parts(num_segments, slots, present)
    room = RollingRoom(monitor, budget, cache)
    room.expect(needs)
    return room, monitor


def done(room, step):
    """Do ``step`` at once; returns it in short."""
    if isinstance(step, Eviction):
        room.evicted(step.index)
        return f"evict {step.index}"
    room.committed(step.index, SEGMENT_BYTES)
    return f"extract {step.index}"


def take(room, count):
    return [done(room, step) for step in islice(room, count)]


def test_segments_are_extracted_in_the_order_of_need_and_evicted_only_behind_it():
    room, monitor = rolling([2, 0, 1, 2], num_segments=3, slots=2)
    assert take(room, 2) == ["extract 2", "extract 0"]
    call = Call(lambda: take(room, 2))  # both are needed before segment 1
    until(lambda: num_waiting(monitor) == 1)
    room.read(2)
    assert call.result(release=monitor.abort) == ["evict 2", "extract 1"]


def test_the_segment_that_is_needed_last_is_evicted_first():
    room, _ = rolling([0, 1, 2, 3, 1, 2, 0], num_segments=4, slots=3)
    assert take(room, 3) == ["extract 0", "extract 1", "extract 2"]
    for index in (0, 1, 2):
        room.read(index)
    assert take(room, 2) == ["evict 0", "extract 3"]


def test_segments_in_place_at_the_start_count_and_are_used():
    room, _ = rolling([0, 1, 2], num_segments=4, slots=2, present=(1, 3))
    assert take(room, 2) == ["evict 3", "extract 0"]


def test_what_somebody_waits_for_comes_first_and_may_take_the_place_of_what_is_needed_sooner():
    room, monitor = rolling([0, 1, 2], num_segments=4, slots=1)
    assert take(room, 1) == ["extract 0"]
    reader = Call(lambda: room.read(3))  # which no forecast knew of
    until(lambda: num_waiting(monitor) == 1)
    assert take(room, 2) == ["evict 0", "extract 3"]
    assert reader.result(release=monitor.abort) == 3


def test_a_folder_above_the_budget_is_brought_down_before_all_else():
    room, _ = rolling([0, 1, 2, 3], num_segments=4, slots=2, present=(0, 1, 2, 3))
    assert take(room, 2) == ["evict 3", "evict 2"]


def test_a_reader_of_training_is_let_go_when_only_held_out_rows_are_still_read():
    room, monitor = rolling([0], num_segments=2, slots=1)
    call = Call(lambda: room.read(1))
    until(lambda: num_waiting(monitor) == 1)
    room.enter("measure")
    with pytest.raises(Cancelled):
        call.result(release=monitor.abort)
    room.enter("end")
    assert take(room, 5) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_any_number_of_readers_in_any_order_get_to_their_end(slots, seed):
    rng = random.Random(seed)
    needs = [index for _ in range(4) for index in rng.sample(range(8), 8)]
    forecast = needs if seed % 2 else rng.sample(needs, len(needs))  # right, or wrong
    room, monitor = rolling(forecast, num_segments=8, slots=slots)
    steps = Call(lambda: [done(room, step) for step in room])
    num_readers = rng.choice([1, 2, 3])
    readers = [
        Call(lambda first=first: [room.read(index) for index in needs[first::num_readers]])
        for first in range(num_readers)
    ]
    for first, reader in enumerate(readers):
        assert reader.result(release=monitor.abort) == needs[first::num_readers]
    room.enter("end")
    history = steps.result(release=monitor.abort)
    extracted = sum(step.startswith("extract") for step in history)
    assert extracted - sum(step.startswith("evict") for step in history) <= slots
    assert extracted >= 8


def test_without_eviction_segments_come_in_plan_order_until_one_might_not_fit():
    room, _ = until_full(4, slots=2, present=(1,))
    assert take(room, 9) == ["extract 0"]


def test_the_end_waits_for_segments_under_way_that_may_turn_out_smaller():
    room, monitor = until_full(3, slots=2)
    steps = iter(room)
    assert [next(steps).index, next(steps).index] == [0, 1]
    call = Call(lambda: next(steps).index)
    until(lambda: num_waiting(monitor) == 1)
    room.committed(0, SEGMENT_BYTES // 2)
    until(lambda: num_waiting(monitor) == 1)
    room.committed(1, SEGMENT_BYTES // 2)
    assert call.result(release=monitor.abort) == 2
