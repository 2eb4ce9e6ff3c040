"""Held-out rows and the order of training."""

from itertools import islice, takewhile

import numpy as np
import pytest

from dflash_cache.errors import ConfigError
from dflash_cache.train import Position, TrainingOrder, held_out_rows
from dflash_cache.types import SegmentPlan


def make_plan(sizes):
    rows = np.random.default_rng(0).permutation(sum(sizes)).astype(np.int64)
    bounds = np.cumsum(sizes)[:-1]
    return [
        SegmentPlan(index=i, row_ids=part, lengths=np.full(len(part), 5))
        for i, part in enumerate(np.split(rows, bounds))
    ]


def make_order(held_out=(), *, seed=0, window=2, sizes=(3, 1, 4, 2, 5)):
    return TrainingOrder(
        make_plan(sizes), np.array(held_out, np.int64), seed=seed, window_segments=window
    )


def epoch_rows(order, epoch):
    windows = takewhile(lambda window: window.epoch == epoch, order.windows(Position(epoch=epoch)))
    return [row for window in windows for row in window.row_ids.tolist()]


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_every_row_is_seen_once_an_epoch_and_never_a_held_out_one(window):
    order = make_order([0, 7, 14], window=window)
    for epoch in range(3):
        assert sorted(epoch_rows(order, epoch)) == [r for r in range(15) if r not in (0, 7, 14)]


def test_epoch_zero_takes_segments_in_plan_order_and_later_ones_another():
    order = make_order()
    windows = list(islice(order.windows(Position()), 6))
    assert [window.segments for window in windows[:3]] == [(0, 1), (2, 3), (4,)]
    assert [window.segments for window in windows[3:]] != [(0, 1), (2, 3), (4,)]
    assert [window.last for window in windows] == [False, False, True] * 2


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    assert epoch_rows(make_order(), 1) == epoch_rows(make_order(), 1)
    assert epoch_rows(make_order(), 1) != epoch_rows(make_order(seed=1), 1)


@pytest.mark.parametrize("epoch", [0, 2])
def test_starting_anywhere_continues_the_same_order(epoch):
    order = make_order([3])
    whole = epoch_rows(order, epoch)
    for row in range(len(whole)):
        first = next(order.windows(Position(epoch=epoch, row=row)))
        assert first.first_row == row
        assert first.row_ids.tolist() == whole[row : row + len(first.row_ids)]


def test_a_start_at_the_end_of_an_epoch_goes_on_with_the_next():
    order = make_order()
    assert next(order.windows(Position(epoch=1, row=15))).epoch == 2


def test_a_segment_whose_rows_are_all_held_out_is_not_read():
    plan = make_plan((3, 2))
    order = TrainingOrder(plan, plan[1].row_ids, seed=0, window_segments=4)
    assert next(order.windows(Position())).segments == (0,)


@pytest.mark.parametrize(("accum", "steps"), [(1, 8), (2, 4), (3, 4), (4, 2), (9, 2)])
def test_the_last_window_of_an_epoch_counts_as_a_step(accum, steps):
    assert make_order().num_steps(epochs=2, batch_size=4, grad_accum=accum) == steps


@pytest.mark.parametrize(("holdout", "number"), [(0.1, 100), (7.0, 7), (0.0, 0), (None, 64)])
def test_holdout_is_a_share_or_a_number(holdout, number):
    assert len(held_out_rows(np.arange(1000), holdout)) == number


def test_a_small_dataset_keeps_a_tenth_by_default():
    assert len(held_out_rows(np.arange(103), None)) == 10


def test_more_rows_keep_what_was_held_out_by_share_held_out_or_make_room_by_hash():
    few, many = held_out_rows(np.arange(100), 10.0), held_out_rows(np.arange(200), 10.0)
    larger = held_out_rows(np.arange(200), 60.0)
    assert set(few.tolist()) <= set(larger.tolist()) | set(many.tolist())
    assert set(many.tolist()) <= set(larger.tolist())


def test_holding_out_every_row_is_refused():
    with pytest.raises(ConfigError, match="leaves no row to train on"):
        held_out_rows(np.arange(5), 5.0)
