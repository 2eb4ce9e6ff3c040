"""The drafter's input from hidden states in their stored form.

Axes: T tokens, K context layers, H hidden size.
"""

import torch

from dflash_cache.types import DraftBatch


def features_of(batch: DraftBatch, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The states [T, K, H] of ``batch`` on ``device`` in ``dtype`` (float32 or bfloat16).

    They cross to the device as they are stored. 8-bit values are exact in both dtypes; their
    product with the float32 scale is rounded once.
    """
    states = batch.hidden_TKH.to(device).to(dtype)
    if batch.scales_TK is None:
        return states
    scales = batch.scales_TK.to(device)[..., None]
    return torch.mul(states, scales, out=torch.empty_like(states))
