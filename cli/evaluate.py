"""``evaluate``."""

from dflash_cache.config import EvaluateConfig

from .options import with_options
from .output import Output


@with_options(EvaluateConfig)
def command(config: EvaluateConfig, output: Output) -> None:
    """Decode prompts with and without a drafter: acceptance length, losslessness, speed."""
    from dflash_cache.runs.evaluate import evaluate

    from .display import progress_display
    from .render import print_report
    from .reports import evaluate_tables

    with progress_display(output) as on_progress:
        report = evaluate(config, on_progress)
    print_report(report, evaluate_tables(report), as_json=output.json)
