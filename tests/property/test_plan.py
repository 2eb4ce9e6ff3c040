import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_cache.data import plan_batches, plan_segments

lengths_of_rows = st.lists(st.integers(1, 300), max_size=200).map(
    lambda lengths: np.array(lengths, np.int64)
)
seeds = st.integers(0, 2**32 - 1)
limits = st.integers(1, 1000)


def as_lists(plan):
    return [(each.index, each.row_ids.tolist(), each.lengths.tolist()) for each in plan]


def row_ids_for(lengths):
    """Row numbers with gaps, as a survey leaves them."""
    return np.arange(len(lengths)) * 3 + 1


@settings(deadline=None)
@given(lengths_of_rows, seeds, limits)
def test_segments_partition_the_rows(lengths, seed, segment_tokens):
    row_ids = row_ids_for(lengths)
    plan = plan_segments(row_ids, lengths, seed=seed, segment_tokens=segment_tokens)
    planned = [row for segment in plan for row in segment.row_ids.tolist()]
    assert sorted(planned) == row_ids.tolist()
    length_of = dict(zip(row_ids.tolist(), lengths.tolist(), strict=True))
    for segment in plan:
        assert segment.lengths.tolist() == [length_of[row] for row in segment.row_ids.tolist()]
    assert [segment.index for segment in plan] == list(range(len(plan)))


@settings(deadline=None)
@given(lengths_of_rows, seeds, limits)
def test_no_segment_exceeds_its_tokens_unless_it_is_a_single_row(lengths, seed, segment_tokens):
    plan = plan_segments(row_ids_for(lengths), lengths, seed=seed, segment_tokens=segment_tokens)
    for segment in plan:
        assert len(segment.row_ids) > 0
        assert segment.num_tokens <= segment_tokens or len(segment.row_ids) == 1


@settings(deadline=None)
@given(lengths_of_rows, seeds, limits)
def test_the_plan_is_a_pure_function(lengths, seed, segment_tokens):
    row_ids, before = row_ids_for(lengths), lengths.copy()
    np.random.seed(1)  # a global state that must not matter
    first = plan_segments(row_ids, lengths, seed=seed, segment_tokens=segment_tokens)
    np.random.seed(2)
    second = plan_segments(row_ids.copy(), lengths.copy(), seed=seed, segment_tokens=segment_tokens)
    assert as_lists(first) == as_lists(second)
    assert lengths.tolist() == before.tolist()
    assert row_ids.tolist() == row_ids_for(lengths).tolist()


@settings(deadline=None)
@given(lengths_of_rows, seeds, limits)
def test_the_plan_depends_on_places_and_not_on_row_numbers(lengths, seed, segment_tokens):
    numbered = plan_segments(
        row_ids_for(lengths), lengths, seed=seed, segment_tokens=segment_tokens
    )
    placed = plan_segments(
        np.arange(len(lengths)), lengths, seed=seed, segment_tokens=segment_tokens
    )
    assert [segment.row_ids.tolist() for segment in numbered] == [
        (segment.row_ids * 3 + 1).tolist() for segment in placed
    ]


@settings(deadline=None)
@given(lengths_of_rows, limits)
def test_batches_cover_the_rows_in_order(lengths, batch_tokens):
    batches = plan_batches(lengths, batch_tokens)
    covered = [row for batch in batches for row in range(batch.start, batch.stop)]
    assert covered == list(range(len(lengths)))
    assert all(batch.stop > batch.start for batch in batches)


@settings(deadline=None)
@given(lengths_of_rows, limits)
def test_no_batch_exceeds_its_padded_tokens_unless_it_is_a_single_row(lengths, batch_tokens):
    for batch in plan_batches(lengths, batch_tokens):
        rows = lengths[batch]
        assert len(rows) == 1 or rows.max() * len(rows) <= batch_tokens


@settings(deadline=None)
@given(lengths_of_rows, limits)
def test_a_batch_ends_only_where_its_next_row_has_no_room(lengths, batch_tokens):
    for batch in plan_batches(lengths, batch_tokens)[:-1]:
        rows = lengths[batch.start : batch.stop + 1]
        assert rows.max() * len(rows) > batch_tokens


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_padding_of_realistic_rows_stays_under_five_percent(seed):
    rng = np.random.default_rng(seed)  # chats: many short, a long tail, cut at the limit
    lengths = np.clip(rng.lognormal(6.2, 0.8, 20_000), 10, 3072).astype(np.int64)
    plan = plan_segments(np.arange(20_000), lengths, seed=seed, segment_tokens=16384)
    padded = 0
    for segment in plan:
        for batch in plan_batches(segment.lengths, 8192):
            rows = segment.lengths[batch]
            padded += int(rows.max()) * len(rows)
    assert padded / lengths.sum() < 1.05
