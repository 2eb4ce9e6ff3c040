"""``inspect``."""

from dflash_cache.config import InspectConfig

from .options import with_options
from .output import Output


@with_options(InspectConfig)
def command(config: InspectConfig, output: Output) -> None:
    """Show what is in a cache, or in a dataset: lengths, drops, masks, sizes, who writes it."""
    from dflash_cache.runs.inspect import inspect

    from .inspection import inspect_tables
    from .render import print_report

    report = inspect(config)
    print_report(report, inspect_tables(report), as_json=output.json)
