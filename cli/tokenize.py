"""``tokenize``."""

from dflash_cache.config import TokenizeConfig

from .options import with_options


@with_options(TokenizeConfig)
def command(config: TokenizeConfig, as_json: bool) -> None:
    """Turn chats into the tokens and loss masks that --data takes."""
    import sys

    from dflash_cache.runs.tokenize import tokenize

    from .render import print_report, progress_display
    from .tokens import tokenize_tables

    with progress_display() as on_progress:
        report = tokenize(config, on_progress)
    for warning in report["warnings"]:
        sys.stderr.write(f"WARNING: {warning}\n")
    print_report(report, tokenize_tables(report), as_json=as_json)
