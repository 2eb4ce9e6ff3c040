"""Handing segments out to actors that may be lost."""

import types

import pytest

from dflash_cache.errors import WorkerLostError
from dflash_cache.pipeline import Cancelled, Monitor, Pipeline
from dflash_cache.runs import actors
from dflash_cache.runs.actors import RESTARTS, HandOut, Placement
from tests.support.threads import no_thread_left


class StubRay:
    """Starts actors that answer nothing; notes which are started and killed."""

    def __init__(self) -> None:
        self.started, self.killed = [], []

    def remote(self, _actor):
        def start(_job):
            future = types.SimpleNamespace(add_done_callback=lambda _wake: None)
            load = types.SimpleNamespace(
                remote=lambda: types.SimpleNamespace(future=lambda: future)
            )
            self.started.append(types.SimpleNamespace(load=load))
            return self.started[-1]

        return types.SimpleNamespace(
            options=lambda **_resources: types.SimpleNamespace(remote=start)
        )

    def kill(self, actor):
        self.killed.append(actor)


def test_a_placement_restarts_a_lost_actor_some_times_and_then_gives_up(monkeypatch):
    ray = StubRay()
    monkeypatch.setattr(actors, "import_ray", lambda: ray)
    job = types.SimpleNamespace(name="actor 1 (cpu)")
    placement = Placement(Monitor("actors"), job, num_gpus=0)
    for _ in range(RESTARTS):
        lost = placement.actor
        placement.replace(lost, RuntimeError("gone"))
        placement.replace(lost, RuntimeError("gone"))  # its other segment's thread says so too
    assert len(ray.started) == RESTARTS + 1
    assert ray.killed == ray.started[:-1]
    with pytest.raises(
        WorkerLostError, match=rf"actor 1 \(cpu\) was lost {RESTARTS + 1} times.*gone"
    ):
        placement.replace(placement.actor, RuntimeError("gone"))


def test_what_comes_back_is_handed_out_first_and_awaited_to_the_end():
    hand_out = HandOut(Monitor("actors"), most=3)
    hand_out.fill([1, 2, 3])
    assert [hand_out.take(), hand_out.take()] == [1, 2]
    hand_out.give_back(1)
    assert [hand_out.take(), hand_out.take()] == [1, 3]
    for _ in range(3):
        assert not hand_out.is_over()
        hand_out.finished()
    assert hand_out.is_over()
    assert hand_out.take() is None


def test_a_stop_wakes_who_waits_for_a_segment():
    monitor = Monitor("actors")
    hand_out = HandOut(monitor, most=1)
    woken = []

    def wait():
        try:
            hand_out.take()
        except Cancelled:
            woken.append(True)
            raise

    with no_thread_left(), Pipeline("test") as pipeline:
        pipeline.register(monitor)
        pipeline.spawn("wait", wait)
        pipeline.start()
        pipeline.cancel()
    assert woken == [True]
