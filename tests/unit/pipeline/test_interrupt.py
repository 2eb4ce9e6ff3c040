import os
import signal
import threading
import time

import pytest

from dflash_cache.pipeline import Channel, Interrupted, Pipeline, stop_on_signals
from tests.support.threads import Call, no_thread_left, num_waiting, until

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def send(number):
    os.kill(os.getpid(), number)


def interrupted_by(number):
    with stop_on_signals():
        send(number)
        Channel("c", 1).get()  # the signal arrives here at the latest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_raised_with_its_name_and_exit_code(number, code):
    with pytest.raises(Interrupted) as caught:
        interrupted_by(number)
    assert str(caught.value) == number.name
    assert caught.value.exit_code == code


def test_an_error_handler_does_not_take_an_interruption():
    def careless():
        try:
            interrupted_by(signal.SIGINT)
        except Exception:  # noqa: BLE001  the point of this test
            return

    with pytest.raises(Interrupted):
        careless()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_where_python_cannot_raise_is_not_lost(number):
    class Dying:
        def __del__(self):
            send(number)
            threading.Event().wait(0.1)  # the signal arrives in here, where errors are ignored

    def die_and_wait():
        with stop_on_signals():
            Dying()
            Channel("c", 1).get()

    with pytest.raises(Interrupted) as caught:
        die_and_wait()
    assert str(caught.value) == number.name
    until(lambda: not any(isinstance(each, threading.Timer) for each in threading.enumerate()))


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_does_not_tear_the_stop(first, second):
    saved = []

    def stop_in_the_middle():
        with stop_on_signals():
            try:
                send(first)
                Channel("c", 1).get()
            finally:
                send(second)
                saved.append("checkpoint")

    with pytest.raises(Interrupted) as caught:
        stop_in_the_middle()
    assert str(caught.value) == first.name
    assert saved == ["checkpoint"]


def test_the_handlers_that_were_there_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_on_signals():
        inside = [signal.getsignal(number) for number in SIGNALS]
        assert inside != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(Interrupted):
        interrupted_by(signal.SIGTERM)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_each_use_takes_a_signal_anew():
    for _ in range(2):
        with pytest.raises(Interrupted):
            interrupted_by(signal.SIGINT)


def run_interrupted(number, pipeline, body):
    with stop_on_signals(), pipeline:
        pipeline.start()
        body(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_pipeline_is_joined_stops_its_stages(number):
    pipeline = Pipeline("p")
    never = pipeline.channel("never", 1)
    for _ in range(2):
        pipeline.spawn("wait", never.get)
    sender = Call(lambda: (until(lambda: num_waiting(never) == 2), send(number)))
    with pytest.raises(Interrupted) as caught:
        run_interrupted(number, pipeline, lambda _: None)
    sender.result()
    assert str(caught.value) == number.name


def test_a_signal_in_the_body_stops_the_stages_at_their_next_border():
    pipeline = Pipeline("p")
    numbers, saved = pipeline.channel("numbers", 1), []

    def supply():
        try:
            for number in range(1000):
                numbers.put(number)
        finally:
            saved.append("what was done")

    pipeline.spawn("supply", supply, into=[numbers])

    def body(number):
        until(lambda: num_waiting(numbers) == 1)
        send(number)
        Channel("c", 1).get()

    with pytest.raises(Interrupted):
        run_interrupted(signal.SIGINT, pipeline, body)
    assert saved == ["what was done"]


def test_a_signal_while_a_stage_works_waits_for_the_stage_before_it_leaves():
    """``Thread.join`` cut short by a signal would take the running stage for an ended one."""
    steps = []
    running = threading.Event()

    def work():
        running.set()
        time.sleep(1.0)
        steps.append("stage ended")

    def interrupt():
        running.wait()
        time.sleep(0.2)  # the main thread is waiting for the stage by now
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)

    def run():
        with stop_on_signals(), Pipeline("p") as pipeline:
            pipeline.spawn("work", work)
            pipeline.start()
            helper.start()

    with pytest.raises(Interrupted):
        run()
    steps.append("left")
    helper.join()
    assert steps == ["stage ended", "left"]
