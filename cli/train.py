"""``train``."""

from dflash_cache.config import BothConfig, TrainConfig

from .options import with_options
from .output import Output


@with_options(TrainConfig, whole=BothConfig)
def command(config: TrainConfig, output: Output) -> None:
    """Phase two: train a drafter from a finished cache."""
    from dflash_cache.runs.train import train
    from dflash_cache.train import is_first_rank

    from .display import progress_display
    from .render import print_report
    from .reports import train_tables

    with progress_display(output) as on_progress:
        report = train(config, on_progress)
    if is_first_rank():
        print_report(report, train_tables(report), as_json=output.json)
