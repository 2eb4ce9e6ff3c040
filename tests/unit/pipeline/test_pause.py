import pytest

from dflash_cache.pipeline import Cancelled, Pause, Pipeline
from tests.support.threads import no_thread_left


def test_a_wait_that_nobody_stops_ends():
    Pause("p").wait(0.01)


def stopped_while_a_stage_waits(ended):
    with Pipeline("test") as pipeline:
        pause = pipeline.register(Pause("p"))

        def wait():
            try:
                pause.wait(600)
            except Cancelled:
                ended.append(True)
                raise

        pipeline.spawn("wait", wait)
        pipeline.start()
        raise KeyError("a stop")


def test_a_stop_ends_a_wait_and_every_later_one():
    ended = []
    with no_thread_left(), pytest.raises(KeyError, match="a stop"):
        stopped_while_a_stage_waits(ended)
    assert ended == [True]
    pause = Pause("p")
    pause.abort()
    with pytest.raises(Cancelled):
        pause.wait(600)
