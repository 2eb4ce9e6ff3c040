"""Work done by several threads whose results come out in the order of the input."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import TypeVar

from .channel import Cancelled, Channel, ChannelClosed
from .pipeline import Pipeline

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


def ordered_map(
    pipeline: Pipeline,
    stage: str,
    work: Callable[[A], B],
    items: Callable[[], Iterable[A]],
    *,
    workers: int,
    depth: int,
) -> Generator[B, None, None]:
    """Map ``work`` over ``items`` with ``workers`` threads, each at most ``depth`` results ahead.

    ``items`` is called once a worker and must yield the same things each time: worker i takes the
    items i, i + workers, ... An error travels in the order of its item: everything before it is
    yielded first, then it is raised. Closing the generator stops the workers.
    """
    lanes: list[Channel[B | _Failure]] = [
        pipeline.channel(f"{stage}-{i}", depth) for i in range(workers)
    ]

    def fill(lane_index: int) -> None:
        lane = lanes[lane_index]
        try:
            for item in islice(items(), lane_index, None, workers):
                lane.put(work(item))
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001  raised again by the consumer, in its place
            error.add_note(f"raised in stage {stage!r} of pipeline {pipeline.name!r}")
            lane.put(_Failure(error))

    for index, lane in enumerate(lanes):
        pipeline.spawn(stage, partial(fill, index), into=[lane])
    return _take_turns(lanes)


def _take_turns(lanes: list[Channel[B | _Failure]]) -> Generator[B, None, None]:
    try:
        for lane in cycle(lanes):
            result = lane.get()
            if isinstance(result, _Failure):
                raise result.error
            yield result
    except ChannelClosed:
        return
    finally:  # a consumer that leaves early lets the workers go
        for lane in lanes:
            lane.abort()
