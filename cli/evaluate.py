"""``evaluate``."""

from dflash_cache.config import EvaluateConfig

from .options import with_options


@with_options(EvaluateConfig)
def command(config: EvaluateConfig, as_json: bool) -> None:
    """Decode prompts with and without a drafter: acceptance length, losslessness, speed."""
    from dflash_cache.runs.evaluate import evaluate

    from .render import print_report, progress_display
    from .reports import evaluate_tables

    with progress_display() as on_progress:
        report = evaluate(config, on_progress)
    print_report(report, evaluate_tables(report), as_json=as_json)
