"""Which stage sets the pace, and what the stages looked like."""

from collections.abc import Mapping
from typing import Any

from dflash_cache.pipeline import StageStatistics


def critical_stage(statistics: Mapping[str, StageStatistics]) -> dict[str, Any]:
    """``critical_stage``, the one that all others wait for, and ``critical_share``.

    It is the stage whose threads worked for the largest share of the run; None where nothing ran.
    A stage that ended early was not waited for, however busy it was until then.
    """
    run_s = max((each.alive_s / each.num_threads for each in _ran(statistics).values()), default=0)
    shares = {
        name: each.busy_s / (each.num_threads * run_s) for name, each in _ran(statistics).items()
    }
    critical = max(shares, key=shares.__getitem__, default=None)
    share = 0.0 if critical is None else round(shares[critical], 4)
    return {"critical_stage": critical, "critical_share": share}


def stages_and_channels(statistics: Mapping[str, StageStatistics]) -> dict[str, Any]:
    """``stages`` and ``channels`` of a report."""
    return {
        "stages": {name: each.as_dict() for name, each in statistics.items()},
        "channels": {
            name: {"capacity": depth.capacity, "depth": round(depth.mean, 3)}
            for each in statistics.values()
            for name, depth in each.depths.items()
        },
    }


def _ran(statistics: Mapping[str, StageStatistics]) -> dict[str, StageStatistics]:
    return {name: each for name, each in statistics.items() if each.num_threads}
