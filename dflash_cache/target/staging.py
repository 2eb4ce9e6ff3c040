"""Where a batch's hidden states land on the host, in the form in which they are stored.

Axes: T tokens, K context layers, H hidden size.
"""

from dataclasses import dataclass

import torch

from dflash_cache.cache import CacheSpec
from dflash_cache.types import Array

from .model import as_array
from .quantization import quantize


@dataclass(frozen=True, kw_only=True, slots=True)
class StagingBuffer:
    """Room for the longest batch; a batch fills its first tokens."""

    hidden_TKH: torch.Tensor  # float32, bfloat16 or, with scales, float8_e4m3fn
    scales_TK: torch.Tensor | None  # float32

    @classmethod
    def allocate(cls, spec: CacheSpec, num_tokens: int, *, pinned: bool) -> "StagingBuffer":
        """``pinned`` where a CUDA device copies into it."""
        shape = (num_tokens, spec.num_states, spec.hidden_size)
        dtype = getattr(torch, spec.logical_dtype)
        return cls(
            hidden_TKH=torch.empty(shape, dtype=dtype, pin_memory=pinned),
            scales_TK=torch.empty(shape[:2], pin_memory=pinned) if spec.quantized else None,
        )

    def fill(self, states_TKH: torch.Tensor) -> None:
        """Take a batch's states from the target's device; what is to be 8 bits crosses as such."""
        num_tokens = len(states_TKH)
        if self.scales_TK is not None:
            states_TKH, scales_TK = quantize(states_TKH)
            self.scales_TK[:num_tokens].copy_(scales_TK)
        self.hidden_TKH[:num_tokens].copy_(states_TKH)

    def arrays(self, num_tokens: int) -> tuple[Array, Array | None]:
        """Views of the first ``num_tokens`` states, as the cache stores them, and their scales."""
        scales_TK = None if self.scales_TK is None else self.scales_TK[:num_tokens].numpy()
        return as_array(self.hidden_TKH[:num_tokens]), scales_TK
