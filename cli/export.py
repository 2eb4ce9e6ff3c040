"""``export``."""

from dflash_cache.config import ExportConfig

from .options import with_options
from .output import Output


@with_options(ExportConfig)
def command(config: ExportConfig, output: Output) -> None:
    """Write a run's drafter for z-lab's package, vLLM and SGLang, or for speculators."""
    from dflash_cache.runs.export import export

    from .render import print_report
    from .reports import export_tables

    report = export(config)
    print_report(report, export_tables(report), as_json=output.json)
