import threading

import pytest

from dflash_cache.pipeline import Cancelled, Pipeline, StageStuckError
from tests.support.threads import Call, no_thread_left, num_waiting, until

STAGES = ("produce", "double", "collect")
MANY = 200  # far more than the channels hold


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


class Line:
    """produce -> double -> collect over channels of two items; ``faults`` act on item 5."""

    def __init__(self, **faults):
        self.faults = faults
        self.collected = []
        self.pipeline = Pipeline("line")
        self.numbers = self.pipeline.channel("numbers", 2)
        self.doubled = self.pipeline.channel("doubled", 2)

    def fault(self, stage, item):
        if item == 5 and stage in self.faults:
            return self.faults[stage]()
        return False

    def produce(self):
        for item in range(MANY):
            if self.fault("produce", item):
                return
            self.numbers.put(item)

    def double(self):
        try:
            for item in self.numbers:
                if self.fault("double", item):
                    return
                self.doubled.put(2 * item)
        finally:  # whoever leaves lets the stages before it go
            self.numbers.abort()

    def collect(self):
        try:
            for item in self.doubled:
                if self.fault("collect", item // 2):
                    return
                self.collected.append(item)
        finally:
            self.doubled.abort()

    def run(self, body=lambda: None):
        def work():
            with self.pipeline:
                self.pipeline.spawn("produce", self.produce, into=[self.numbers])
                self.pipeline.spawn("double", self.double, into=[self.doubled])
                self.pipeline.spawn("collect", self.collect)
                self.pipeline.start()
                body()

        Call(work).result(release=self.pipeline.cancel)


def fails(error):
    def fault():
        raise error

    return fault


def run(pipeline, body=lambda: None, **stages):
    with pipeline:
        for stage, work in stages.items():
            pipeline.spawn(stage, work)
        pipeline.start()
        body()


def test_items_pass_every_stage_in_order():
    line = Line()
    line.run()
    assert line.collected == [2 * item for item in range(MANY)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [ValueError, OSError, AssertionError, SystemExit, MemoryError])
def test_a_failing_stage_stops_the_others_and_its_own_exception_is_raised(stage, kind):
    error = kind("broken")
    line = Line(**{stage: fails(error)})
    with pytest.raises(kind) as caught:
        line.run()
    assert caught.value is error
    assert f"raised in stage {stage!r} of pipeline 'line'" in error.__notes__
    assert line.collected == [2 * item for item in range(len(line.collected))]
    assert len(line.collected) <= 5


@pytest.mark.parametrize("stage", STAGES)
def test_a_slow_stage_holds_the_others_back_and_loses_nothing(stage):
    go = threading.Event()
    line = Line(**{stage: lambda: not go.wait(20)})

    def body():
        if stage == "produce":  # it delivers 0 to 4, and then the others starve
            until(lambda: num_waiting(line.doubled) == 1 and num_waiting(line.numbers) == 1)
        else:  # the producer, at the latest, has no room
            until(lambda: num_waiting(line.numbers) == 1 and len(line.numbers) == 2)
        go.set()

    line.run(body)
    assert line.collected == [2 * item for item in range(MANY)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_stops_early_and_aborts_its_input_ends_the_line_without_an_error(stage):
    line = Line(**{stage: lambda: True})
    line.run()
    assert line.collected == [0, 2, 4, 6, 8]


def test_with_several_failures_the_first_is_raised_and_the_others_are_noted():
    first, second = ValueError("first"), OSError("second")

    def fail_afterwards():
        try:
            gate.get()
        except Cancelled:
            raise second from None

    pipeline = Pipeline("p")
    gate = pipeline.channel("gate", 1)

    def fail_first():
        until(lambda: num_waiting(gate) == 1)
        raise first

    with pytest.raises(ValueError, match="first") as caught:
        run(pipeline, one=fail_first, two=fail_afterwards)
    assert caught.value is first
    assert first.__notes__ == [
        "raised in stage 'one' of pipeline 'p'",
        "then failed too: OSError('second')",
    ]
    assert second.__notes__ == ["raised in stage 'two' of pipeline 'p'"]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_body_stops_the_stages_and_is_raised_itself(kind):
    error = kind("in the body")
    line = Line()
    never = line.pipeline.channel("never", 1)
    line.faults = {"collect": never.get}

    def body():
        until(lambda: num_waiting(never) == 1)
        raise error

    with pytest.raises(kind) as caught:
        line.run(body)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert line.collected == [0, 2, 4, 6, 8]


def test_a_body_that_waits_for_a_failing_stage_raises_the_stages_exception():
    pipeline = Pipeline("p")
    results = pipeline.channel("results", 1)

    def work():
        with pipeline:
            pipeline.spawn("fail", fails(ValueError("broken")), into=[results])
            pipeline.start()
            list(results)

    with pytest.raises(ValueError, match="broken"):
        Call(work).result(release=pipeline.cancel)


def test_an_exception_in_the_body_before_the_start_is_raised_and_nothing_runs():
    ran = []
    pipeline = Pipeline("p")
    pipeline.spawn("s", lambda: ran.append(1))
    with pytest.raises(RuntimeError, match="early"), pipeline:
        raise RuntimeError("early")
    assert ran == []


def test_a_pipeline_that_is_asked_to_stop_ends_without_an_error():
    line = Line()
    line.faults = {"collect": line.pipeline.cancel}
    line.run()
    assert len(line.collected) < MANY


def test_check_raises_in_long_work_once_the_pipeline_is_stopping():
    reached = []

    def work():
        pipeline.check()
        reached.append("before")
        pipeline.cancel()
        pipeline.check()
        reached.append("after")

    with Pipeline("p") as pipeline:
        pipeline.spawn("long", work)
        pipeline.start()
    assert reached == ["before"]


def test_leaving_the_block_waits_for_every_stage():
    go, ended = threading.Event(), []
    pipeline = Pipeline("p")

    def work():
        go.wait(20)
        ended.append(threading.current_thread().name)

    with pipeline:
        pipeline.spawn("slow", work)
        pipeline.spawn("slow", work)
        pipeline.start()
        go.set()
    assert ended == ["p/slow", "p/slow"]


def test_a_channel_closes_after_the_last_thread_of_the_stage_that_fills_it():
    with Pipeline("p") as pipeline:
        plans = pipeline.source("plans", range(20))
        results = pipeline.channel("results", 1)
        collected = []
        for _ in range(3):
            pipeline.spawn("work", lambda: [results.put(plan) for plan in plans], into=[results])
        pipeline.spawn("collect", lambda: collected.extend(results))
        pipeline.start()
    assert sorted(collected) == list(range(20))


@pytest.mark.parametrize("items", [[], [1], [1, 2, 3]])
def test_a_source_yields_its_items_and_closes(items):
    assert list(Pipeline("p").source("s", iter(items))) == items


def test_a_pool_circulates_a_fixed_set_of_buffers():
    pipeline = Pipeline("p")
    pool = pipeline.pool("staging", ["a", "b"])
    assert (pool.get(), pool.get()) == ("a", "b")
    call = Call(pool.get)
    until(lambda: num_waiting(pool) == 1)
    pool.put("a")
    assert call.result(release=pipeline.cancel) == "a"


def test_a_channel_made_after_the_stop_is_aborted_too():
    pipeline = Pipeline("p")
    pipeline.cancel()
    late = pipeline.channel("late", 1)
    with pytest.raises(Cancelled):
        Call(late.get).result(release=late.abort)


def test_a_stage_that_does_not_stop_is_named_with_its_stack():
    release, standing = threading.Event(), threading.Event()

    def stand_outside_any_channel():
        standing.set()
        release.wait(20)

    def stop():
        standing.wait(20)
        raise RuntimeError("stop")

    try:
        with pytest.raises(StageStuckError) as caught:
            run(Pipeline("p", stop_timeout_s=0.05), stop, stubborn=stand_outside_any_channel)
    finally:
        release.set()
        until(lambda: all(t.name != "p/stubborn" for t in threading.enumerate()))
    message = str(caught.value)
    assert message.startswith("stage 'p/stubborn' did not stop within 0.05 s; it stands at:\n")
    assert "in stand_outside_any_channel" in message
    assert "release.wait(20)" in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_stages_that_stop_in_time_are_not_called_stuck():
    pipeline = Pipeline("p", stop_timeout_s=20)
    channel = pipeline.channel("c", 1)
    with pytest.raises(RuntimeError, match="stop"):
        run(pipeline, fails(RuntimeError("stop")), waits=channel.get)
