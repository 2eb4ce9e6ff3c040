"""Slot k predicts the token at anchor + k: shown on sequences t, t + 1, ..."""

import numpy as np
import torch

from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.train import pack
from dflash_cache.train.batches import _Sequence
from tests.support.drafters import (
    HIDDEN,
    LAYERS,
    VOCAB,
    drafter_config,
    drafter_step,
    embedding_and_head,
)

BLOCK = 8
NUM_TOKENS = 24


def counting_sequence(start: int) -> _Sequence:
    """Hidden states are a fixed random code of the token, as an untrained target's would be."""
    ids = np.arange(start, start + NUM_TOKENS, dtype=np.int32)
    code = np.random.default_rng(0).standard_normal((VOCAB, LAYERS, HIDDEN), dtype=np.float32)
    return _Sequence(start, code[ids], ids, np.ones(NUM_TOKENS, np.uint8), None)


def test_an_overfitted_drafter_reaches_the_full_block_on_counting_sequences(tmp_path):
    config = drafter_config(block_size=BLOCK)
    step = drafter_step(tmp_path, config, num_steps=300, lr=3e-3)
    batch = pack([counting_sequence(start) for start in range(0, 36, 4)], 512, (0, 0))
    for _ in range(300):
        result = step.step([batch])
    assert result is not None
    whole = _whole_blocks(step, batch)
    assert whole.block_acceptance_length == BLOCK
    assert _independently_drafted(step, start=5, anchor=9) == list(range(15, 15 + BLOCK - 1))


def _whole_blocks(step, batch) -> BlockAccuracy:
    """Accuracy over the blocks that do not run past the end of their sequence."""
    accuracy = BlockAccuracy.zero(BLOCK)
    with torch.no_grad():
        loss, supervised = step.forward(batch)
    whole = supervised[:, 1:].all(1)
    accuracy.add(loss.correct[whole], supervised[whole])
    return accuracy


def _independently_drafted(step, *, start: int, anchor: int) -> list[int]:
    """Decode one block with plain attention over explicit keys, sharing no masking code."""
    model = step.drafter
    embedding, head = embedding_and_head()
    sequence = counting_sequence(start)
    tokens = torch.full((BLOCK,), model.config.mask_token_id)
    tokens[0] = int(sequence.input_ids[anchor])
    context = model.context(torch.from_numpy(sequence.hidden_TKH[:anchor]), torch.arange(anchor))
    hidden = embedding[tokens]
    rope = model._rope(hidden, torch.arange(anchor, anchor + BLOCK))
    for layer, (key, value) in zip(model.layers, context, strict=True):
        attention = layer.self_attn
        normed = layer.input_layernorm(hidden)
        own_key, own_value = attention.key_value(normed, rope)
        keys = torch.cat([key, own_key]).repeat_interleave(2, 1)
        values = torch.cat([value, own_value]).repeat_interleave(2, 1)
        query = attention.q_norm(attention.q_proj(normed).view(BLOCK, 4, 16))
        half = torch.cat([-query[..., 8:], query[..., :8]], -1)
        query = query * rope[0] + half * rope[1]
        scores = torch.einsum("qhd,khd->hqk", query, keys) / 4
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        hidden = hidden + attention.o_proj(mixed.flatten(1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return (model.norm(hidden) @ head.T).argmax(-1)[1:].tolist()
