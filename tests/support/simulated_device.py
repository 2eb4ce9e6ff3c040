"""A target on a device that leaves the CPU free: its forward pass sleeps and has its states ready.

Axes: T tokens, K context layers, H hidden size.
"""

import time
from collections.abc import Callable, Sequence

import torch

from dflash_cache.target import LayerCapture


class SimulatedCapture(LayerCapture):
    """``capture`` with another forward pass: ``token_s`` seconds for each padded token."""

    def __init__(self, capture: LayerCapture, token_s: float, most_tokens: int) -> None:
        self.target, self.layer_ids, self._keep_last = capture.target, capture.layer_ids, False
        self._handles = []
        self._token_s = token_s
        shape = (most_tokens, len(self.layer_ids), self.target.shape.hidden_size)
        generator = torch.Generator().manual_seed(0)
        self._states_TKH = torch.randn(shape, generator=generator)

    def hidden_states(
        self, sequences: Sequence[torch.Tensor], check: Callable[[], None] = lambda: None
    ) -> torch.Tensor:
        check()
        lengths = [len(ids) for ids in sequences]
        time.sleep(self._token_s * max(lengths) * len(lengths))
        return self._states_TKH[: sum(lengths)]
