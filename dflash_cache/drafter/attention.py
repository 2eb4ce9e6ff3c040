"""Attention of draft blocks to their context and to themselves.

A block sees the context strictly before its anchor, of its own sequence only, and its own slots.
Nearly all of the grid of all blocks over all tokens is masked, so blocks are grouped into tiles:
neighbours on one sequence, which share a slice of the context. Work is then (context + tile) a
block instead of (all contexts + all blocks).

Axes: T context tokens, S blocks, B block size, Q = S * B block tokens, n query heads,
g key-value heads, d head dimension.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch.nn import functional

BLOCKS_PER_TILE = 16  # 16 to 32 measured alike; more wastes work inside the tile

KeyValue = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [T, g, d]
# What a layer sees: (causal inside the block, window in tokens or None).
Visibility = tuple[bool, int | None]


class BlockAttention(Protocol):
    """How the blocks of one batch attend; planned once a batch, used by every layer."""

    def __call__(
        self, query: torch.Tensor, context: KeyValue, block: KeyValue, sees: Visibility
    ) -> torch.Tensor:
        """Scaled dot-product attention of ``query`` [Q, n, d] to the context and the blocks.

        ``context`` has T tokens, ``block`` the Q block tokens; returns [Q, n, d].
        """
        ...

    def to(self, device: torch.device) -> Self: ...

    def pin(self) -> Self: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Blocks ``first_block:last_block``, which see parts of context ``first_token:last_token``."""

    first_token: int
    last_token: int
    first_block: int
    last_block: int


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """Tile by tile with a dense mask in each: the form for the CPU, and for short passes."""

    tiles: list[Tile]
    masks: Mapping[Visibility, list[torch.Tensor]]

    @classmethod
    def plan(
        cls,
        offsets: torch.Tensor,
        anchors: torch.Tensor,
        block_size: int,
        visibilities: Iterable[Visibility],
        blocks_per_tile: int = BLOCKS_PER_TILE,
    ) -> Self:
        """For ascending ``anchors`` [S] on sequences ``offsets`` [N + 1], both on the CPU."""
        tiles = plan_tiles(offsets, anchors, blocks_per_tile)
        return cls.of_tiles(tiles, anchors, block_size, visibilities)

    @classmethod
    def of_tiles(
        cls,
        tiles: list[Tile],
        anchors: torch.Tensor,
        block_size: int,
        visibilities: Iterable[Visibility],
    ) -> Self:
        """For ``tiles`` that cover all blocks in order."""
        masks = {
            (causal, window): [
                tile_mask(tile, anchors, block_size, causal=causal, window=window) for tile in tiles
            ]
            for causal, window in set(visibilities)
        }
        return cls(tiles, masks)

    def __call__(
        self, query: torch.Tensor, context: KeyValue, block: KeyValue, sees: Visibility
    ) -> torch.Tensor:
        return attend(query, context, block, self.tiles, self.masks[sees])

    def to(self, device: torch.device) -> Self:
        """With masks as the kernel takes them, 0 or -inf, so that no layer makes its own."""
        masks = {
            sees: [_additive(mask.to(device, non_blocking=True)) for mask in each]
            for sees, each in self.masks.items()
        }
        return type(self)(self.tiles, masks)

    def pin(self) -> Self:
        pinned = {sees: [mask.pin_memory() for mask in each] for sees, each in self.masks.items()}
        return type(self)(self.tiles, pinned)


def _additive(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)


def plan_tiles(
    offsets: torch.Tensor, anchors: torch.Tensor, blocks_per_tile: int = BLOCKS_PER_TILE
) -> list[Tile]:
    """Group ascending ``anchors`` [S] on sequences ``offsets`` [N + 1] into tiles."""
    tiles = []
    bounds = torch.searchsorted(anchors, offsets).tolist()
    for start, first, last in zip(offsets.tolist(), bounds, bounds[1:], strict=False):
        for first_block in range(first, last, blocks_per_tile):
            last_block = min(first_block + blocks_per_tile, last)
            tiles.append(
                Tile(
                    first_token=start,
                    last_token=int(anchors[last_block - 1]),
                    first_block=first_block,
                    last_block=last_block,
                )
            )
    return tiles


def tile_mask(
    tile: Tile, anchors: torch.Tensor, block_size: int, *, causal: bool, window: int | None
) -> torch.Tensor:
    """What the tile's queries see: bool [tile's Q, tile's context + tile's Q]."""
    own = anchors[tile.first_block : tile.last_block]
    slots = torch.arange(block_size, device=anchors.device)
    anchor = own.repeat_interleave(block_size)[:, None]
    slot = slots.repeat(len(own))[:, None]
    position = anchor + slot
    token = torch.arange(tile.first_token, tile.last_token, device=anchors.device)
    sees_context = token < anchor
    sees_block = anchor == anchor.T
    if causal:
        sees_block = sees_block & (slot >= slot.T)
    if window is not None:
        sees_context = sees_context & (position - token < window)
        sees_block = sees_block & ((position - position.T).abs() < window)
    return torch.cat([sees_context, sees_block], dim=1)


def attend(
    query: torch.Tensor,
    context: KeyValue,
    block: KeyValue,
    tiles: list[Tile],
    masks: list[torch.Tensor],
) -> torch.Tensor:
    """Scaled dot-product attention tile by tile.

    Args:
        query: [Q, n, d]; context: keys and values [T, g, d]; block: keys and values [Q, g, d].
        tiles, masks: of ``plan_tiles`` and ``tile_mask``, covering all blocks in order.

    Returns:
        [Q, n, d]
    """
    num_tokens, num_heads, head_dim = query.shape
    num_groups = context[0].shape[1]
    block_size = num_tokens // tiles[-1].last_block
    outputs = []
    for tile, mask in zip(tiles, masks, strict=True):
        rows = slice(tile.first_block * block_size, tile.last_block * block_size)
        columns = slice(tile.first_token, tile.last_token)
        key, value = (
            torch.cat([c[columns], b[rows]]).transpose(0, 1)
            for c, b in zip(context, block, strict=True)
        )
        # The groups are the batch, and the heads that share a key see it without a copy.
        heads = query[rows].view(-1, num_groups, num_heads // num_groups, head_dim)
        shared = (num_groups, num_heads // num_groups, -1, head_dim)
        output = functional.scaled_dot_product_attention(
            heads.permute(1, 2, 0, 3),
            key[:, None].expand(shared),
            value[:, None].expand(shared),
            attn_mask=mask,
        )
        outputs.append(output.permute(2, 0, 1, 3).flatten(1, 2))
    return torch.cat(outputs)
