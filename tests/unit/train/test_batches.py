"""From segments to batches: order, completeness, positions."""

from itertools import islice

import numpy as np
import pytest
import torch

from dflash_cache.config import TrainConfig
from dflash_cache.errors import CacheCorruptError, TrainingError
from dflash_cache.pipeline import Pipeline
from dflash_cache.train import Position, TrainingOrder, prefetch
from dflash_cache.types import HiddenSegment, SegmentPlan

SIZES = (3, 1, 4, 2, 5)


class MemorySource:
    """Segments whose states hold their row's number; ``absent`` rows were dropped."""

    def __init__(self, plan, absent=(), dtype=np.float32):
        self.plan, self.absent, self.dtype = plan, set(absent), dtype

    def read(self, index, row_ids=None):
        rows = [row for row in self.plan[index].row_ids.tolist() if row not in self.absent]
        lengths = [2 + row % 3 for row in rows]
        owners = np.repeat(np.array(rows, np.int64), lengths)
        states = np.broadcast_to(owners[:, None, None], (len(owners), 2, 4))
        return HiddenSegment(
            index=index,
            row_ids=np.array(rows, np.int64),
            offsets=np.cumsum([0, *lengths]),
            input_ids=owners.astype(np.int32),
            loss_mask=np.ones(len(owners), np.uint8),
            hidden_TKH=states.astype(self.dtype),
        )


def plan():
    rows = np.random.default_rng(0).permutation(sum(SIZES)).astype(np.int64)
    parts = np.split(rows, np.cumsum(SIZES)[:-1])
    return [
        SegmentPlan(index=i, row_ids=part, lengths=2 + part % 3) for i, part in enumerate(parts)
    ]


def take(count, source, tmp_path, *, start=None, **settings):
    settings = {"anchors": 2, "batch_size": 4, "shuffle_segments": 2} | settings
    config = TrainConfig(cache=tmp_path, out=tmp_path / "run", **settings)
    window = config.shuffle_segments
    order = TrainingOrder(plan(), np.zeros(0, np.int64), seed=3, window_segments=window)
    with Pipeline("test") as pipeline:
        batches = prefetch(pipeline, source, order, start or Position(), config)
        pipeline.start()
        taken = list(islice(batches, count))
        batches.abort()
    return taken


@pytest.mark.parametrize("readers", [1, 2, 4])
@pytest.mark.parametrize("ahead_bytes", [1, 900])
def test_order_does_not_depend_on_threads(readers, ahead_bytes, tmp_path):
    expected = take(12, MemorySource(plan()), tmp_path)
    found = take(
        12, MemorySource(plan()), tmp_path, prefetch_readers=readers, prefetch_bytes=ahead_bytes
    )
    assert [item.batch.row_ids for item in found] == [item.batch.row_ids for item in expected]
    pairs = zip(found, expected, strict=True)
    assert all(a.batch.anchors.equal(b.batch.anchors) for a, b in pairs)


def test_an_epoch_has_full_batches_and_one_rest_and_every_row_once(tmp_path):
    taken = take(8, MemorySource(plan()), tmp_path)
    assert [item.batch.num_sequences for item in taken] == [4, 4, 4, 3] * 2
    assert [item.ends_epoch for item in taken] == [False, False, False, True] * 2
    for epoch in (taken[:4], taken[4:]):
        assert sorted(row for item in epoch for row in item.batch.row_ids) == list(range(15))


def test_states_ids_and_rows_belong_together(tmp_path):
    for item in take(4, MemorySource(plan()), tmp_path):
        batch = item.batch
        owners = torch.tensor(batch.row_ids).repeat_interleave(batch.offsets.diff())
        assert batch.hidden_TKH.eq(owners[:, None, None]).all()
        assert batch.input_ids.equal(owners)


def test_bfloat16_bits_become_bfloat16(tmp_path):
    (item,) = take(1, MemorySource(plan(), dtype=np.uint16), tmp_path)
    assert item.batch.hidden_TKH.dtype == torch.bfloat16


@pytest.mark.parametrize("absent", [(), (0, 5, 9), (2, 11, 14)])
def test_starting_after_any_batch_gives_the_batches_that_follow(absent, tmp_path):
    whole = take(8, MemorySource(plan(), absent), tmp_path)
    for number, item in enumerate(whole[:-1], start=1):
        rest = take(8 - number, MemorySource(plan(), absent), tmp_path, start=item.position)
        assert [i.batch.row_ids for i in rest] == [i.batch.row_ids for i in whole[number:]]
        pairs = zip(rest, whole[number:], strict=True)
        assert all(a.batch.anchors.equal(b.batch.anchors) for a, b in pairs)


def test_dropped_rows_are_left_out_and_the_epoch_still_ends(tmp_path):
    taken = take(6, MemorySource(plan(), range(0, 15, 2)), tmp_path)
    assert [item.batch.num_sequences for item in taken] == [4, 3] * 3
    assert [item.ends_epoch for item in taken] == [False, True] * 3


def test_an_epoch_without_any_row_is_an_error_and_no_endless_loop(tmp_path):
    with pytest.raises(TrainingError, match="dropped every row"):
        take(1, MemorySource(plan(), range(15)), tmp_path)


def test_a_segment_that_cannot_be_read_ends_training_with_its_error(tmp_path):
    class Torn(MemorySource):
        def read(self, index, row_ids=None):
            if index == 4:
                raise CacheCorruptError("chunk 3 of segment 4")
            return super().read(index)

    with pytest.raises(CacheCorruptError, match="chunk 3 of segment 4") as caught:
        take(99, Torn(plan()), tmp_path, batch_size=2, shuffle_segments=1)
    assert "'prefetch'" in caught.value.__notes__[0]
