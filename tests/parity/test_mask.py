"""What a block sees: against a brute-force predicate, against incremental drafting, by probing."""

import pytest
import torch

from dflash_cache.drafter.attention import TiledAttention, plan_tiles, tile_mask
from tests.support.drafters import (
    HIDDEN,
    KINDS,
    block_outputs,
    draft_batch,
    drafter,
    drafter_config,
)

LENGTHS = [19, 1, 7, 30]
ANCHORS = [[0, 1, 4, 9, 16, 18], [], [3], [0, 2, 3, 11, 28]]


def sees(anchor, slot, key, *, sequence, starts, block_size, causal, window):
    """Does slot ``slot`` of the block at packed position ``anchor`` see ``key``?

    ``key`` is ("context", packed position) or ("block", that block's anchor, slot in it).
    """
    position = anchor + slot
    if key[0] == "context":
        same_sequence = sequence(key[1]) == sequence(anchor)
        visible = same_sequence and key[1] < anchor
        return visible and (window is None or key[1] >= position - (window - 1))
    if key[1] != anchor:
        return False
    visible = key[2] <= slot if causal else True
    return visible and (window is None or abs(key[2] - slot) < window)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 5])
@pytest.mark.parametrize("blocks_per_tile", [1, 3, 16])
def test_the_tiles_masks_equal_the_brute_force_predicate(causal, window, blocks_per_tile):
    batch, size = draft_batch(LENGTHS, ANCHORS), 4
    bounds = batch.offsets.tolist()
    tiles = plan_tiles(batch.offsets, batch.anchors, blocks_per_tile)
    anchors = batch.anchors.tolist()

    def sequence(position):
        return max(i for i, start in enumerate(bounds[:-1]) if start <= position)

    covered = []
    for tile in tiles:
        mask = tile_mask(tile, batch.anchors, size, causal=causal, window=window)
        own = anchors[tile.first_block : tile.last_block]
        covered += own
        inside = [("context", p) for p in range(tile.first_token, tile.last_token)]
        inside += [("block", anchor, slot) for anchor in own for slot in range(size)]
        outside = [("context", p) for p in range(bounds[-1]) if ("context", p) not in inside]
        outside += [("block", a, s) for a in anchors if a not in own for s in range(size)]
        rules = {
            "sequence": sequence, "starts": bounds, "block_size": size, "causal": causal,
            "window": window,
        }  # fmt: skip
        queries = [(anchor, slot) for anchor in own for slot in range(size)]
        expected = [[sees(*query, key, **rules) for key in inside] for query in queries]
        assert mask.tolist() == expected
        assert not any(sees(*query, key, **rules) for query in queries for key in outside)
    assert covered == anchors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_causal", [None, False, True])
def test_one_training_pass_equals_incremental_cached_drafting(kind, is_causal):
    model = drafter(drafter_config(KINDS[kind], is_causal=is_causal))
    batch = draft_batch(LENGTHS, ANCHORS)
    embeddings = torch.randn(len(batch.anchors), 4, HIDDEN, generator=torch.manual_seed(1))
    with torch.no_grad():
        trained = block_outputs(model, batch, embeddings)
        drafted = _drafted(model, batch, embeddings)
    assert torch.isfinite(trained).all()
    assert (trained - drafted).abs().max() <= 1e-5


def _drafted(model, batch, embeddings):
    """Block after block with context keys and values appended as tokens are committed."""
    outputs = []
    for index, anchor in enumerate(batch.anchors.tolist()):
        start = max(o for o in batch.offsets[:-1].tolist() if o <= anchor)
        context = None
        for token in range(start, anchor):
            new = model.context(batch.hidden_TKH[token : token + 1], torch.tensor([token - start]))
            context = new if context is None else [
                tuple(map(torch.cat, zip(old, fresh, strict=True)))
                for old, fresh in zip(context, new, strict=True)
            ]  # fmt: skip
        if context is None:
            context = model.context(batch.hidden_TKH[:0], torch.tensor([], dtype=torch.int64))
        place = torch.tensor([anchor - start])
        attention = TiledAttention.plan(
            torch.tensor([0, anchor - start + 1]), place, embeddings.shape[1], model.visibilities
        )
        positions = place + torch.arange(embeddings.shape[1])
        outputs.append(model(embeddings[index], positions, context, attention))
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_perturbing_one_block_leaves_every_other_block_unchanged(kind):
    model = drafter(drafter_config(KINDS[kind]))
    batch = draft_batch(LENGTHS, ANCHORS)
    embeddings = torch.randn(len(batch.anchors), 4, HIDDEN, generator=torch.manual_seed(1))
    with torch.no_grad():
        before = block_outputs(model, batch, embeddings)
        for index in range(len(batch.anchors)):
            changed = embeddings.clone()
            changed[index] += 1.0
            differs = (block_outputs(model, batch, changed) != before).flatten(1).any(1)
            assert differs.nonzero().flatten().tolist() == [index]


@pytest.mark.parametrize("kind", KINDS)
def test_no_block_sees_its_anchors_own_state_or_anything_after_it(kind):
    model = drafter(drafter_config(KINDS[kind]))
    batch = draft_batch(LENGTHS, ANCHORS)
    embeddings = torch.randn(len(batch.anchors), 4, HIDDEN, generator=torch.manual_seed(1))
    with torch.no_grad():
        before = block_outputs(model, batch, embeddings)
        for token in range(batch.num_tokens):
            hidden = batch.hidden_TKH.clone()
            batch.hidden_TKH[token] += 1.0
            differs = (block_outputs(model, batch, embeddings) != before).flatten(1).any(1)
            batch.hidden_TKH.copy_(hidden)
            end = int(batch.offsets[torch.searchsorted(batch.offsets, token, right=True)])
            allowed = (batch.anchors > token) & (batch.anchors < end)
            assert not (differs & ~allowed).any()
