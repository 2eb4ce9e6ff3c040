"""What a stage does with its time: busy, starved (no input) or blocked (no room)."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class StageStatistics:
    """Seconds summed over all threads of one stage; ``busy_s`` is what neither wait explains."""

    alive_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0

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


_current = threading.local()


def begin_stage() -> StageStatistics:
    """Let the calling thread's waits be counted; returns the figures that they go to."""
    _current.statistics = StageStatistics(alive_s=-time.perf_counter())
    return _current.statistics  # type: ignore[no-any-return]


def end_stage(statistics: StageStatistics) -> None:
    statistics.alive_s += time.perf_counter()
    _current.statistics = None


def wait_until(changed: threading.Condition, ready: Callable[[], bool], *, kind: str) -> None:
    """Wait on ``changed`` (held by the caller) and count the time as ``starved`` or ``blocked``.

    A thread that is no stage, such as the main thread, waits all the same and is not counted.
    """
    if ready():
        return
    began = time.perf_counter()
    try:
        changed.wait_for(ready)
    finally:
        waited_s = time.perf_counter() - began
        statistics: StageStatistics | None = getattr(_current, "statistics", None)
        if statistics is not None:
            if kind == "starved":
                statistics.starved_s += waited_s
            else:
                statistics.blocked_s += waited_s
