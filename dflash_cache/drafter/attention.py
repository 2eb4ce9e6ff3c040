"""Attention of draft blocks to their context and to themselves.

A block sees the context strictly before its anchor, of its own sequence only, and its own slots.
Nearly all of the grid of all blocks over all tokens is masked, so blocks are grouped into tiles:
neighbours on one sequence, which share a slice of the context. Work is then (context + tile) a
block instead of (all contexts + all blocks).

Axes: T context tokens, S blocks, B block size, Q = S * B block tokens, n query heads,
g key-value heads, d head dimension.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

BLOCKS_PER_TILE = 16  # 16 to 32 measured alike; more wastes work inside the tile


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Blocks ``first_block:last_block``, which see parts of context ``first_token:last_token``."""

    first_token: int
    last_token: int
    first_block: int
    last_block: int


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
    context: tuple[torch.Tensor, torch.Tensor],
    block: tuple[torch.Tensor, torch.Tensor],
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
        # Query heads that share a key-value head become further rows: nothing is repeated.
        heads = query[rows].view(-1, num_groups, num_heads // num_groups, head_dim)
        grouped = heads.permute(1, 2, 0, 3).flatten(1, 2)
        output = functional.scaled_dot_product_attention(
            grouped[None],
            key[None],
            value[None],
            attn_mask=mask.repeat(num_heads // num_groups, 1),
        )[0]
        shape = (num_groups, num_heads // num_groups, -1, head_dim)
        outputs.append(output.view(shape).permute(2, 0, 1, 3).flatten(1, 2))
    return torch.cat(outputs)
