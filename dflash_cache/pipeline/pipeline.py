"""A task group for threads: named stages, one failure stops all, leaving always joins."""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeVar

from .arrivals import Arrivals
from .channel import Cancelled, Channel
from .monitor import Monitor
from .stage import StageStatistics, begin_stage, end_stage

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class StageStuckError(RuntimeError):
    """A stage did not reach a border within the time allowed for stopping."""


class _Abortable(Protocol):
    def abort(self) -> None: ...


A = TypeVar("A", bound=_Abortable)


class Pipeline:
    """Runs stages in threads; use as a context manager and call ``start`` inside.

    The first failure of a stage, or an exception in the body, aborts every channel, so that all
    stages end at their next border. Leaving the block joins all threads and raises the original
    exception, with a note that names its stage. A stage still running ``stop_timeout_s`` seconds
    after a stop was asked for is reported by ``StageStuckError`` with its stack.
    """

    def __init__(self, name: str, *, stop_timeout_s: float = 12.0) -> None:
        self.name = name
        self.statistics: dict[str, StageStatistics] = {}
        self._stop_timeout_s = stop_timeout_s
        self.channels: list[Channel[Any]] = []  # its pools and sources too
        self._at_work: dict[threading.Thread, tuple[str, StageStatistics]] = {}
        self._abortables: list[_Abortable] = []
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._cancelled = False
        self._running: set[threading.Thread] = set()
        self._ended = threading.Condition()

    def channel(
        self,
        name: str,
        capacity: int,
        size_of: Callable[[T], int] = lambda item: 1,  # noqa: ARG005
    ) -> Channel[T]:
        return self._add(Channel(name, capacity, size_of=size_of))

    def pool(self, name: str, items: Iterable[T]) -> Channel[T]:
        """A fixed set of buffers that circulates; waiting for one counts as ``blocked``."""
        items = list(items)
        return self._add(Channel(name, len(items), items=items, get_counts_as="blocked"))

    def source(self, name: str, items: Iterable[T]) -> Channel[T]:
        """A channel that holds all of ``items`` from the start and closes after them."""
        items = list(items)
        channel = self._add(Channel(name, max(1, len(items)), items=items))
        channel.add_producer()
        channel.remove_producer()
        return channel

    def _add(self, channel: Channel[T]) -> Channel[T]:
        self.channels.append(channel)
        return self.register(channel)

    def arrivals(self, name: str, arrived: Iterable[K] = ()) -> Arrivals[K]:
        return self.register(Arrivals(name, arrived))

    def monitor(self, name: str) -> Monitor:
        return self.register(Monitor(name))

    def register(self, abortable: A) -> A:
        """Let a stop call ``abort`` of something that a stage may be waiting in."""
        with self._lock:
            self._abortables.append(abortable)
            cancelled = self._cancelled
        if cancelled:
            abortable.abort()
        return abortable

    def spawn(
        self, stage: str, work: Callable[[], None], *, into: Iterable[Channel[Any]] = ()
    ) -> None:
        """Add a thread to ``stage``; it is counted as a producer of the channels ``into``."""
        into = tuple(into)
        for channel in into:
            channel.add_producer()
        self.statistics.setdefault(stage, StageStatistics())

        def run() -> None:
            statistics = begin_stage()
            with self._lock:
                self._at_work[threading.current_thread()] = stage, statistics
            try:
                work()
            except Cancelled:
                pass
            except BaseException as error:  # noqa: BLE001  a thread's failure of any kind must reach the caller
                if not getattr(error, "__notes__", ()):  # else it came from another stage
                    error.add_note(f"raised in stage {stage!r} of pipeline {self.name!r}")
                self.cancel(error)
            finally:
                end_stage(statistics)
                with self._lock:
                    del self._at_work[threading.current_thread()]
                    self.statistics[stage].add(statistics)
                for channel in into:
                    channel.remove_producer()
                with self._ended:
                    self._running.discard(threading.current_thread())
                    self._ended.notify_all()

        name = f"{self.name}/{stage}"
        self._threads.append(threading.Thread(target=run, name=name, daemon=False))

    def start(self) -> None:
        for thread in self._threads:
            self._running.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads: this one never ran
                self._running.discard(thread)
                raise

    def cancel(self, cause: BaseException | None = None) -> None:
        """Ask every stage to stop at its next border."""
        with self._lock:
            if cause is not None:
                self._errors.append(cause)
            self._cancelled = True
            abortables = tuple(self._abortables)
        for abortable in abortables:
            abortable.abort()

    def statistics_so_far(self) -> dict[str, StageStatistics]:
        """``statistics``, with those of threads that still run; from any thread."""
        with self._lock:
            now_s = time.perf_counter()
            found = {name: each.until(now_s) for name, each in list(self.statistics.items())}
            for stage, statistics in self._at_work.values():
                found[stage].add(statistics.until(now_s))
        return found

    @property
    def failure(self) -> BaseException | None:
        """The first failure, for who waits outside the stages; None where there is none."""
        with self._lock:
            return self._errors[0] if self._errors else None

    def check(self) -> None:
        """Raise ``Cancelled`` if the pipeline is stopping: a border inside long work."""
        if self._cancelled:
            raise Cancelled(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._join()
            except BaseException as interruption:  # noqa: BLE001  a signal's: stop the stages, then pass it on
                error = interruption
        if error is not None:
            self.cancel(None if isinstance(error, Cancelled) else error)
        if self._cancelled:
            self._join(deadline=time.monotonic() + self._stop_timeout_s)
        if self._errors:
            first, *others = self._errors
            for other in others:
                first.add_note(f"then failed too: {other!r}")
            if first is not error or error_type is None:
                raise first

    def _join(self, *, deadline: float | None = None) -> None:
        """Wait until no stage runs.

        Stages say themselves that they have ended: ``Thread.join`` interrupted by a signal takes a
        running thread for a finished one (seen on Python 3.11).
        """
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._ended:
            if not self._ended.wait_for(lambda: not self._running, remaining):
                self._raise_stuck(next(iter(self._running)))
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _raise_stuck(self, thread: threading.Thread) -> NoReturn:
        frame = sys._current_frames().get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "(no stack)\n"
        raise StageStuckError(
            f"stage {thread.name!r} did not stop within {self._stop_timeout_s:g} s; "
            f"it stands at:\n{stack}"
        ) from (self._errors[0] if self._errors else None)
