"""``regenerate``."""

from dflash_cache.config import RegenerateConfig

from .options import with_options
from .output import Output


@with_options(RegenerateConfig)
def command(config: RegenerateConfig, output: Output) -> None:
    """Let the target answer the prompts of chats, for tokenize."""
    from dflash_cache.runs.regenerate import regenerate

    from .display import progress_display
    from .render import print_report
    from .tokens import regenerate_tables

    with progress_display(output) as on_progress:
        report = regenerate(config, on_progress)
    print_report(report, regenerate_tables(report, config.target), as_json=output.json)
