"""``extract``."""

from dflash_cache.config import BothConfig, ExtractConfig

from .options import with_options
from .output import Output


@with_options(ExtractConfig, whole=BothConfig)
def command(config: ExtractConfig, output: Output) -> None:
    """Phase one: run the target over a dataset and keep its hidden states in a cache."""
    from dflash_cache.runs.extract import extract

    from .display import progress_display
    from .render import print_report
    from .reports import extract_tables

    with progress_display(output) as on_progress:
        report = extract(config, on_progress)
    print_report(report, extract_tables(report), as_json=output.json)
