"""A batch with everything the device's step needs, made ahead of it."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from dflash_cache.drafter.attention import BlockAttention, TiledAttention, Visibility
from dflash_cache.drafter.blocks import Blocks
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.flex import FlexAttention
from dflash_cache.types import DraftBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedBatch(DraftBatch):
    """A packed batch with its blocks and the plan of their attention."""

    positions: torch.Tensor  # [T] int64, of each token in its own sequence
    block_tokens: torch.Tensor  # [S, B] int64: the anchor's token, then mask tokens
    blocks: Blocks
    attention: BlockAttention
    arrived: torch.cuda.Event | None = None  # set once hidden_TKH is on the device

    def pin(self) -> Self:
        """In page-locked memory, from which a CUDA device copies by itself."""
        pinned: dict[str, Any] = {
            item.name: value.pin_memory()
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), torch.Tensor)
        }
        return replace(self, **pinned, blocks=self.blocks.pin(), attention=self.attention.pin())

    def sent(self, device: torch.device, stream: torch.cuda.Stream) -> Self:
        """With its hidden states, pinned before, on their way to ``device`` by ``stream``."""
        with torch.cuda.stream(stream):
            hidden = self.hidden_TKH.to(device, non_blocking=True)
        return replace(self, hidden_TKH=hidden, arrived=stream.record_event())

    def to(self, device: torch.device) -> Self:
        """On ``device``, but for ``offsets``, which nothing there needs."""
        hidden = self.hidden_TKH
        if self.arrived is not None:  # sent ahead on a stream of its own
            stream = torch.cuda.current_stream(device)
            self.arrived.wait(stream)
            hidden.record_stream(stream)
        return replace(
            self,
            hidden_TKH=hidden.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            anchors=self.anchors.to(device, non_blocking=True),
            block_tokens=self.block_tokens.to(device, non_blocking=True),
            blocks=self.blocks.to(device),
            attention=self.attention.to(device),
        )


def prepared(
    batch: DraftBatch,
    config: DrafterConfig,
    visibilities: list[Visibility],
    device: torch.device,
) -> PreparedBatch:
    """``batch`` with blocks, positions and attention for ``device``; still on the CPU.

    On CUDA attention is one fused kernel, elsewhere tiles.
    """
    if isinstance(batch, PreparedBatch):
        return batch
    blocks = Blocks.build(
        input_ids=batch.input_ids,
        loss_mask=batch.loss_mask,
        offsets=batch.offsets,
        anchors=batch.anchors,
        block_size=config.block_size,
    )
    tokens = torch.full_like(blocks.positions, config.mask_token_id)
    tokens[:, 0] = batch.input_ids[batch.anchors]
    starts = batch.offsets[:-1].repeat_interleave(batch.offsets.diff())
    kind = FlexAttention if device.type == "cuda" else TiledAttention
    return PreparedBatch(
        **{item.name: getattr(batch, item.name) for item in fields(batch)},
        positions=torch.arange(batch.num_tokens) - starts,
        block_tokens=tokens,
        blocks=blocks,
        attention=kind.plan(batch.offsets, batch.anchors, config.block_size, visibilities),
    )
