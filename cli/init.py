"""``init``."""

from dflash_cache.config import InitConfig

from .options import with_options
from .output import Output


@with_options(InitConfig)
def command(config: InitConfig, output: Output) -> None:
    """Write a commented settings file to start from."""
    from dflash_cache.runs.init import init

    from .render import figures_table, print_report

    report = init(config)
    rows = {"edit": report["file"], "then": report["command"]}
    print_report(report, [figures_table("Settings written", rows)], as_json=output.json)
