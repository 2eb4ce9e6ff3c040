"""Anchors and labels."""

import numpy as np
import pytest
import torch

from dflash_cache.drafter.blocks import Blocks, draw_anchors, eligible_anchors
from tests.support.drafters import draft_batch


def mask(text: str) -> np.ndarray:
    return np.array([int(digit) for digit in text], np.uint8)


@pytest.mark.parametrize(
    ("loss_mask", "anchors"),
    [
        ("0011110", [2, 3, 4]),
        ("1", []),
        ("0001", []),
        ("0110011", [1, 5]),
        ("000111", [3, 4]),
        ("11", [0]),
        ("0000", []),
    ],
)
def test_an_anchor_needs_itself_and_its_next_token_supervised(loss_mask, anchors):
    assert eligible_anchors(mask(loss_mask)).tolist() == anchors


def test_anchors_are_drawn_without_replacement_and_depend_on_the_key_alone():
    everything = np.ones(100, np.uint8)
    drawn = draw_anchors(everything, 20, 1, 2, 3)
    assert len(set(drawn.tolist())) == 20
    assert (np.diff(drawn) > 0).all()
    assert drawn.tolist() == draw_anchors(everything, 20, 1, 2, 3).tolist()
    assert drawn.tolist() != draw_anchors(everything, 20, 1, 3, 3).tolist()


def test_all_eligible_anchors_are_used_when_there_are_few():
    assert draw_anchors(mask("0111"), 5, 0).tolist() == [1, 2]


@pytest.mark.parametrize("length", [1, 3, 127, 128, 129, 257])
def test_labels_equal_the_tokens_after_the_anchor_inside_the_sequence(length):
    anchors = [sorted({0, length // 2, length - 1}), [0, 2]]
    batch = draft_batch([length, 4], anchors)
    batch.loss_mask[::3] = False
    blocks = Blocks.build(
        input_ids=batch.input_ids,
        loss_mask=batch.loss_mask,
        offsets=batch.offsets,
        anchors=batch.anchors,
        block_size=4,
    )
    ends = [length] * len(anchors[0]) + [length + 4] * 2
    for s, (anchor, end) in enumerate(zip(batch.anchors.tolist(), ends, strict=True)):
        start = 0 if end == length else length
        assert blocks.positions[s].tolist() == [anchor - start + k for k in range(4)]
        for k in range(4):
            token = anchor + k
            counts = k > 0 and token < end and bool(batch.loss_mask[token])
            assert bool(blocks.supervised[s, k]) == counts
            assert int(blocks.labels[s, k]) == (int(batch.input_ids[token]) if counts else 0)


def test_no_anchor_at_all_gives_no_block():
    batch = draft_batch([5], [[]])
    blocks = Blocks.build(
        input_ids=batch.input_ids,
        loss_mask=batch.loss_mask,
        offsets=batch.offsets,
        anchors=torch.zeros(0, dtype=torch.int64),
        block_size=4,
    )
    assert blocks.labels.shape == (0, 4)
