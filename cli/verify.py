"""``verify``."""

from dflash_cache.config import VerifyConfig

from .options import with_options
from .output import Output


@with_options(VerifyConfig)
def command(config: VerifyConfig, output: Output) -> None:
    """Check every byte of a cache; --repair makes again what is damaged. Exits 1 on damage."""
    import typer

    from dflash_cache.cache import repair_command
    from dflash_cache.runs.verify import verify

    from .display import progress_display
    from .render import print_report
    from .reports import verify_tables

    with progress_display(output) as on_progress:
        report = verify(config, on_progress)
    print_report(
        report, verify_tables(report, repair_command(str(config.cache))), as_json=output.json
    )
    if report["bad"]:
        raise typer.Exit(1)
