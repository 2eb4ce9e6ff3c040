"""The drafter's input from hidden states in their stored form.

Axes: T tokens, K context layers, H hidden size.
"""

import torch

from dflash_cache.types import DraftBatch


def features_of(batch: DraftBatch, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The states [T, K, H] of ``batch`` on ``device`` in ``dtype`` (float32 or bfloat16).

    They cross to the device as they are stored.
    """
    scales = None if batch.scales_TK is None else batch.scales_TK.to(device)
    return restored(batch.hidden_TKH.to(device), scales, dtype)


def restored(
    hidden_TKH: torch.Tensor, scales_TK: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Stored states in ``dtype`` (float32 or bfloat16).

    8-bit values are exact in both dtypes; their product with the float32 scale is rounded once.
    """
    states = hidden_TKH.to(dtype)
    if scales_TK is None:
        return states
    return torch.mul(states, scales_TK[..., None], out=torch.empty_like(states))
