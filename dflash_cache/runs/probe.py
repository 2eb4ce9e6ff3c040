"""How long an extraction will take: a few batches of the plan on the real target."""

from typing import Any

import numpy as np

from dflash_cache.data import plan_batches
from dflash_cache.target import LayerCapture
from dflash_cache.types import Int64Array

from .batch_size import batch_seconds
from .preparation import Preparation


def probe(preparation: Preparation, capture: LayerCapture, batch_tokens: int) -> dict[str, Any]:
    """Run a short, a median and a long batch of the plan on ``capture``, on the first device.

    A batch takes its padded tokens times the seconds of one, which is interpolated by the length of
    its rows. Loading, reading and writing are not counted: the last two go on beside the target.

    Returns device, tokens_per_s (of one device, padding not counted), seconds_estimated (of the
    whole plan on the devices chosen) and seconds_by_devices {number of devices: seconds}.
    """
    batches = [
        np.stack([segment.row_ids[part], segment.lengths[part]], axis=1)
        for segment in preparation.plan
        for part in plan_batches(segment.lengths, batch_tokens)
    ]
    longest = np.array([rows[:, 1].max() for rows in batches])
    padded = longest * np.array([len(rows) for rows in batches])
    chosen = spread_batches(longest, padded)
    seconds = [batch_seconds(preparation, capture, batches[place]) for place in chosen.tolist()]
    token_s = np.interp(longest, longest[chosen], np.array(seconds) / padded[chosen])
    total_s = float((padded * token_s).sum())
    num_devices = len(set(preparation.devices))  # workers on one device share it
    by_devices = {str(n): round(total_s / n, 1) for n in range(1, num_devices + 1)}
    return {
        "device": preparation.devices[0],
        "tokens_per_s": round(int(preparation.survey.lengths.sum()) / total_s, 1),
        "seconds_estimated": by_devices[str(num_devices)],
        "seconds_by_devices": by_devices,
    }


def spread_batches(longest: Int64Array, padded: Int64Array) -> Int64Array:
    """Places of up to three batches of different length, the shortest first.

    The rest at a segment's end is no measure: only batches of at least half the largest size count.
    """
    full = np.flatnonzero(2 * padded >= padded.max())
    by_length = full[np.argsort(longest[full], kind="stable")]
    chosen = by_length[[0, len(by_length) // 2, -1]]
    _, first = np.unique(longest[chosen], return_index=True)
    return chosen[first]
