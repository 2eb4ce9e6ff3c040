"""Whether training had to wait for its data, and for which stage."""

from collections.abc import Mapping
from typing import Any

from dflash_cache.pipeline import StageStatistics

TRAINING_STAGES = {"prefetch", "pack", "prepare", "train"}
TOLERATED_SHARE = 0.05  # a short run always waits for its first batch


def waiting(statistics: Mapping[str, StageStatistics]) -> dict[str, Any]:
    """``waiting_share`` of training's time without a batch, ``slow_stage`` and ``critical_stage``.

    The slow stage is that with the least waiting of its own; None while the share is tolerated.
    Then training itself is the critical one.
    """
    training = statistics.get("train", StageStatistics())
    share = training.starved_s / training.alive_s if training.alive_s > 0 else 0.0
    others = {
        name: stage.busy_s / stage.alive_s
        for name, stage in statistics.items()
        if name != "train" and stage.alive_s > 0
    }
    slow = max(others, key=others.__getitem__) if others and share > TOLERATED_SHARE else None
    critical = slow or ("train" if training.alive_s > 0 else None)
    return {"waiting_share": round(share, 4), "slow_stage": slow, "critical_stage": critical}
