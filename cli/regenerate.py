"""``regenerate``."""

from dflash_cache.config import RegenerateConfig

from .options import with_options


@with_options(RegenerateConfig)
def command(config: RegenerateConfig, as_json: bool) -> None:
    """Let the target answer the prompts of chats, for tokenize."""
    from dflash_cache.runs.regenerate import regenerate

    from .render import print_report, progress_display
    from .tokens import regenerate_tables

    with progress_display() as on_progress:
        report = regenerate(config, on_progress)
    print_report(report, regenerate_tables(report), as_json=as_json)
