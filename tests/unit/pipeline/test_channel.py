import threading
import weakref

import pytest

from dflash_cache.pipeline import Cancelled, Channel, ChannelClosed
from tests.support.threads import Call, no_thread_left, num_waiting, until


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def with_producers(channel, *, producers, items_each):
    """Threads that put ``(producer, 0)``, ``(producer, 1)``, ... and leave."""

    def produce(producer):
        try:
            for item in range(items_each):
                channel.put((producer, item))
        finally:
            channel.remove_producer()

    for _ in range(producers):
        channel.add_producer()
    return [Call(lambda producer=producer: produce(producer)) for producer in range(producers)]


def test_items_leave_in_the_order_in_which_they_came():
    channel = Channel("c", 5)
    for item in range(5):
        channel.put(item)
    assert [channel.get() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_each_producers_items_keep_their_order_among_several_producers():
    channel = Channel("c", 2)
    calls = with_producers(channel, producers=3, items_each=50)
    taken = list(channel)
    for call in calls:
        call.result()
    for producer in range(3):
        assert [item for who, item in taken if who == producer] == list(range(50))


def test_every_item_is_taken_by_exactly_one_of_several_consumers():
    channel = Channel("c", 3)
    consumers = [Call(lambda: list(channel)) for _ in range(3)]
    calls = with_producers(channel, producers=2, items_each=100)
    taken = [item for consumer in consumers for item in consumer.result(release=channel.abort)]
    for call in calls:
        call.result()
    assert sorted(taken) == [(producer, item) for producer in range(2) for item in range(100)]


def test_a_full_channel_blocks_its_producer_until_an_item_is_taken():
    channel = Channel("c", 2)
    channel.put("a")
    channel.put("b")
    call = Call(lambda: channel.put("c"))
    until(lambda: num_waiting(channel) == 1)
    assert call.running
    assert len(channel) == 2
    assert channel.get() == "a"
    call.result(release=channel.abort)
    assert [channel.get(), channel.get()] == ["b", "c"]


def test_an_empty_channel_blocks_its_consumer_until_an_item_comes():
    channel = Channel("c", 1)
    call = Call(channel.get)
    until(lambda: num_waiting(channel) == 1)
    channel.put("a")
    assert call.result(release=channel.abort) == "a"


def test_a_channel_never_holds_more_than_its_capacity():
    channel = Channel("c", 3)
    calls = with_producers(channel, producers=4, items_each=50)
    held = []
    for _ in channel:
        held.append(len(channel))
    for call in calls:
        call.result()
    assert len(held) == 200
    assert max(held) <= 3


def test_a_channel_closes_only_when_its_last_producer_leaves():
    channel = Channel("c", 4)
    channel.add_producer()
    channel.add_producer()
    channel.remove_producer()
    channel.put("late")
    channel.remove_producer()
    assert channel.get() == "late"
    with pytest.raises(ChannelClosed, match="c"):
        channel.get()


def test_closing_wakes_every_waiting_consumer():
    channel = Channel("c", 1)
    channel.add_producer()
    consumers = [Call(lambda: list(channel)) for _ in range(3)]
    until(lambda: num_waiting(channel) == 3)
    channel.remove_producer()
    assert [consumer.result(release=channel.abort) for consumer in consumers] == [[], [], []]


def test_what_was_sent_before_closing_is_still_delivered():
    channel = Channel("c", 3)
    channel.add_producer()
    for item in range(3):
        channel.put(item)
    channel.remove_producer()
    assert list(channel) == [0, 1, 2]


def test_a_channel_without_producers_stays_open():
    channel = Channel("pool", 1, items=["buffer"])
    assert channel.get() == "buffer"
    call = Call(channel.get)
    until(lambda: num_waiting(channel) == 1)
    channel.put("buffer")
    assert call.result(release=channel.abort) == "buffer"


def test_abort_wakes_every_waiting_producer_and_consumer():
    full, empty = Channel("full", 1, items=["x"]), Channel("empty", 1)
    calls = [Call(lambda: full.put("y")) for _ in range(3)] + [Call(empty.get) for _ in range(3)]
    until(lambda: num_waiting(full) == 3 and num_waiting(empty) == 3)
    full.abort()
    empty.abort()
    for call, name in zip(calls, ["full"] * 3 + ["empty"] * 3, strict=True):
        with pytest.raises(Cancelled, match=f"^{name}$"):
            call.result()


def test_abort_wakes_a_consumer_that_iterates():
    channel = Channel("c", 1)
    call = Call(lambda: list(channel))
    until(lambda: num_waiting(channel) == 1)
    channel.abort()
    with pytest.raises(Cancelled):
        call.result()


def test_an_aborted_channel_drops_what_it_holds_and_takes_nothing_more():
    channel = Channel("c", 2, items=["x"])
    channel.abort()
    assert len(channel) == 0
    with pytest.raises(Cancelled):
        channel.get()
    with pytest.raises(Cancelled):
        channel.put("y")
    assert len(channel) == 0


def test_abort_wins_over_closing():
    channel = Channel("c", 1)
    channel.add_producer()
    channel.remove_producer()
    channel.abort()
    with pytest.raises(Cancelled):
        channel.get()


def test_putting_after_the_last_producer_left_is_a_programming_error():
    channel = Channel("c", 1)
    channel.add_producer()
    channel.remove_producer()
    with pytest.raises(AssertionError, match="channel 'c': put after the last producer left"):
        channel.put("x")


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity):
    message = f"^channel 'c': capacity must be at least 1, got {capacity}$"
    with pytest.raises(ValueError, match=message):
        Channel("c", capacity)


def test_none_and_false_are_items_like_any_other():
    channel = Channel("c", 3)
    channel.add_producer()
    for item in (None, False, 0):
        channel.put(item)
    channel.remove_producer()
    assert list(channel) == [None, False, 0]


def test_an_item_that_was_taken_is_not_kept_alive():
    class Buffer:
        pass

    channel = Channel("c", 1)
    gone = threading.Event()
    buffer = Buffer()
    weakref.finalize(buffer, gone.set)
    channel.put(buffer)
    channel.get()
    del buffer
    assert gone.is_set()


def test_a_capacity_in_bytes_bounds_what_is_held_and_lets_a_larger_item_pass_alone():
    channel = Channel("c", 10, size_of=len)
    channel.put(b"123456")
    channel.put(b"1234")
    with no_thread_left():
        waiting = Call(lambda: channel.put(b"x" * 99))
        until(lambda: num_waiting(channel) == 1)
        channel.get()
        assert waiting.running
        channel.get()
        waiting.result(release=channel.abort)
    assert channel.get() == b"x" * 99
