"""Reports on the terminal, on standard output."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dflash_cache.runs.shown import shown_held


def print_report(report: Mapping[str, Any], tables: list[Table], *, as_json: bool) -> None:
    """The report as tables for a reader, or as one JSON line for a script."""
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
        return
    console = Console(emoji=False)  # :x: of a text stays what it is
    for table in tables:
        console.print(table)


def warnings_tables(warnings: Sequence[str]) -> list[Table]:
    """A loud table, or none."""
    if not warnings:
        return []
    table = Table(title="WARNING", title_justify="left", style="bold red", show_header=False)
    table.add_column(overflow="fold")
    for warning in warnings:
        table.add_row(escape(warning))
    return [table]


def linked(report: Mapping[str, Any]) -> dict[str, str]:
    """A row for the segments whose states lie in other caches, or none."""
    lines = [f"{segments:,} in {folder}" for folder, segments in report["linked"].items()]
    return {"linked segments": escape("\n".join(lines))} if lines else {}


def left_out(report: Mapping[str, Any]) -> str:
    """Rows left out, by reason, with the first of each."""
    lines = [
        f"{rows:,} {reason}, first {report['dropped_first'][reason]}"
        for reason, rows in report["dropped"].items()
    ]
    return escape("\n".join(lines)) or "none"


def figures_table(title: str, rows: Mapping[str, str | Text]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # a long value is shown whole
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def stages_tables(phase: str, stages: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """Seconds of each stage, and which one the others wait for; none where nothing ran."""
    if not stages:
        return []
    table = Table(
        title=f"Stages of {phase} since this start, thread seconds",
        title_justify="left",
    )
    for heading in ("stage", "busy", "starved (no input)", "blocked (no room)"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for name, seconds in stages.items():
        cells = (seconds["busy_s"], seconds["starved_s"], seconds["blocked_s"])
        table.add_row(name, *(f"{cell:.1f}" for cell in cells))
    return [table]


def channels_tables(phase: str, channels: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """How full each channel was: near its capacity, its reader is slow; near 0, its writer."""
    if not channels:
        return []
    table = Table(
        title=f"Channels of {phase}, what they held when read",
        title_justify="left",
    )
    for heading in ("channel", "mean", "room for"):
        table.add_column(heading, justify="left" if heading == "channel" else "right")
    for name, figures in sorted(channels.items()):
        depth, capacity = round(figures["depth"], 1), int(figures["capacity"])
        table.add_row(name, shown_held(depth, capacity), shown_held(capacity, capacity))
    return [table]
