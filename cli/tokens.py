"""What ``regenerate`` and ``tokenize`` report, in a reader's words."""

from shlex import quote

from rich.markup import escape
from rich.table import Table

from .render import figures_table, left_out, warnings_tables
from .reports import Report


def regenerate_tables(report: Report, target: str | None) -> list[Table]:
    """``target`` is the one that answered here; None if a server did."""
    truncated = f"{report['truncated']:,}"
    rows = {
        "rows read": f"{report['rows']:,}, {report['resumed']:,} of them by earlier starts",
        "chats": f"{report['chats']:,}",
        "answers": f"{report['answers']:,}, {report['tokens']:,} tokens",
        "answers truncated": truncated + (", see --max-tokens" if report["truncated"] else ""),
        "rows left out": left_out(report),
        "written": escape(report["out"]),
    }
    if report["model"] is not None:
        rows["answered by"] = escape(report["model"])
    named = quote(target) if target else "TARGET"
    rows["next"] = escape(f"dflash-cache tokenize {quote(report['out'])} --target {named} --out D")
    return [figures_table("Regenerated", rows)]


def tokenize_tables(report: Report, target: str) -> list[Table]:
    lengths = report["lengths"]
    rows = {
        "rows read": f"{report['rows']:,}",
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "lengths": f"{lengths['shortest']:,} to {lengths['longest']:,} tokens, median "
        f"{lengths['median']:,}, 95 % up to {lengths['percentile_95']:,}",
        "tokens to learn from": f"{report['mask_share']:.1%}, found by the template's "
        f"{report['mask_from']}",
        "rows left out": left_out(report),
        "rows truncated": f"{report['truncated']:,}",
        "written": escape(report["out"]),
        "next": escape(
            f"dflash-cache inspect {quote(report['out'])} --row 0 --target {quote(target)}"
        ),
    }
    return [figures_table("Tokenized", rows), *warnings_tables(report["warnings"])]
