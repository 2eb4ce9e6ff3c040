"""``merge``."""

from dflash_cache.config import MergeConfig

from .options import with_options
from .output import Output


@with_options(MergeConfig)
def command(config: MergeConfig, output: Output) -> None:
    """Make one cache of several: of different rows, or shares extracted on different machines."""
    from dflash_cache.runs.merge import merge

    from .display import progress_display
    from .render import print_report
    from .reports import merge_tables

    with progress_display(output) as on_progress:
        report = merge(config, on_progress)
    print_report(report, merge_tables(report), as_json=output.json)
