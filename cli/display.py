"""A command's progress, as it goes on: live on a terminal, in plain lines elsewhere."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from io import RawIOBase
from types import FrameType
from typing import TextIO

from rich.console import Console
from rich.live import Live

from dflash_cache.pipeline import repeating
from dflash_cache.runs.progress import OnProgress, ignore
from dflash_cache.runs.snapshot import Snapshot
from dflash_cache.runs.watch import Watch

from .output import Output
from .snapshots import phase_line, snapshot_view

REFRESH_S = 0.5
LINE_EVERY_S = 10.0

Show = Callable[[Snapshot, list[str]], None]  # a snapshot, and the phases that are due
log = logging.getLogger(__name__)


@contextmanager
def progress_display(output: Output) -> Iterator[OnProgress]:
    """Show what the block says of its progress, and write it to the file of ``--events``."""
    watch = Watch()
    with ExitStack() as closing:
        shows: list[Show] = []
        if output.events is not None:
            # Without a buffer, which would have to be written when the file is closed.
            file = closing.enter_context(output.events.open("ab", buffering=0))
            shows.append(partial(_write_event, file))
        if not output.quiet:
            console = Console(stderr=True, emoji=False)
            if console.is_interactive:
                live = Live(
                    console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
                )
                shows.append(closing.enter_context(_live_view(live)))
                closing.enter_context(_cursor_at_stops(live))
            else:
                shows.append(_write_lines)

        if not shows:
            yield ignore
            return

        due = _Due()

        def show() -> None:
            snapshot = watch.snapshot()
            phases = due.phases(snapshot)
            for each in list(shows):
                try:
                    each(snapshot, phases)
                except OSError as error:  # the work goes on without it
                    shows.remove(each)
                    log.warning("progress is not told any more: %s", error)

        with repeating(show, REFRESH_S):
            yield watch
        show()  # how it ended


class _Due:
    """Which phases are to be told of: new ones, each now and then, and each at its end."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, bool]] = {}  # by phase, when, and whether it was over

    def phases(self, snapshot: Snapshot) -> list[str]:
        due = []
        for phase in snapshot.phases:
            told_s, was_over = self._told.get(phase.phase, (-LINE_EVERY_S, False))
            late = snapshot.elapsed_s - told_s >= LINE_EVERY_S
            if phase.over != was_over or (late and not phase.over):
                self._told[phase.phase] = snapshot.elapsed_s, phase.over
                due.append(phase.phase)
        return due


def _write_lines(snapshot: Snapshot, due: list[str]) -> None:
    """A line for each phase that is due, on standard error."""
    for phase in snapshot.phases:
        if phase.phase in due:
            sys.stderr.write(f"{phase_line(phase)}\n")
    sys.stderr.flush()


def _write_event(file: RawIOBase, snapshot: Snapshot, due: list[str]) -> None:
    """The snapshot as a JSON line whenever a phase is due."""
    if due:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **asdict(snapshot)}) + "\n"
        file.write(line.encode())


@contextmanager
def _live_view(live: Live) -> Iterator[Show]:
    """One display, from the first phase on: what comes before, downloads, has bars of its own."""
    real, closed = sys.stderr, False
    proxy = real  # which the display puts in its place

    def show(snapshot: Snapshot, _due: list[str]) -> None:
        nonlocal proxy
        if not snapshot.phases or closed:
            return
        if not live.is_started:
            live.start()
            proxy = sys.stderr
            _hand_over(real, proxy)
        live.update(snapshot_view(snapshot), refresh=True)

    try:
        yield show
    finally:
        closed = True
        try:
            live.stop()
        finally:
            live.console.show_cursor(True)  # whatever a signal left undone
            _hand_over(proxy, real)


@contextmanager
def _cursor_at_stops(live: Live) -> Iterator[None]:
    """Show the cursor while Ctrl-Z stops the process. The next refresh draws the display again."""

    def stop(number: int, _frame: FrameType | None) -> None:
        live.console.show_cursor(True)
        signal.signal(number, before)
        os.kill(os.getpid(), number)  # returns once the process goes on
        signal.signal(number, stop)
        live.console.show_cursor(not live.is_started)

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def _hand_over(old: TextIO, new: TextIO) -> None:
    """Let log handlers that write to ``old`` write to ``new``: above the display, or past it."""
    if old is new:
        return
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            # Some look for standard error themselves, each time; those need nothing.
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)
