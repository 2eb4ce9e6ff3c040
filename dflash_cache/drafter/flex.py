"""The same attention as one fused kernel, for CUDA: torch's flex attention with a block mask.

torch's own ``create_block_mask`` evaluates the mask on the whole grid of block tokens over keys.
Here the few tiles that hold anything visible follow from anchors and offsets alone, so the plan
costs as much as the table of tiles, and is made on the CPU ahead of the device.

Axes: T context tokens, Q block tokens, n query heads, g key-value heads, d head dimension. Keys are
the context, padded to whole tiles, then the block tokens.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Self, cast

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .attention import KeyValue, Visibility

TILE = 128  # the kernel's unit, in queries and in keys
_CONTEXT, _PADDING = -1, -2  # in place of an anchor


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the mask asks of each query and each key: int64, positions are those in the pack."""

    query_anchor: torch.Tensor  # [Q, padded], the anchor of the query's block
    query_position: torch.Tensor
    query_start: torch.Tensor  # of its sequence
    key_anchor: torch.Tensor  # [T + Q, padded], that of a block token, else _CONTEXT
    key_position: torch.Tensor


@dataclass(frozen=True, slots=True)
class FlexAttention:
    """One batch's plan. ``to`` makes it ready to be called."""

    tokens: Tokens
    tables: Mapping[Visibility, list[torch.Tensor]]  # what BlockMask.from_kv_blocks takes
    masks: Mapping[Visibility, BlockMask] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        offsets: torch.Tensor,
        anchors: torch.Tensor,
        block_size: int,
        visibilities: Iterable[Visibility],
    ) -> Self:
        """For ascending ``anchors`` [S] on sequences ``offsets`` [N + 1], both on the CPU."""
        tokens = _tokens(offsets, anchors, block_size)
        own = _own_tiles(len(anchors) * block_size, len(tokens.query_anchor) // TILE, block_size)
        tables = {sees: _tables(tokens, own, window=sees[1]) for sees in set(visibilities)}
        return cls(tokens, tables)

    def __call__(
        self, query: torch.Tensor, context: KeyValue, block: KeyValue, sees: Visibility
    ) -> torch.Tensor:
        key, value = (
            torch.cat([_padded(c), _padded(b)]).transpose(0, 1)[None]
            for c, b in zip(context, block, strict=True)
        )
        padded = _padded(query).transpose(0, 1)[None]
        # Norms give float32 under autocast, projections do not; the kernel wants one dtype.
        output = _kernel(query.device.type)(
            padded.to(value.dtype),
            key.to(value.dtype),
            value,
            block_mask=self.masks[sees],
            enable_gqa=True,
        )
        return cast(torch.Tensor, output[0].transpose(0, 1)[: len(query)])

    def to(self, device: torch.device) -> Self:
        tokens = _each(self.tokens, lambda tensor: tensor.to(device, non_blocking=True))
        lengths = len(tokens.query_anchor), len(tokens.key_anchor)
        masks = {}
        for (causal, window), table in self.tables.items():
            partial, partial_order, full, full_order = (
                tensor.to(device, non_blocking=True) for tensor in table
            )
            masks[causal, window] = BlockMask.from_kv_blocks(
                partial,
                partial_order,
                full,
                full_order,
                BLOCK_SIZE=TILE,
                mask_mod=_mask_mod(tokens, causal=causal, window=window),
                seq_lengths=lengths,
            )
        return type(self)(tokens, self.tables, masks)

    def pin(self) -> Self:
        tables = {sees: [each.pin_memory() for each in t] for sees, t in self.tables.items()}
        return type(self)(_each(self.tokens, torch.Tensor.pin_memory), tables)


@cache
def _kernel(device_type: str) -> Callable[..., Any]:
    """Compiled on CUDA. Elsewhere torch's plain form: forward only, for comparison."""
    plain: Callable[..., Any] = flex_attention
    return torch.compile(plain, dynamic=True) if device_type == "cuda" else plain


def _each(tokens: Tokens, change: Callable[[torch.Tensor], torch.Tensor]) -> Tokens:
    return Tokens(*(change(getattr(tokens, item.name)) for item in fields(tokens)))


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros added to a whole number of tiles along the first axis."""
    return functional.pad(tensor, (0, 0, 0, 0, 0, -len(tensor) % TILE))


def _tokens(offsets: torch.Tensor, anchors: torch.Tensor, block_size: int) -> Tokens:
    def whole(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return functional.pad(tensor, (0, -len(tensor) % TILE), value=value)

    anchor = anchors.repeat_interleave(block_size)
    position = anchor + torch.arange(block_size).repeat(len(anchors))
    start = offsets[torch.searchsorted(offsets, anchor, right=True) - 1]
    context = torch.arange(int(offsets[-1]))
    query_anchor, query_position = whole(anchor, _PADDING), whole(position, 0)
    return Tokens(
        query_anchor=query_anchor,
        query_position=query_position,
        query_start=whole(start, 0),
        key_anchor=torch.cat([whole(torch.full_like(context, _CONTEXT), _PADDING), query_anchor]),
        key_position=torch.cat([whole(context, 0), query_position]),
    )


def _mask_mod(tokens: Tokens, *, causal: bool, window: int | None) -> Callable[..., torch.Tensor]:
    """What ``tile_mask`` says, for one query and one key; it holds tensors only, no sizes."""

    def visible(
        _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        anchor, position = tokens.query_anchor[query], tokens.query_position[query]
        owner, place = tokens.key_anchor[key], tokens.key_position[key]
        before = (owner == _CONTEXT) & (place < anchor) & (place >= tokens.query_start[query])
        own = owner == anchor
        if causal:
            own = own & (place <= position)
        seen = before | own
        return seen if window is None else seen & ((position - place).abs() < window)

    return visible


def _own_tiles(num_queries: int, num_tiles: int, block_size: int) -> torch.Tensor:
    """Which tiles of block tokens each tile of queries needs: bool [tiles, tiles].

    A block may reach over a border: its size need not divide that of a tile.
    """
    first = torch.arange(num_tiles) * TILE
    last = (first + TILE - 1).clamp(max=max(num_queries - 1, 0))
    lowest = first // block_size * block_size // TILE
    highest = ((last // block_size + 1) * block_size - 1) // TILE
    tile = torch.arange(num_tiles)
    # Padding needs its own tile: a query that sees nothing at all would be not a number.
    reaches = (tile >= lowest[:, None]) & (tile <= highest[:, None])
    return reaches | torch.eye(num_tiles, dtype=torch.bool)


def _tables(tokens: Tokens, own: torch.Tensor, *, window: int | None) -> list[torch.Tensor]:
    """Numbers and indices of the partly and of the wholly visible tiles of keys, by query tile."""
    real = (tokens.query_anchor != _PADDING).view(-1, TILE)
    extremes = {}
    for name in ("query_anchor", "query_position", "query_start"):
        rows = getattr(tokens, name).view(-1, TILE)
        far = int(tokens.key_position.max()) + 1
        extremes[name] = (
            rows.where(real, far).min(1).values[:, None],
            rows.where(real, -1).max(1).values[:, None],
        )
    anchor, position, start = extremes.values()
    low, high = start[0], start[1]
    if window is not None:
        low = torch.maximum(low, position[0] - window + 1)
        high = torch.maximum(high, position[1] - window + 1)
    first = torch.arange(0, len(tokens.key_anchor) - len(tokens.query_anchor), TILE)
    last = first + TILE - 1
    touched = (first < anchor[1]) & (last >= low)
    whole = (first >= high) & (last < anchor[0])
    partial = torch.cat([touched & ~whole, own], dim=1)
    full = torch.cat([whole, torch.zeros_like(own)], dim=1)
    return [*_numbers(partial), *_numbers(full)]


def _numbers(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the number of set columns, and all columns with those first: int32."""
    order = tiles.int().argsort(dim=1, descending=True, stable=True)
    return tiles.sum(1).int()[None, None], order.int()[None, None].contiguous()
