import threading

import pytest

from dflash_cache.pipeline import repeating
from tests.support.threads import Call, no_thread_left, until

NEVER_S = 3600.0
OFTEN_S = 0.001


class BeatError(Exception):
    pass


def test_the_beat_is_repeated_until_the_block_ends_and_never_after():
    beats = []
    with no_thread_left():
        with repeating(lambda: beats.append(None), OFTEN_S):
            until(lambda: len(beats) >= 5)
        seen = len(beats)
    assert len(beats) == seen


def test_the_first_beat_comes_after_one_interval():
    beats = []
    with repeating(lambda: beats.append(None), NEVER_S):
        pass
    assert beats == []


def test_the_end_of_the_block_does_not_wait_for_the_next_beat():
    def block():
        with repeating(lambda: None, NEVER_S):
            pass

    Call(block).result()  # would hang


def test_the_end_of_the_block_waits_for_a_beat_under_way():
    began, go_on, ended = threading.Event(), threading.Event(), []

    def beat():
        began.set()
        go_on.wait()
        ended.append(None)

    def block():
        with repeating(beat, OFTEN_S):
            began.wait()
        return list(ended)

    call = Call(block)
    began.wait()
    assert call.running
    go_on.set()
    assert len(call.result(release=go_on.set)) >= 1


def test_an_error_of_the_beat_ends_the_beats_and_is_raised_at_the_end_of_the_block():
    beats = []

    def beat():
        beats.append(threading.current_thread())
        raise BeatError

    with no_thread_left(), pytest.raises(BeatError), repeating(beat, OFTEN_S):
        until(lambda: beats and not beats[0].is_alive())
    assert len(beats) == 1


def test_an_error_of_the_block_is_raised_before_one_of_the_beat():
    beats = []

    def beat():
        beats.append(threading.current_thread())
        raise BeatError

    def block():
        with repeating(beat, OFTEN_S):
            until(lambda: beats and not beats[0].is_alive())
            raise KeyError("the block's")

    with no_thread_left(), pytest.raises(KeyError):
        block()
