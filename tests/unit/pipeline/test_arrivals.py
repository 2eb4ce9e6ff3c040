import pytest

from dflash_cache.pipeline import Arrivals, Cancelled, Pipeline
from tests.support.threads import Call, no_thread_left, num_waiting, until


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def test_a_key_that_was_there_from_the_start_is_not_waited_for():
    arrivals = Arrivals("a", [3, 5])
    arrivals.wait(5)
    arrivals.wait(3)


def test_waiting_ends_when_the_key_arrives_and_not_with_another_key():
    arrivals = Arrivals("a")
    call = Call(lambda: arrivals.wait(7))
    until(lambda: num_waiting(arrivals) == 1)
    arrivals.add(6)
    until(lambda: num_waiting(arrivals) == 1)
    assert call.running
    arrivals.add(7)
    call.result(release=arrivals.abort)


def test_several_threads_may_wait_for_one_key():
    arrivals = Arrivals("a")
    calls = [Call(lambda: arrivals.wait("k")) for _ in range(3)]
    until(lambda: num_waiting(arrivals) == 3)
    arrivals.add("k")
    for call in calls:
        call.result(release=arrivals.abort)


def test_an_arrived_key_may_be_waited_for_again_and_added_again():
    arrivals = Arrivals("a")
    arrivals.add(1)
    arrivals.add(1)
    arrivals.wait(1)
    arrivals.wait(1)


def test_abort_wakes_every_waiting_thread():
    arrivals = Arrivals("committed")
    calls = [Call(lambda key=key: arrivals.wait(key)) for key in range(3)]
    until(lambda: num_waiting(arrivals) == 3)
    arrivals.abort()
    for call in calls:
        with pytest.raises(Cancelled, match="committed"):
            call.result()


def test_after_abort_even_an_arrived_key_is_cancelled():
    arrivals = Arrivals("a", [1])
    arrivals.abort()
    with pytest.raises(Cancelled):
        arrivals.wait(1)


def test_a_failing_stage_wakes_the_stages_that_wait_for_arrivals():
    pipeline = Pipeline("p")
    arrivals = pipeline.arrivals("a")

    def fail():
        until(lambda: num_waiting(arrivals) == 1)
        raise KeyError("lost")

    def run():
        with pipeline:
            pipeline.spawn("wait", lambda: arrivals.wait(1))
            pipeline.spawn("fail", fail)
            pipeline.start()

    with pytest.raises(KeyError, match="lost"):
        Call(run).result(release=arrivals.abort)


def test_waiting_for_an_arrival_counts_as_starved():
    with Pipeline("p") as pipeline:
        arrivals = pipeline.arrivals("a")
        pipeline.spawn("wait", lambda: arrivals.wait(1))
        pipeline.start()
        until(lambda: num_waiting(arrivals) == 1)
        arrivals.add(1)
    assert pipeline.statistics["wait"].starved_s > 0
    assert pipeline.statistics["wait"].blocked_s == 0
