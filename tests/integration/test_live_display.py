"""The live display of a real command on a pseudo-terminal."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dflash_cache import demo
from tests.support.terminal import Screen, run_on_terminal

EXTRACT = {
    "data": demo.DATA, "target": demo.TARGET, "segment-tokens": 512, "batch-tokens": 512,
    "devices": "cpu",
}  # fmt: skip
TRAIN = {
    "draft-layers": 1, "block-size": 4, "anchors": 4, "batch-size": 2, "steps": 6, "holdout": 4,
    "save-every": 3, "shuffle-segments": 2, "device": "cpu",
}  # fmt: skip


def command(name, *switches, **flags):
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return [sys.executable, "-m", "dflash_cache.cli", name, *words, *switches]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """An extraction that Ctrl-C stops, beside the other command: what takes long is starting."""
    cache = tmp_path_factory.mktemp("stopped") / "cache"
    words = command("extract", limit=600, cache=cache, **EXTRACT)
    with ThreadPoolExecutor() as threads:
        yield threads.submit(run_on_terminal, words, columns=80, interrupt_at="takes from")


def test_phases_and_stages_of_both_are_in_one_display_with_log_lines_above_it(stopped, tmp_path):
    events = tmp_path / "events.jsonl"
    folders = {"cache": tmp_path / "cache", "out": tmp_path / "run", "events": events}
    words = command(
        "both", "--overlap", "--verbose", "--no-evaluate", limit=24, **EXTRACT, **TRAIN, **folders
    )
    code, written = run_on_terminal(words, columns=100)
    screen = Screen(written)
    assert code == 0, screen.text
    assert "Traceback" not in written
    assert "\x1b[?25l" in written
    assert screen.cursor_shown
    plain = re.sub(r"\x1b\[[\d;]*m", "", written)
    for stage in ("read", "target", "write", "commit", "prefetch", "pack", "prepare", "train"):
        assert re.search(rf"\n{stage} +\d+%", plain), stage
    lines = screen.text.splitlines()
    assert max(map(len, lines)) <= 100
    bars = [number for number, line in enumerate(lines) if "━" in line and line.endswith("done")]
    assert [lines[number].split()[0] for number in bars] == ["extract", "train"]
    logged = [number for number, line in enumerate(lines) if "checkpoint of step" in line]
    assert len(logged) == 2
    assert max(logged) < min(bars)
    phases = [json.loads(line)["phases"] for line in events.read_text().splitlines()]
    assert [(each["phase"], each["over"]) for each in phases[-1]] == [
        ("extract", True),
        ("train", True),
    ]


def test_ctrl_c_leaves_the_terminal_as_it_was_and_says_how_to_go_on(stopped):
    code, written = stopped.result()
    screen = Screen(written)
    assert code == 130, screen.text
    assert "Traceback" not in written
    assert screen.cursor_shown
    assert screen.text.endswith("dflash-cache: stopped by SIGINT; the same command continues")
    assert "segments" in screen.text
