"""Reports in a reader's words."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from dflash_cache.runs.plan import shown_bytes

from .render import figures_table, stages_tables

Report = Mapping[str, Any]


def _rows_and_tokens(report: Report) -> dict[str, str]:
    dropped = ", ".join(f"{rows} {reason}" for reason, rows in report["dropped"].items())
    return {
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "rows left out": dropped or "none",
        "rows truncated": f"{report['truncated']:,}",
    }


def plan_tables(report: Report, codec: str) -> list[Table]:
    rows = _rows_and_tokens(report) | {
        "segments": f"{report['segments']:,}",
        "target batches": f"{report['batches']:,}, {report['padding']:.1%} padding",
    }
    for name, size in report["bytes_estimated"].items():
        chosen = " (chosen)" if name == codec else ""
        rows[f"on disk with {name}"] = f"about {shown_bytes(size)}{chosen}"
    free = report["free_bytes"]
    rows["free"] = "no limit known" if free is None else shown_bytes(free)
    return [figures_table("Planned", rows)]


def extract_tables(report: Report) -> list[Table]:
    rows = _rows_and_tokens(report) | {
        "hidden states": shown_bytes(report["bytes_raw"]),
        "on disk": shown_bytes(report["bytes_stored"]),
        "time": f"{report['wall_s']:.1f} s",
    }
    return [figures_table("Extracted", rows), *stages_tables("extraction", report["stages"])]


def train_tables(report: Report) -> list[Table]:
    rows = {
        "steps": f"{report['steps']:,}",
        "tokens": f"{report['tokens']:,}",
        "loss": f"{report['loss_first']:.3f} -> {report['loss_last']:.3f}",
        "block acceptance length": f"{report['block_acceptance_length']:.2f} (held-out rows, "
        "teacher-forced)",
        "accuracy by slot": " ".join(f"{share:.2f}" for share in report["slot_accuracy"]),
        "time": f"{report['wall_s']:.1f} s" if report["stages"] else "nothing was left to do",
        "drafter": escape(report["export"]),
    }
    return [figures_table("Trained", rows), *stages_tables("training", report["stages"])]


def evaluate_tables(report: Report) -> list[Table]:
    known = "held-out prompts" if report["held_out"] else "prompts that training may have seen"
    table = Table(title=f"Decoded, {known}", title_justify="left")
    table.add_column("drafts from")
    table.add_column("acceptance length", justify="right")
    table.add_column("what it means")
    meaning = "tokens that one pass of the target yields; 1.00 without drafts"
    table.add_row("the trained drafter", f"{report['acceptance_length']:.2f}", meaning)
    for name, words in (
        ("prompt_lookup", "copying from the text so far"),
        ("untrained", "the drafter before training"),
    ):
        if name in report:
            table.add_row(name.replace("_", " "), f"{report[name]['acceptance_length']:.2f}", words)
    rows = {
        "lossless": f"{report['lossless']:.3f} (share of outputs equal to the target's own)",
        "speed-up": f"{report['speedup']:.2f} times, on this machine",
        "prompts": f"{report['prompts']}",
        "tokens": f"{report['tokens']:,}",
    }
    return [table, figures_table("Checked", rows)]


def verify_tables(report: Report, cache: str) -> list[Table]:
    rows = {
        "segments": f"{report['segments']:,}",
        "chunks of hidden states": f"{report['chunks']:,}",
        "segments not extracted yet": f"{report['missing']:,}",
        "faults": f"{len(report['bad'])}",
        "faults mended": f"{report['repaired']}",
    }
    if report["bad"] and not report["repaired"]:
        rows["next"] = escape(f"dflash-cache verify --cache {cache} --repair")
    faults = Table(title="Faults", title_justify="left")
    for heading in ("what", "segment", "rows"):
        faults.add_column(heading, overflow="fold")  # a path that is cut off helps nobody
    for fault in report["bad"]:
        segment = "" if fault["segment"] is None else str(fault["segment"])
        faults.add_row(escape(fault["problem"]), segment, " ".join(map(str, fault["rows"])))
    return [figures_table("Verified", rows), *([faults] if report["bad"] else [])]


def merge_tables(report: Report) -> list[Table]:
    rows = {
        "segments": f"{report['segments']:,}",
        "segments not extracted yet": f"{report['missing']:,}",
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "datasets": f"{report['parts']}",
        "on disk": shown_bytes(report["bytes_stored"]),
    }
    return [figures_table("Merged", rows)]


def both_tables(report: Report) -> list[Table]:
    tables = extract_tables(report["extract"]) + train_tables(report["train"])
    return tables + (evaluate_tables(report["evaluate"]) if "evaluate" in report else [])
