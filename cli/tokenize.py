"""``tokenize``."""

from dflash_cache.config import TokenizeConfig

from .options import with_options
from .output import Output


@with_options(TokenizeConfig)
def command(config: TokenizeConfig, output: Output) -> None:
    """Turn chats into the tokens and loss masks that --data takes."""
    import sys

    from dflash_cache.runs.tokenize import tokenize

    from .display import progress_display
    from .render import print_report
    from .tokens import tokenize_tables

    with progress_display(output) as on_progress:
        report = tokenize(config, on_progress)
    for warning in () if output.quiet else report["warnings"]:
        sys.stderr.write(f"WARNING: {warning}\n")
    print_report(report, tokenize_tables(report, config.target), as_json=output.json)
