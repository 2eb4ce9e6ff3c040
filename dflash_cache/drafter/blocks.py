"""Anchors and the blocks that stand on them: which tokens a drafter learns to predict where."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch


def eligible_anchors(loss_mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Positions p of one sequence (loss_mask [T]) with loss_mask[p] and loss_mask[p + 1]."""
    supervised = loss_mask.astype(bool)
    return np.flatnonzero(supervised[:-1] & supervised[1:])


def draw_anchors(loss_mask: npt.NDArray[np.uint8], count: int, *key: int) -> npt.NDArray[np.int64]:
    """Up to ``count`` ascending anchors of one sequence, without replacement.

    The draw depends on ``key`` (seed, epoch, row) alone: it needs no state to be resumed and does
    not depend on the order in which sequences are read.
    """
    eligible = eligible_anchors(loss_mask)
    if len(eligible) <= count:
        return eligible
    return np.sort(np.random.default_rng(key).choice(eligible, size=count, replace=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """S blocks of B slots. Slot k of a block predicts the token at its anchor + k."""

    positions: torch.Tensor  # [S, B] int64, position in the block's own sequence
    labels: torch.Tensor  # [S, B] int64, 0 where not supervised
    supervised: torch.Tensor  # [S, B] bool: slot 0 never, nothing past the sequence, loss mask set

    def to(self, device: torch.device) -> Self:
        return type(self)(
            positions=self.positions.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            supervised=self.supervised.to(device, non_blocking=True),
        )

    def pin(self) -> Self:
        return type(self)(
            positions=self.positions.pin_memory(),
            labels=self.labels.pin_memory(),
            supervised=self.supervised.pin_memory(),
        )

    @classmethod
    def build(
        cls,
        *,
        input_ids: torch.Tensor,
        loss_mask: torch.Tensor,
        offsets: torch.Tensor,
        anchors: torch.Tensor,
        block_size: int,
    ) -> "Blocks":
        """From packed ``input_ids`` and ``loss_mask`` [T], ``offsets`` [N + 1], ``anchors`` [S]."""
        sequence = torch.searchsorted(offsets, anchors, right=True) - 1
        slots = torch.arange(block_size, device=anchors.device)
        token = anchors[:, None] + slots
        inside = token < offsets[sequence + 1][:, None]
        token = torch.where(inside, token, 0)
        supervised = inside & loss_mask[token] & (slots > 0)
        return cls(
            positions=(anchors - offsets[sequence])[:, None] + slots,
            labels=torch.where(supervised, input_ids[token], 0),
            supervised=supervised,
        )
