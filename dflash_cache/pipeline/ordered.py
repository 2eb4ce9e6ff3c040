"""Work done by several threads whose results come out in the order of the input."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Generic, TypeVar

from .channel import Cancelled, Channel, ChannelClosed
from .pipeline import Pipeline

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


class OrderedResults(Generic[B]):
    """Yields results in the order of the input; ``close`` lets the workers go."""

    def __init__(self, lanes: list[Channel[B | _Failure]]) -> None:
        self._lanes = lanes
        self._turns = cycle(lanes)

    def __iter__(self) -> "OrderedResults[B]":
        return self

    def __next__(self) -> B:
        try:
            result = next(self._turns).get()
        except ChannelClosed:
            raise StopIteration from None
        if isinstance(result, _Failure):
            raise result.error
        return result

    def close(self) -> None:
        for lane in self._lanes:
            lane.abort()


def ordered_map(
    pipeline: Pipeline,
    stage: str,
    work: Callable[[A], B],
    items: Callable[[], Iterable[A]],
    *,
    workers: int,
    depth: int,
) -> OrderedResults[B]:
    """Map ``work`` over ``items`` with ``workers`` threads, each at most ``depth`` results ahead.

    ``items`` is called once a worker and must yield the same things each time: worker i takes the
    items i, i + workers, ... An error travels in the order of its item: everything before it is
    yielded first, then it is raised. Closing the results stops the workers.
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
    return OrderedResults(lanes)
