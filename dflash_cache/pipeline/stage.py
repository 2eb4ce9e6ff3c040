"""What a stage does with its time: busy, starved (no input) or blocked (no room)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

WaitKind = Literal["starved", "blocked"]


@dataclass(kw_only=True, slots=True)
class Depth:
    """What a channel held when something was taken from it, in the unit of its capacity."""

    capacity: int
    num_taken: int = 0
    held: int = 0  # summed over all that was taken, each included

    @property
    def mean(self) -> float:
        return self.held / self.num_taken

    def add(self, num_taken: int, held: int) -> None:
        self.num_taken += num_taken
        self.held += held


@dataclass(kw_only=True, slots=True)
class StageStatistics:
    """Seconds summed over all threads of one stage; ``busy_s`` is what neither wait explains.

    While a thread runs or waits, its own sum is less the time at which that began, so far below
    zero: one number, which ``until`` may read at any moment. (The clock began before the thread, so
    what it waited is never more than the clock shows.)
    """

    alive_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    num_threads: int = 0
    depths: dict[str, Depth] = field(default_factory=dict)  # of channels that it took from

    @property
    def busy_s(self) -> float:
        return max(0.0, self.alive_s - self.starved_s - self.blocked_s)

    def as_dict(self) -> dict[str, float]:
        """The three figures of the JSON report, in seconds."""
        figures = {"busy_s": self.busy_s, "starved_s": self.starved_s, "blocked_s": self.blocked_s}
        return {name: round(seconds, 4) for name, seconds in figures.items()}

    def add(self, other: "StageStatistics") -> None:
        self.alive_s += other.alive_s
        self.starved_s += other.starved_s
        self.blocked_s += other.blocked_s
        self.num_threads += other.num_threads
        for name, depth in other.depths.items():
            self.note_depth(name, depth.capacity, depth.num_taken, depth.held)

    def until(self, now_s: float) -> "StageStatistics":
        """A copy in which what still goes on counts until ``now_s``; from any thread."""
        return StageStatistics(
            alive_s=_until(self.alive_s, now_s),
            starved_s=_until(self.starved_s, now_s),
            blocked_s=_until(self.blocked_s, now_s),
            num_threads=self.num_threads,
            depths={name: replace(depth) for name, depth in list(self.depths.items())},
        )

    def note_depth(self, channel: str, capacity: int, num_taken: int, held: int) -> None:
        self.depths.setdefault(channel, Depth(capacity=capacity)).add(num_taken, held)


def _until(seconds: float, now_s: float) -> float:
    return seconds + now_s if seconds < 0 else seconds


_current = threading.local()


def begin_stage() -> StageStatistics:
    """Let the calling thread's waits be counted; returns the figures that they go to."""
    _current.statistics = StageStatistics(alive_s=-time.perf_counter(), num_threads=1)
    return _current.statistics  # type: ignore[no-any-return]


def end_stage(statistics: StageStatistics) -> None:
    statistics.alive_s += time.perf_counter()
    _current.statistics = None


def note_taken(channel: str, capacity: int, held: int) -> None:
    """Count for the calling thread's stage that ``channel`` held so much when it took an item."""
    statistics: StageStatistics | None = getattr(_current, "statistics", None)
    if statistics is not None:
        statistics.note_depth(channel, capacity, 1, held)


def wait_until(changed: threading.Condition, ready: Callable[[], bool], *, kind: WaitKind) -> None:
    """Wait on ``changed`` (held by the caller) and count the time as ``starved`` or ``blocked``."""
    if not ready():
        with counted_as(kind):
            changed.wait_for(ready)


@contextmanager
def counted_as(kind: WaitKind) -> Iterator[None]:
    """Count the time of the block for the calling thread's stage, as a wait.

    A thread that is no stage, such as the main thread, is not counted. No wait within a wait.
    """
    _count(kind, -time.perf_counter())
    try:
        yield
    finally:
        _count(kind, time.perf_counter())


def _count(kind: WaitKind, seconds: float) -> None:
    statistics: StageStatistics | None = getattr(_current, "statistics", None)
    if statistics is None:
        return
    if kind == "starved":
        statistics.starved_s += seconds
    else:
        statistics.blocked_s += seconds
