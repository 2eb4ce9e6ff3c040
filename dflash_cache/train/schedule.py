"""Learning-rate schedules with linear warm-up, as factors of the peak."""

import math

from dflash_cache.config import TrainConfig

WSD_DECAY_SHARE = 0.2  # of all steps, at the end


def learning_rate_factor(step: int, num_steps: int, config: TrainConfig) -> float:
    """The factor for the step numbered ``step`` (from 0) of ``num_steps``."""
    warmup = max(1, round(config.warmup * num_steps)) if config.warmup else 0
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        decay = max(1, round(WSD_DECAY_SHARE * num_steps))
        return min(1.0, (num_steps - step) / decay)
    progress = (step - warmup) / max(1, num_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))
