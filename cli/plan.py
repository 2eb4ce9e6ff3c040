"""``plan``."""

from dflash_cache.config import BothConfig, PlanConfig

from .options import with_options
from .output import Output


@with_options(PlanConfig, whole=BothConfig)
def command(config: PlanConfig, output: Output) -> None:
    """Size an extraction before any work: rows, tokens, segments, bytes by codec, free space."""
    from dflash_cache.runs.plan import plan

    from .render import print_report
    from .reports import plan_tables

    report = plan(config)
    print_report(report, plan_tables(report, config.codec), as_json=output.json)
