"""Which segment to extract next within a disk budget, and which to evict for it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from dflash_cache.cache import Budget, Cache, CacheSpec, most_segment_bytes
from dflash_cache.pipeline import Cancelled, Monitor
from dflash_cache.types import HiddenSegment, Int64Array, SegmentPlan

from .forecast import Forecast


@dataclass(frozen=True, slots=True)
class Eviction:
    """The committer shall evict segment ``index``."""

    index: int


Step = SegmentPlan | Eviction


class Room(Protocol):
    """Says what to do next, in one thread; is told what was done, in another."""

    def __iter__(self) -> Iterator[Step]: ...

    def committed(self, index: int, stored_bytes: int) -> None: ...

    def evicted(self, index: int) -> None: ...

    def free_bytes(self) -> int:
        """What is left of the budget, promised room taken off."""


class RoomUntilFull:
    """The missing segments in plan order, until the next one would not fit. Nothing is evicted."""

    def __init__(
        self, monitor: Monitor, budget: Budget, spec: CacheSpec, missing: Sequence[SegmentPlan]
    ) -> None:
        self._monitor = monitor
        self._budget = budget
        self._spec = spec
        self._missing = missing
        self._underway: set[int] = set()

    def __iter__(self) -> Iterator[Step]:
        for plan in self._missing:
            with self._monitor:
                if not self._monitor.wait_for(partial(self._fits, plan), kind="blocked"):
                    return
            yield plan

    def _fits(self, plan: SegmentPlan) -> bool | None:
        """None while a segment under way may turn out smaller than it had to be promised."""
        if self._budget.reserve(plan.index, most_segment_bytes(self._spec, plan)):
            self._underway.add(plan.index)
            return True
        return None if self._underway else False

    def committed(self, index: int, stored_bytes: int) -> None:
        with self._monitor:
            self._underway.remove(index)
            self._budget.settle(index, stored_bytes)

    def evicted(self, index: int) -> None:
        raise AssertionError(f"segment {index}: nothing is evicted here")

    def free_bytes(self) -> int:
        with self._monitor:
            return self._budget.free


class RollingRoom:
    """A cache that keeps what is needed next: extracted ahead of training, evicted behind it.

    Training reads through it. A segment that somebody waits for is extracted before all others,
    and any other that nobody waits for or reads may be evicted for it; it is read as soon as it is
    committed, and may then be evicted itself. So one segment's room is enough to get to the end,
    whatever the order of reading. Ahead of training, only segments needed later are evicted.
    """

    def __init__(self, monitor: Monitor, budget: Budget, cache: Cache) -> None:
        self._monitor = monitor
        self._budget = budget
        self._cache = cache
        self._plan: Sequence[SegmentPlan] = cache.plan
        self._forecast = Forecast(len(self._plan))
        self._present = set(cache.segments)
        self._underway: set[int] = set()  # promised, not committed yet
        self._leaving: set[int] = set()  # to be evicted
        self._readers: Counter[int] = Counter()  # who wait for a segment or read it
        self._phase: Literal["train", "measure", "end"] = "train"

    def expect(self, needs: Iterable[int]) -> None:
        """The segments that will be read, in order; before the pipeline starts."""
        self._forecast.expect(needs)

    def enter(self, phase: Literal["measure", "end"]) -> None:
        """Training's reads are over; then all are. Who waits for an earlier phase is let go."""
        with self._monitor:
            self._phase = phase

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        """Segment ``index``, once it is there; see ``Cache.read``. From any thread."""
        with self._monitor:
            phase = self._phase
            self._readers[index] += 1
        try:
            with self._monitor:
                self._monitor.wait_for(
                    lambda: index in self._present or phase != self._phase or None, kind="starved"
                )
                if index not in self._present:
                    raise Cancelled(f"reading for {phase}")
            return self._cache.read(index, row_ids)
        finally:
            with self._monitor:
                self._readers[index] -= 1
                if not self._readers[index]:
                    del self._readers[index]
                self._forecast.used(index)

    def __iter__(self) -> Iterator[Step]:
        while True:
            with self._monitor:
                step: Step | Literal["end"] = self._monitor.wait_for(
                    self._next_step, kind="blocked"
                )
            if isinstance(step, str):
                return
            yield step

    def _next_step(self) -> Step | Literal["end"] | None:
        """What to do now, noted as begun; None if there is nothing until something changes."""
        if self._phase == "end":
            return "end"
        if self._budget.free < 0:  # the budget is smaller than it was
            return self._eviction(needed_after=-1)
        wanted = self._wanted()
        if wanted is None:
            return None
        need, index = wanted
        if self._budget.reserve(index, most_segment_bytes(self._cache.spec, self._plan[index])):
            self._underway.add(index)
            return self._plan[index]
        return self._eviction(needed_after=need)

    def _wanted(self) -> tuple[float, int] | None:
        """The segment to extract next, and the number of its need; -1 if somebody waits for it."""
        there = self._present | self._underway
        waited = [index for index in self._readers if index not in there]
        if waited:
            return -1, min(waited, key=self._forecast.next_need)
        return next((need for need in self._forecast if need[1] not in there), None)

    def _eviction(self, needed_after: float) -> Eviction | None:
        """Evict what is needed last, if that is after ``needed_after``; one at a time."""
        idle = [index for index in self._present if index not in self._readers]
        if self._leaving or not idle:
            return None
        last = max(idle, key=self._forecast.next_need)
        if self._forecast.next_need(last) <= needed_after:
            return None
        self._present.remove(last)
        self._leaving.add(last)
        return Eviction(last)

    def committed(self, index: int, stored_bytes: int) -> None:
        with self._monitor:
            self._underway.remove(index)
            self._present.add(index)
            self._budget.settle(index, stored_bytes)

    def evicted(self, index: int) -> None:
        with self._monitor:
            self._leaving.remove(index)
            self._budget.release(index)

    def free_bytes(self) -> int:
        with self._monitor:
            return self._budget.free
