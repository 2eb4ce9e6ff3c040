"""The view of a snapshot, on a console that records."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from dflash_cache.cli.snapshots import phase_line, snapshot_view
from dflash_cache.runs.progress import ChannelState
from dflash_cache.runs.snapshot import PhaseSnapshot, Snapshot, StageSnapshot


def channel(held, capacity):
    return ChannelState(held=held, capacity=capacity)


def stage(name, busy, starved, blocked, **channels):
    named = {each.replace("_", " "): state for each, state in channels.items()}
    return StageSnapshot(name=name, busy=busy, starved=starved, blocked=blocked, channels=named)


EXTRACT = PhaseSnapshot(
    phase="extract",
    done=1_204,
    total=12_040,
    unit="segments",
    over=False,
    left_s=9_000.0,
    figures={
        "rows": 90_208, "rows_planned": 902_087, "tokens": 1_234_567_890,
        "bytes_stored": 3_456_000_000_000, "free_bytes": 12_300_000_000,
        "budget_free_bytes": 45_600_000_000, "tokens_per_s": 123_456.7,
    },
    device_tokens_per_s={f"cuda:{index}": 15_432.1 for index in range(8)},
    stages=(
        stage("read", 0.01, 0.0, 0.99, plan=channel(10_836, 12_040)),
        stage(
            "target", 0.98, 0.01, 0.01,
            rows=channel(16, 16), free_writers=channel(3, 4), staging=channel(20, 20),
        ),
        stage("write", 0.3, 0.7, 0.0, staged=channel(3, 8)),
        stage("commit", 0.02, 0.98, 0.0, finished=channel(1, 4)),
    ),
)  # fmt: skip
TRAIN = PhaseSnapshot(
    phase="train",
    done=40,
    total=400,
    unit="steps",
    over=False,
    left_s=90.0,
    figures={"loss": 3.2144, "block_acceptance_length": 1.43, "tokens_per_s": 2_345.0},
    device_tokens_per_s={"cuda:8": 2_345.0},
    stages=(
        stage("pack", 0.1, 0.9, 0.0, prefetch=channel(2, 8)),
        stage("train", 0.88, 0.12, 0.0, ready=channel(0, 1), batches=channel(5e8, 1e9)),
    ),
)
BOTH = Snapshot(elapsed_s=600.0, phases=(EXTRACT, TRAIN))
WORDS = (
    "extract", "1,204/12,040 segments", "2.5 h left", "90,208/902,087 rows", "1,234,567,890 tokens",
    "123,457 tokens/s", "3.46 TB stored", "12.30 GB left on the disk",
    "45.60 GB left of --max-disk", *(f"cuda:{index} 15,432" for index in range(8)),
    "train", "40/400 steps", "90.0 s left", "loss 3.214", "block acceptance length 1.43",
    "2,345 tokens/s", "waiting for data 12%", "busy", "starved", "blocked", "plan 10,836/12,040",
    "rows 16/16", "free writers 3/4", "staging 20/20", "staged 3/8", "finished 1/4",
    "prefetch 2/8", "ready 0/1", "batches 500.0 MB of 1.00 GB",
)  # fmt: skip


def shown(snapshot, width=120):
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(snapshot_view(snapshot), crop=False)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_every_figure_is_there_and_no_line_is_wider_than_the_terminal(width):
    text = shown(BOTH, width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "…" not in text
    assert [words for words in WORDS if words not in " ".join(text.split())] == []


def test_bars_of_all_phases_begin_and_end_in_the_same_columns():
    bars = [line for line in shown(BOTH).splitlines() if "━" in line]
    assert len(bars) == 2
    assert len({(line.index("━"), line.rindex("━")) for line in bars}) == 1


def test_a_phase_that_is_over_shows_no_stages_and_no_time_left():
    over = replace(TRAIN, over=True, left_s=None, stages=())
    text = shown(replace(BOTH, phases=(over,)))
    assert "done" in text
    assert "left" not in text
    assert "busy" not in text


def test_a_single_device_has_no_line_of_its_own():
    assert "tokens/s of" not in shown(replace(BOTH, phases=(TRAIN,)))


def test_nothing_is_shown_of_a_command_that_has_not_begun():
    assert shown(Snapshot(elapsed_s=1.0, phases=())).strip() == ""


def test_a_plain_line_has_the_same_figures():
    assert phase_line(TRAIN) == (
        "train: 40/400 steps  loss 3.214  block acceptance length 1.43  2,345 tokens/s  "
        "waiting for data 12%  90.0 s left"
    )


def test_no_rate_is_shown_before_there_is_one():
    begun = replace(TRAIN, figures={"tokens_per_s": 0.0}, stages=(), left_s=None)
    assert phase_line(begun) == "train: 40/400 steps"


def test_percents_are_shown_as_such():
    reading = replace(TRAIN, phase="tokenize", unit="%", total=100, figures={"rows": 7}, stages=())
    assert phase_line(replace(reading, left_s=None)) == "tokenize: 40%  7 rows"
