import numpy as np
import pytest

from dflash_cache.data import plan_batches, plan_segments
from dflash_cache.data.plan import WINDOW_ROWS


def planned(lengths, *, row_ids=None, seed=0, segment_tokens=100):
    ids = np.arange(len(lengths)) if row_ids is None else np.array(row_ids)
    lengths = np.array(lengths, np.int64)
    return plan_segments(ids, lengths, seed=seed, segment_tokens=segment_tokens)


def random_lengths(count, *, longest=60, seed=0):
    return np.random.default_rng(seed).integers(1, longest + 1, count)


def as_lists(plan):
    return [(each.index, each.row_ids.tolist(), each.lengths.tolist()) for each in plan]


def test_no_rows_make_no_segments():
    assert planned([]) == []


def test_segments_are_numbered_in_the_order_in_which_they_are_extracted():
    plan = planned(random_lengths(200))
    assert [segment.index for segment in plan] == list(range(len(plan)))


def test_a_segment_carries_the_lengths_of_its_rows():
    lengths = random_lengths(200)
    plan = planned(lengths, row_ids=np.arange(200) * 3)
    for segment in plan:
        assert segment.lengths.tolist() == lengths[segment.row_ids // 3].tolist()
        assert segment.num_tokens == segment.lengths.sum()


def test_a_segment_is_filled_up_to_its_limit_exactly():
    plan = planned([10] * 25, segment_tokens=50)
    assert [segment.num_tokens for segment in plan] == [50] * 5


def test_a_row_longer_than_a_segment_has_one_of_its_own():
    plan = planned([500, 10, 500, 10], segment_tokens=100)
    assert sorted(segment.lengths.tolist() for segment in plan) == [[10, 10], [500], [500]]


def test_rows_of_a_segment_stand_in_the_order_of_their_lengths():
    for segment in planned(random_lengths(500)):
        assert segment.lengths.tolist() == sorted(segment.lengths.tolist())


def test_the_order_of_segments_does_not_follow_their_lengths():
    means = [segment.lengths.mean() for segment in planned(random_lengths(2000))]
    assert means != sorted(means)
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_rows_of_a_window_come_from_all_over_the_dataset():
    count = 3 * WINDOW_ROWS
    plan = planned([10] * count, segment_tokens=10 * WINDOW_ROWS)
    assert len(plan) == 3
    for segment in plan:
        assert np.ptp(segment.row_ids) > count * 0.9


def test_another_seed_is_another_plan():
    lengths = random_lengths(300)
    assert as_lists(planned(lengths, seed=0)) != as_lists(planned(lengths, seed=1))


def test_a_plan_never_changes_from_one_version_to_the_next():
    plan = planned([3, 9, 4, 7, 5, 6], seed=7, segment_tokens=12)
    assert as_lists(plan) == [
        (0, [0, 2, 4], [3, 4, 5]),
        (1, [5], [6]),
        (2, [3], [7]),
        (3, [1], [9]),
    ]


@pytest.mark.parametrize(
    ("lengths", "batch_tokens", "expected"),
    [
        ([], 10, []),
        ([5], 10, [(0, 1)]),
        ([5, 5], 10, [(0, 2)]),
        ([5, 5, 5], 10, [(0, 2), (2, 3)]),
        ([1, 10], 10, [(0, 1), (1, 2)]),  # together they would be 20 padded tokens
        ([10, 1], 10, [(0, 1), (1, 2)]),
        ([99, 1, 1], 10, [(0, 1), (1, 3)]),
        ([1, 99, 1], 10, [(0, 1), (1, 2), (2, 3)]),
        ([4, 4, 5], 12, [(0, 2), (2, 3)]),
        ([3, 3, 3, 3], 6, [(0, 2), (2, 4)]),
    ],
)
def test_batches_are_cut_where_padded_tokens_would_exceed_the_limit(
    lengths, batch_tokens, expected
):
    batches = plan_batches(np.array(lengths, np.int64), batch_tokens)
    assert [(batch.start, batch.stop) for batch in batches] == expected
