"""Reports in a reader's words."""

from rich.console import Console

from dflash_cache.cli.reports import train_tables

REPORT = {
    "steps": 9, "tokens": 90, "loss_first": 2.0, "loss_last": 1.0, "block_acceptance_length": 1.5,
    "slot_accuracy": [0.5], "wall_s": 0.2, "stages": {}, "export": "run/export",
}  # fmt: skip


def shown(report) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        for table in train_tables(report):
            console.print(table)
    return capture.get()


def test_a_finished_run_says_that_nothing_was_left_to_do():
    assert "nothing was left to do" in shown(REPORT)
    busy = {"train": {"busy_s": 0.1, "starved_s": 0.0, "blocked_s": 0.0}}
    assert "0.2 s" in shown(REPORT | {"stages": busy})
