"""``verify``."""

from dflash_cache.config import VerifyConfig

from .options import with_options


@with_options(VerifyConfig)
def command(config: VerifyConfig, as_json: bool) -> None:
    """Check every byte of a cache; --repair makes again what is damaged. Exits 1 on damage."""
    import typer

    from dflash_cache.runs.verify import verify

    from .render import print_report, progress_display
    from .reports import verify_tables

    with progress_display() as on_progress:
        report = verify(config, on_progress)
    print_report(report, verify_tables(report, config.cache), as_json=as_json)
    if report["bad"]:
        raise typer.Exit(1)
