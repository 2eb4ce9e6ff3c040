"""``report``."""

from dflash_cache.config import ReportConfig

from .options import with_options
from .output import Output


@with_options(ReportConfig)
def command(config: ReportConfig, output: Output) -> None:
    """Write a run's figures as one HTML page that needs no network."""
    from dflash_cache.report.page import report
    from dflash_cache.runs.shown import shown_bytes

    from .render import figures_table, print_report

    written = report(config)
    rows = {"page": f"{written['page']}, {shown_bytes(written['bytes'])}"}
    print_report(written, [figures_table("Report written", rows)], as_json=output.json)
