"""Whether training had to wait for its data, and for which stage."""

from collections.abc import Mapping
from typing import Any

from dflash_cache.pipeline import StageStatistics

from .critical import critical_stage

TRAINING_STAGES = {"prefetch", "pack", "prepare", "train"}
TOLERATED_SHARE = 0.05  # a short run always waits for its first batch


def waiting(statistics: Mapping[str, StageStatistics]) -> dict[str, Any]:
    """``waiting_share`` of training's time without a batch, ``slow_stage`` and ``critical_stage``.

    The slow stage is the one of the others that worked the largest share of the run; None while
    the share of waiting is tolerated. Then training itself is the critical one.
    """
    training = statistics.get("train", StageStatistics())
    share = training.starved_s / training.alive_s if training.alive_s > 0 else 0.0
    others = {name: stage for name, stage in statistics.items() if name != "train"}
    slow = critical_stage(others)["critical_stage"] if share > TOLERATED_SHARE else None
    critical = slow or ("train" if training.alive_s > 0 else None)
    return {"waiting_share": round(share, 4), "slow_stage": slow, "critical_stage": critical}
