import pytest

from dflash_cache.pipeline import Cancelled, Monitor, Pipeline
from tests.support.threads import Call, num_waiting, until


def wait_for_key(monitor, state):
    with monitor:
        return monitor.wait_for(lambda: state.get("key"), kind="starved")


def test_a_wait_ends_with_what_the_attempt_gives_once_another_changed_the_state():
    monitor, state = Monitor("state"), {}
    call = Call(lambda: wait_for_key(monitor, state))
    until(lambda: num_waiting(monitor) == 1)
    with monitor:
        state["other"] = 1
    with monitor:
        state["key"] = 5
    assert call.result(release=monitor.abort) == 5


def test_what_was_changed_before_a_wait_is_seen_by_those_who_wait_already():
    monitor, state = Monitor("state"), {}
    call = Call(lambda: wait_for_key(monitor, state))
    until(lambda: num_waiting(monitor) == 1)

    def change_and_wait():
        with monitor:
            state["key"] = 1
            return monitor.wait_for(lambda: state.get("answer"), kind="starved")

    other = Call(change_and_wait)
    assert call.result(release=monitor.abort) == 1
    with monitor:
        state["answer"] = 2
    assert other.result(release=monitor.abort) == 2


def test_an_abort_wakes_all_who_wait_and_all_who_come_later():
    monitor = Monitor("state")
    calls = [Call(lambda: wait_for_key(monitor, {})) for _ in range(3)]
    until(lambda: num_waiting(monitor) == 3)
    monitor.abort()
    for call in calls:
        with pytest.raises(Cancelled):
            call.result()
    with pytest.raises(Cancelled):
        wait_for_key(monitor, {"key": 1})


def test_a_failing_stage_wakes_who_waits_for_the_state_of_its_pipeline():
    def fail():
        until(lambda: num_waiting(monitor) == 1)
        raise OSError("no space left")

    pipeline = Pipeline("test")
    monitor = pipeline.monitor("state")

    def run():
        with pipeline:
            pipeline.spawn("wait", lambda: wait_for_key(monitor, {}))
            pipeline.spawn("fail", fail)
            pipeline.start()

    with pytest.raises(OSError, match="no space left"):
        run()
    assert pipeline.statistics["wait"].starved_s > 0
