"""Reports in a reader's words."""

import io
import re

import pytest
from rich.console import Console

from dflash_cache.cli.reports import evaluate_tables, extract_tables, train_tables


def figures(length, **more):
    return {
        "acceptance_length": length,
        "lossless": 1.0,
        "mismatches": [],
        "speedup": 1.5,
        "tokens": 900,
    } | more


SHARED = {
    "prompts": 7,
    "held_out": True,
    "temperature": 0.0,
    "prompt_lookup": {"acceptance_length": 1.23, "speedup": 0.9},
}


TRAINED = {
    "steps": 9, "tokens": 90, "loss_first": 2.0, "loss_last": 1.0, "block_acceptance_length": 1.5,
    "slot_accuracy": [0.5], "wall_s": 0.2, "stages": {}, "channels": {}, "export": "run/export",
    "waiting_share": 0.0, "slow_stage": None, "critical_stage": None,
}  # fmt: skip


def shown(report, tables=evaluate_tables):
    file = io.StringIO()
    for table in tables(report):
        Console(width=200, file=file).print(table)
    return file.getvalue()


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def test_of_one_drafter_the_table_has_the_base_lines_beside_it():
    text = shown(figures(3.5, untrained={"acceptance_length": 1.01}) | SHARED)
    for words in ("the trained drafter", "3.50", "untrained", "1.01", "prompt lookup", "1.23"):
        assert words in text
    assert "category" not in text


def test_a_drafter_that_gains_nothing_over_prompt_lookup_is_told_where_to_look():
    assert "no gain" not in shown(figures(1.24) | SHARED)
    text = shown(figures(1.2) | SHARED)
    assert re.search(r"no gain\W+no more tokens a pass than prompt lookup; see docs/how-to", text)


def test_of_several_drafters_each_has_a_row_and_a_column_in_the_table_of_categories():
    def categories(code):
        found = {"code": {"acceptance_length": code, "prompts": 7, "tokens": 900}}
        return {"by_category": found}

    mismatch = {"prompt": 1, "position": 2, "gap": 0.0314}
    drafters = {
        "runs/a": figures(3.5, **categories(4.1)),
        "runs/b": figures(2.5, lossless=0.5, mismatches=[mismatch], **categories(3.2)),
    }
    text = shown({"drafters": drafters} | SHARED)
    for words in ("runs/a", "runs/b", "3.50", "2.50", "code", "4.10", "3.20", "0.500", "0.0314"):
        assert words in text


def test_one_example_of_a_drafter_is_shown_with_a_column_for_what_became_of_drafts():
    drafts = [{"id": 2, "text": " list"}, {"id": 3, "text": " [red]is"}, {"id": 4}]
    block = {"drafts": drafts, "accepted": 1, "target_token": {"id": 5, "bytes": "e4"}}
    last = {"drafts": drafts[:1], "accepted": 1, "target_token": None}
    blank = {"drafts": [], "accepted": 0, "target_token": {"id": 6, "text": "  "}}
    first = {"prompt": 3, "first_token": {"id": 9, "text": "A\n"}, "blocks": [block, blank, last]}
    text = shown(figures(3.5, examples=[first, first | {"prompt": 8}]) | SHARED)
    assert "Prompt 3, its first blocks" in text
    assert "Prompt 8" not in text
    rows = [re.split(r"\s*[│┃]", line) for line in text.splitlines()]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows if len(row) == 6]
    assert ["", "", "A↵", ""] in cells
    assert ["1 of 3", "list", "«e4»", "[red]is#4"] in cells
    assert ["0 of 0", "", "␣␣", ""] in cells  # else it would not be seen
    assert ["1 of 1", "list", "", ""] in cells


def test_sampling_shows_the_temperature_and_no_share():
    sampled = figures(2.0, lossless=None)
    del sampled["mismatches"]
    text = shown(sampled | SHARED | {"temperature": 0.7})
    assert "temperature 0.7" in text
    assert "lossless" not in text


def test_a_finished_run_says_that_nothing_was_left_to_do():
    assert "nothing was left to do" in shown(TRAINED, train_tables)
    assert "waiting for data" not in shown(TRAINED, train_tables)
    assert "dflash-cache report run," in shown(TRAINED, train_tables)
    busy = {"train": {"busy_s": 0.1, "starved_s": 0.0, "blocked_s": 0.0}}
    assert "0.2 s" in shown(TRAINED | {"stages": busy}, train_tables)


EXTRACTED = {
    "sequences": 3, "tokens": 70, "truncated": 0, "dropped": {"mask_value": 2}, "bytes_raw": 1000,
    "bytes_stored": 900, "segments_missing": 0, "wall_s": 1.5, "critical_share": 0.934,
    "stages": {"target": {"busy_s": 1.0, "starved_s": 0.0, "blocked_s": 0.5}},
    "channels": {
        "rows": {"capacity": 4, "depth": 3.25},
        "batches": {"capacity": 2_000_000_000, "depth": 1.34e7},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("target", "target, busy 93% of the time: as it should be. Only more or faster --devices"),
        ("write", "write, busy 93% of the time: the target waits for it. A faster disk, more --wr"),
        ("read", "read, busy 93% of the time: the target waits for it. A faster disk or more --re"),
    ],
)
def test_the_critical_stage_of_an_extraction_is_named_with_what_would_help(stage, words):
    text = shown(EXTRACTED | {"critical_stage": stage}, extract_tables)
    assert words in text
    assert re.search(r"rows\W+3\.2\W+4\b", text)
    assert re.search(r"batches\W+13\.4 MB\W+2\.00 GB", text)


def test_an_extraction_in_which_nothing_ran_has_no_critical_stage():
    nothing = {"critical_stage": None, "critical_share": 0.0, "stages": {}, "channels": {}}
    assert "critical" not in shown(EXTRACTED | nothing, extract_tables)


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (None, "train: as it should be. Only a faster --device would help"),
        ("prefetch", "prefetch: training waits for it. A faster disk, more --prefetch-readers"),
    ],
)
def test_the_critical_stage_of_a_training_is_named_with_what_would_help(slow, words):
    report = TRAINED | {"slow_stage": slow, "critical_stage": slow or "train"}
    assert words in shown(report, train_tables)
