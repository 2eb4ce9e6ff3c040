"""What ``tokenize`` reports, in a reader's words."""

from rich.markup import escape
from rich.table import Table

from .render import figures_table, warnings_tables
from .reports import Report


def tokenize_tables(report: Report) -> list[Table]:
    lengths = report["lengths"]
    left_out = [
        f"{rows:,} {reason}, first {report['dropped_first'][reason]}"
        for reason, rows in report["dropped"].items()
    ]
    rows = {
        "rows read": f"{report['rows']:,}",
        "sequences": f"{report['sequences']:,}",
        "tokens": f"{report['tokens']:,}",
        "lengths": f"{lengths['shortest']:,} to {lengths['longest']:,} tokens, median "
        f"{lengths['median']:,}, 95 % up to {lengths['percentile_95']:,}",
        "tokens to learn from": f"{report['mask_share']:.1%}, found by the template's "
        f"{report['mask_from']}",
        "rows left out": escape("\n".join(left_out)) or "none",
        "rows truncated": f"{report['truncated']:,}",
        "written": escape(report["out"]),
    }
    return [figures_table("Tokenized", rows), *warnings_tables(report["warnings"])]
