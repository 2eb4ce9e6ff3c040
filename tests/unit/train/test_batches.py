"""From segments to batches: order, completeness, positions."""

from itertools import islice

import numpy as np
import pytest
import torch

from dflash_cache.config import TrainConfig
from dflash_cache.errors import CacheCorruptError
from dflash_cache.pipeline import Pipeline
from dflash_cache.train import ALONE, Position, Ranks, TrainingOrder, prefetch
from dflash_cache.types import HiddenSegment, SegmentPlan

SIZES = (3, 1, 4, 2, 5)


class MemorySource:
    """Segments whose states hold their row's number; ``absent`` rows were dropped."""

    def __init__(self, plan, absent=(), dtype=np.float32):
        self.plan, self.absent, self.dtype = plan, set(absent), dtype

    def read(self, index, row_ids=None):
        planned = self.plan[index].row_ids
        wanted = planned if row_ids is None else planned[np.isin(planned, row_ids)]
        rows = [row for row in wanted.tolist() if row not in self.absent]
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


def training_order(window_segments=2):
    return TrainingOrder(plan(), np.zeros(0, np.int64), seed=3, window_segments=window_segments)


def take(count, source, tmp_path, *, start=None, ranks=ALONE, **settings):
    settings = {"anchors": 2, "batch_size": 4, "shuffle_segments": 2} | settings
    config = TrainConfig(cache=tmp_path, out=tmp_path / "run", **settings)
    order = training_order(config.shuffle_segments)
    with Pipeline("test") as pipeline:
        batches = prefetch(pipeline, source, order, start or Position(), config, ranks)
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
    assert [item.position.row for item in taken] == [4, 8, 12, 0] * 2
    assert [item.position.epoch for item in taken] == [0, 0, 0, 1, 1, 1, 1, 2]
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


def test_dropped_rows_are_left_out_and_steps_and_epochs_end_where_they_would(tmp_path):
    whole = take(8, MemorySource(plan()), tmp_path)
    taken = take(8, MemorySource(plan(), range(0, 15, 2)), tmp_path)
    assert [item.position for item in taken] == [item.position for item in whole]
    odd = [tuple(r for r in item.batch.row_ids if r % 2) for item in whole]
    assert [item.batch.row_ids for item in taken] == odd


def test_a_step_whose_rows_were_all_dropped_is_an_empty_one(tmp_path):
    (first, *_) = take(1, MemorySource(plan()), tmp_path)
    (item,) = take(1, MemorySource(plan(), first.batch.row_ids), tmp_path)
    assert item.batch is None
    assert item.position == first.position


def rows_by_step(taken):
    steps = [[]]
    for item in taken:
        steps[-1].extend(item.batch.row_ids if item.batch else ())
        if item.position:
            steps.append([])
    return steps[:-1]


@pytest.mark.parametrize("absent", [(), (0, 5, 9)])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_share_out_the_rows_of_each_step_and_agree_where_it_ends(size, absent, tmp_path):
    settings = {"batch_size": 2, "grad_accum": 3}  # steps of 6, 6 and 3 rows
    source = MemorySource(plan(), absent)
    whole = take(6, source, tmp_path, **settings | {"batch_size": 6, "grad_accum": 1})
    shares = []
    for rank in range(size):
        taken = take(24, source, tmp_path, ranks=Ranks(rank, size), **settings)
        ends = [item.position for item in taken if item.position]
        assert ends[:6] == [item.position for item in whole][: len(ends)]
        shares.append(rows_by_step(taken)[:6])
    for number, item in enumerate(whole):
        rows = sorted(row for share in shares for row in share[number])
        assert rows == sorted(item.batch.row_ids)


def test_a_rank_reads_only_its_own_rows(tmp_path):
    asked = []

    class Watched(MemorySource):
        def read(self, index, row_ids=None):
            asked.append(set(row_ids.tolist()))
            return super().read(index, row_ids)

    taken = take(4, Watched(plan()), tmp_path, ranks=Ranks(1, 2))
    trained = {row for item in taken for row in item.batch.row_ids}
    assert trained <= set().union(*asked)
    own = []  # of each window; how far is read ahead depends on the threads
    for window in islice(training_order().windows(Position()), 100):
        places = window.first_row + np.arange(len(window.row_ids))
        own.append(set(window.row_ids[places % 4 % 2 == 1].tolist()))  # of steps of four rows
    assert all(rows in own for rows in asked)


def test_a_segment_that_cannot_be_read_ends_training_with_its_error(tmp_path):
    class Torn(MemorySource):
        def read(self, index, row_ids=None):
            if index == 4:
                raise CacheCorruptError("chunk 3 of segment 4")
            return super().read(index)

    with pytest.raises(CacheCorruptError, match="chunk 3 of segment 4") as caught:
        take(99, Torn(plan()), tmp_path, batch_size=2, shuffle_segments=1)
    assert "'prefetch'" in caught.value.__notes__[0]
