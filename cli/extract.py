"""``extract``."""

from dflash_cache.config import ExtractConfig

from .options import with_options


@with_options(ExtractConfig)
def command(config: ExtractConfig, as_json: bool) -> None:
    """Phase one: run the target over a dataset and keep its hidden states in a cache."""
    from dflash_cache.runs.extract import extract

    from .render import print_report, progress_display
    from .reports import extract_tables

    with progress_display() as on_progress:
        report = extract(config, on_progress)
    print_report(report, extract_tables(report), as_json=as_json)
