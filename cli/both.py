"""``both``."""

from collections.abc import Mapping
from typing import Any

from dflash_cache.config import BothConfig

from .options import with_options
from .output import Output

_CHOOSES_DATA = {"data", "target"}


def _preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The bundled demo's settings, when nothing says which data and target to use."""
    if _CHOOSES_DATA & given.keys():
        return {}
    from dflash_cache.runs.demo import demo_settings

    return demo_settings()


@with_options(BothConfig, _preset)
def command(config: BothConfig, output: Output) -> None:
    """Both phases; with --overlap at the same time. Without --data and --target: the demo."""
    from dflash_cache.runs.both import both

    from .display import progress_display
    from .render import print_report
    from .reports import both_tables

    with progress_display(output) as on_progress:
        report = both(config, on_progress)
    print_report(report, both_tables(report), as_json=output.json)
