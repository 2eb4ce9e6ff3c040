"""What a command shows of its progress where there is no terminal."""

import io
import json
import logging
import os
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from dflash_cache.cli.display import _cursor_at_stops, _Due, _hand_over, progress_display
from dflash_cache.cli.output import Output
from dflash_cache.runs.progress import Progress
from dflash_cache.runs.snapshot import PhaseSnapshot, Snapshot
from tests.support.threads import no_thread_left

TOKENIZED = Progress(phase="tokenize", done=100, total=100, unit="%", figures={"rows": 7})
PHASE = PhaseSnapshot(
    phase="train", done=1, total=9, unit="steps", over=False, left_s=None, figures={},
    device_tokens_per_s={}, stages=(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def run(output):
    with progress_display(output) as on_progress:
        on_progress(TOKENIZED)


def test_a_line_tells_how_a_phase_ended(capsys):
    run(Output())
    assert capsys.readouterr() == ("", "tokenize: 100%  7 rows\n")


def test_quiet_shows_no_progress(capsys):
    run(Output(quiet=True))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_events_are_added_to_their_file_whatever_is_shown(tmp_path, quiet):
    events = tmp_path / "events.jsonl"
    for _ in range(2):
        run(Output(quiet=quiet, events=events))
    first, second = map(json.loads, events.read_text().splitlines())
    assert first["time"] <= second["time"]
    assert first["phases"] == [
        {
            "phase": "tokenize", "done": 100, "total": 100, "unit": "%", "over": True,
            "left_s": None, "figures": {"rows": 7}, "device_tokens_per_s": {}, "stages": [],
        }
    ]  # fmt: skip


def test_a_full_disk_under_the_events_ends_no_work(capsys, caplog):
    run(Output(events=Path("/dev/full")))
    assert capsys.readouterr().err == "tokenize: 100%  7 rows\n"
    assert "progress is not told any more: [Errno 28] No space left" in caplog.text


def test_an_error_of_the_work_passes_through(capsys):
    with pytest.raises(KeyError), progress_display(Output()):
        raise KeyError("a fault")
    assert capsys.readouterr().err == ""


def test_a_phase_is_told_of_when_it_begins_each_ten_seconds_and_at_its_end():
    due = _Due()
    told = [
        due.phases(Snapshot(elapsed_s=now_s, phases=(replace(PHASE, over=over),)))
        for now_s, over in [(0, False), (9, False), (11, False), (12, True), (30, True)]
    ]
    assert told == [["train"], [], ["train"], ["train"], []]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (Output(), ["a warning"]),
        (Output(verbose=True), ["a word", "a warning"]),
        (Output(quiet=True), []),
    ],
)
def test_log_lines_are_as_the_flags_say(capsys, output, shown):
    log = logging.getLogger("dflash_cache.runs")
    with output.logging():
        log.info("a word")
        log.warning("a warning")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == shown
    with output.logging():
        log.error("an error")
    assert "an error" in capsys.readouterr().err


def test_log_lines_follow_what_stands_for_standard_error(capsys, monkeypatch, tmp_path):
    with Output().logging(), (tmp_path / "err").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        logging.getLogger("dflash_cache").warning("to the file")
    assert (tmp_path / "err").read_text().endswith("to the file\n")


def test_handlers_that_hold_standard_error_are_handed_over_and_back():
    log, old, new = logging.getLogger("some.library"), io.StringIO(), io.StringIO()
    handler, other = logging.StreamHandler(old), logging.StreamHandler(io.StringIO())
    log.handlers = [handler, other]
    _hand_over(old, new)
    assert handler.stream is new
    assert other.stream not in (old, new)
    _hand_over(new, old)
    assert handler.stream is old
    log.handlers = []


@pytest.mark.parametrize("started", [False, True])
def test_the_cursor_is_shown_while_ctrl_z_stops_the_process(started):
    """A handler of the test's own stands for the system's, which would stop the tests."""
    hide, show, written = "\x1b[?25l", "\x1b[?25h", io.StringIO()
    live = Live(console=Console(file=written, force_terminal=True), auto_refresh=False)
    at_stop = []
    before = signal.signal(signal.SIGTSTP, lambda *_: at_stop.append(written.getvalue()))
    try:
        with _cursor_at_stops(live):
            if started:
                live.start()
            for _ in range(2):  # the second time as the first
                os.kill(os.getpid(), signal.SIGTSTP)
                assert at_stop[-1].endswith(show)
                assert written.getvalue().endswith(hide if started else show)
            live.stop()
        assert len(at_stop) == 2
        os.kill(os.getpid(), signal.SIGTSTP)
        assert len(at_stop) == 3  # the handler from before is back
    finally:
        signal.signal(signal.SIGTSTP, before)


def test_quiet_leaves_out_warnings_and_puts_the_filters_back():
    with Output(quiet=True).logging():
        warnings.warn("not shown", stacklevel=1)
    with pytest.raises(UserWarning):  # as in all tests
        warnings.warn("shown", stacklevel=1)
    assert logging.root.manager.disable == logging.NOTSET
