"""Reports in a reader's words."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from rich.markup import escape
from rich.table import Table

from dflash_cache.runs.shown import shown_bytes, shown_piece, shown_time

from .render import channels_tables, figures_table, linked, stages_tables

Report = Mapping[str, Any]
REMEDIES = {
    "prefetch": "A faster disk, more --prefetch-readers or another --codec would help",
    "pack": "Fewer --anchors or a smaller --batch-size would help",
    "target": "More --devices would help, or extraction before training",
    "write": "A faster disk, more --writers or --codec crc32c would help",
    "read": "A faster disk or more --readers would help",
    "commit": "A faster disk or larger --segment-tokens would help",
    "choose": "A larger --max-disk would help",
}


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
        "target batches": f"{report['batches']:,} of up to {report['batch_tokens']:,} tokens, "
        f"{report['padding']:.1%} padding",
    }
    for name, size in report["bytes_estimated"].items():
        chosen = " (chosen)" if name == codec else ""
        rows[f"on disk with {name}"] = f"about {shown_bytes(size)}{chosen}"
    free = report["free_bytes"]
    rows["free"] = "no limit known" if free is None else shown_bytes(free)
    if "probe" in report:
        found = report["probe"]
        rows["a target on " + found["device"]] = f"{found['tokens_per_s']:,.0f} tokens/s"
        for count, seconds in found["seconds_by_devices"].items():
            devices = "1 device" if count == "1" else f"{count} devices"
            rows[f"time with {devices}"] = f"about {shown_time(seconds)}"
    return [figures_table("Planned", rows)]


def extract_tables(report: Report) -> list[Table]:
    rows = _rows_and_tokens(report) | {
        "hidden states": shown_bytes(report["bytes_raw"]),
        "on disk": shown_bytes(report["bytes_stored"]),
        "time since this start": _time(report),
    }
    if report["segments_missing"]:
        rows["segments not in place"] = (
            f"{report['segments_missing']:,}, by --max-disk or --share; the same command goes on "
            "with a larger budget, or another share"
        )
    if critical := report["critical_stage"]:
        rows["critical stage"] = _critical(critical, report["critical_share"])
    return [
        figures_table("Extracted", rows),
        *stages_tables("extraction", report["stages"]),
        *channels_tables("extraction", report["channels"]),
    ]


def _time(report: Report) -> str:
    return f"{report['wall_s']:.1f} s" if report["stages"] else "nothing was left to do"


def _critical(stage: str, share: float) -> str:
    """What sets the pace of an extraction, and what would help."""
    busy = f"{stage}, busy {share:.0%} of the time"
    if stage == "target":
        return f"{busy}: as it should be. Only more or faster --devices would help"
    return f"{busy}: the target waits for it. {REMEDIES.get(stage, '')}".strip()


def train_tables(report: Report) -> list[Table]:
    rows = {
        "steps": f"{report['steps']:,}",
        "tokens": f"{report['tokens']:,}",
        "loss": f"{report['loss_first']:.3f} -> {report['loss_last']:.3f}",
        "block acceptance length": f"{report['block_acceptance_length']:.2f} (held-out rows, "
        "teacher-forced)",
        "accuracy by slot": " ".join(f"{share:.2f}" for share in report["slot_accuracy"]),
        "time since this start": _time(report),
        "drafter": escape(report["export"]),
    }
    if report["stages"]:
        rows["waiting for data"] = f"{report['waiting_share']:.1%} of that time"
    if slow := report["slow_stage"]:
        words = f"{slow}: training waits for it. {REMEDIES.get(slow, '')}".strip()
        rows["critical stage"] = words
    elif report["critical_stage"]:
        rows["critical stage"] = "train: as it should be. Only a faster --device would help"
    run = escape(quote(str(Path(report["export"]).parent)))
    rows["next"] = f"dflash-cache report {run}, one page; evaluate measures it by decoding"
    return [
        figures_table("Trained", rows),
        *stages_tables("training", report["stages"]),
        *channels_tables("training", report["channels"]),
    ]


def export_tables(report: Report) -> list[Table]:
    rows = {
        "drafter": escape(report["export"]),
        "layout": report["format"],
        "of step": f"{report['step']:,}",
        "parameters": f"{report['parameters']:,}, {report['dtype']}",
        "on disk": shown_bytes(report["bytes"]),
        "next": "README.md there says how to serve it",
    }
    return [figures_table("Exported", rows)]


def evaluate_tables(report: Report) -> list[Table]:
    drafters = report.get("drafters") or {"the trained drafter": report}
    return [
        _decoded_table(report, drafters),
        *_category_tables(drafters),
        *_example_tables(drafters),
        figures_table("Checked", _checks(report, drafters)),
    ]


def _decoded_table(report: Report, drafters: Report) -> Table:
    known = "held-out prompts" if report["held_out"] else "prompts that training may have seen"
    how = f", temperature {report['temperature']:g}" if report["temperature"] else ""
    table = Table(title=f"Decoded, {known}{how}", title_justify="left")
    table.add_column("drafts from", overflow="fold")
    table.add_column("acceptance length", justify="right")
    table.add_column("speed-up, here", justify="right")
    table.add_column("what it means")
    table.add_row("nothing", "1.00", "1.00", "the target alone, a token a pass")
    meaning = "tokens that one pass of the target yields"  # said once
    for name, figures in drafters.items():
        speedup = f"{figures['speedup']:.2f}"
        table.add_row(escape(name), f"{figures['acceptance_length']:.2f}", speedup, meaning)
        meaning = ""
        if "untrained" in figures:
            length = f"{figures['untrained']['acceptance_length']:.2f}"
            table.add_row("untrained", length, "", "a drafter of that shape before training")
    lookup = report["prompt_lookup"]
    speedup = f"{lookup['speedup']:.2f}"
    words = "copying from the text so far"
    table.add_row("prompt lookup", f"{lookup['acceptance_length']:.2f}", speedup, words)
    return table


def _category_tables(drafters: Report) -> list[Table]:
    """A row for each category, a column for each drafter's acceptance length; or no table."""
    categories = next(iter(drafters.values())).get("by_category")
    if not categories:
        return []
    table = Table(title="Acceptance length by category", title_justify="left")
    table.add_column("category")
    for name in ("prompts", *drafters):
        table.add_column(escape(name), justify="right")
    for category, figures in categories.items():
        lengths = [each["by_category"][category]["acceptance_length"] for each in drafters.values()]
        cells = (f"{length:.2f}" for length in lengths)
        table.add_row(escape(category), str(figures["prompts"]), *cells)
    return [table]


def _example_tables(drafters: Report) -> list[Table]:
    """Of each drafter one example; what became of a draft is said by its column."""
    tables = []
    for name, figures in drafters.items():
        for example in figures.get("examples", [])[:1]:
            of = f", {name}" if len(drafters) > 1 else ""
            title = escape(f"Prompt {example['prompt']}, its first blocks{of}")
            table = Table(title=title, title_justify="left")
            table.add_column("accepted", justify="right")
            for heading in ("drafts accepted", "the target's token", "drafts not accepted"):
                table.add_column(heading, overflow="fold")
            table.add_row("", "", _pieces([example["first_token"]]), "")
            for block in example["blocks"]:
                accepted, drafts = block["accepted"], block["drafts"]
                own = [block["target_token"]] if block["target_token"] else []
                table.add_row(
                    f"{accepted} of {len(drafts)}",
                    *map(_pieces, (drafts[:accepted], own, drafts[accepted:])),
                )
            tables.append(table)
    return tables


def _pieces(pieces: list[Report]) -> str:
    shown = "".join(map(shown_piece, pieces))
    return escape(shown if shown.strip(" ") else "␣" * len(shown))  # else nothing would be seen


def _checks(report: Report, drafters: Report) -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, figures in drafters.items():
        of = f", {name}" if len(drafters) > 1 else ""
        if figures["lossless"] is not None:
            share = f"{figures['lossless']:.3f} (share of outputs equal to the target's own)"
            if figures["mismatches"]:
                widest = max(each["gap"] for each in figures["mismatches"])
                share += f"; widest top-2 logit gap where one differs: {widest:.4f}"
            rows[escape(f"lossless{of}")] = share
        rows[escape(f"tokens written{of}")] = f"{figures['tokens']:,}"
        if figures["acceptance_length"] <= report["prompt_lookup"]["acceptance_length"]:
            rows[escape(f"no gain{of}")] = (
                "no more tokens a pass than prompt lookup; see docs/how-to/troubleshooting.md, "
                "The drafter is no good"
            )
    return rows | {"prompts": f"{report['prompts']}"}


def verify_tables(report: Report, repair: str) -> list[Table]:
    rows = {
        "segments": f"{report['segments']:,}",
        "chunks of hidden states": f"{report['chunks']:,}",
        "segments not extracted yet": f"{report['missing']:,}",
        "faults": f"{len(report['bad'])}",
        "faults mended": f"{report['repaired']}",
    }
    if report["bad"] and not report["repaired"]:
        rows["next"] = escape(repair)
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
    return [figures_table("Merged", rows | linked(report))]


def both_tables(report: Report) -> list[Table]:
    tables = extract_tables(report["extract"]) + train_tables(report["train"])
    return tables + (evaluate_tables(report["evaluate"]) if "evaluate" in report else [])
