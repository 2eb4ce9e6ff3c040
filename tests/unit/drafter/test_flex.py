"""The fused form of the attention: the same mask and output, and tiles that leave none out."""

import pytest
import torch

from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.drafter.flex import TILE, FlexAttention

LENGTHS = [300, 1, 40, 513, 128]
VISIBILITIES = [(False, None), (True, None), (True, 5), (True, 200), (False, 130)]


def drawn(block_size, share=0.15):
    generator = torch.Generator().manual_seed(block_size)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    chosen = torch.rand(int(offsets[-1]), generator=generator) < share
    return offsets, chosen.nonzero().flatten()


def dense_mask(offsets, anchors, block_size, *, causal, window):
    """bool [Q, T + Q] by the words of the rule."""
    anchor = anchors.repeat_interleave(block_size)[:, None]
    slot = torch.arange(block_size).repeat(len(anchors))[:, None]
    token = torch.arange(int(offsets[-1]))[None]
    document = torch.searchsorted(offsets, token, right=True)
    context = (token < anchor) & (document == torch.searchsorted(offsets, anchor, right=True))
    block = anchor == anchor.T
    if causal:
        block &= slot >= slot.T
    if window:
        context &= token >= anchor + slot - (window - 1)
        block &= (slot - slot.T).abs() < window
    return torch.cat([context, block], 1)


@pytest.mark.parametrize("sees", VISIBILITIES)
@pytest.mark.parametrize("block_size", [4, 10, 16])
def test_every_visible_pair_is_in_a_tile_and_whole_tiles_hold_nothing_hidden(sees, block_size):
    offsets, anchors = drawn(block_size)
    expected = dense_mask(offsets, anchors, block_size, causal=sees[0], window=sees[1])
    plan = FlexAttention.plan(offsets, anchors, block_size, [sees])
    mask = plan.to(torch.device("cpu")).masks[sees]
    rows, columns = mask.seq_lengths
    num_tokens, num_queries = int(offsets[-1]), len(anchors) * block_size
    padded = torch.zeros(rows, columns, dtype=torch.bool)
    first = columns - rows
    padded[:num_queries, :num_tokens] = expected[:, :num_tokens]
    padded[:num_queries, first : first + num_queries] = expected[:, num_tokens:]
    query, key = torch.arange(rows)[:, None], torch.arange(columns)[None]
    found = mask.mask_mod(0, 0, query, key).expand(rows, columns)
    assert found[:num_queries].equal(padded[:num_queries])
    tiles = padded.view(rows // TILE, TILE, columns // TILE, TILE)
    partial, full = (
        _table(number[0, 0], order[0, 0])
        for number, order in (
            (mask.kv_num_blocks, mask.kv_indices),
            (mask.full_kv_num_blocks, mask.full_kv_indices),
        )
    )
    assert not (partial & full).any()
    assert not (tiles.any(3).any(1) & ~(partial | full)).any()
    real = (query < num_queries).view(rows // TILE, TILE, 1, 1)
    assert not (full & (real & ~tiles).any(3).any(1)).any()
    if sees == (False, None):  # few tiles too many: only those that a border cuts
        assert (partial | full).sum() <= 1.3 * tiles.any(3).any(1).sum()


def _table(number, order):
    """bool [query tiles, key tiles] from how many of ``order`` count in each row."""
    counted = torch.arange(order.shape[1]) < number[:, None]
    return torch.zeros_like(counted).scatter(1, order.long(), counted)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("sees", VISIBILITIES)
@pytest.mark.parametrize("block_size", [4, 10, 16])
def test_the_output_is_that_of_the_tiles(sees, block_size):
    offsets, anchors = drawn(block_size, share=0.05)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(len(anchors) * block_size, 4, 16, generator=generator)
    context = [torch.randn(int(offsets[-1]), 2, 16, generator=generator) for _ in range(2)]
    block = [torch.randn(len(query), 2, 16, generator=generator) for _ in range(2)]
    found, expected = (
        kind.plan(offsets, anchors, block_size, [sees]).to(torch.device("cpu"))(
            query, context, block, sees
        )
        for kind in (FlexAttention, TiledAttention)
    )
    assert (found - expected).abs().max() <= 1e-5
