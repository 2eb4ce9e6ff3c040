import numpy as np
import pyarrow as pa
import pytest

from dflash_cache.data import TokenRows
from dflash_cache.data.survey import BLOCK_ROWS
from dflash_cache.errors import DataError
from tests.support.arrow_tables import (
    KINDS,
    as_table,
    in_chunks,
    random_rows,
    reasons,
    surveyed,
)

GOOD = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}
OTHER = {"input_ids": [9, 8, 7, 6], "loss_mask": [1, 1, 1, 1]}
END = "Mend these rows, or leave them out with --on-bad-row drop"


def row(ids, mask=None, **more):
    return {"input_ids": ids, "loss_mask": [1] * len(ids) if mask is None else mask, **more}


def same(one, other):
    return (
        one.row_ids.tolist() == other.row_ids.tolist()
        and one.lengths.tolist() == other.lengths.tolist()
        and (one.dropped, one.num_truncated, one.fingerprint)
        == (other.dropped, other.num_truncated, other.fingerprint)
    )


def fault_of(rows, **limits):
    with pytest.raises(DataError) as caught:
        surveyed(rows, **limits)
    return str(caught.value)


def test_usable_rows_are_kept_with_their_lengths():
    rows = random_rows(30, shortest=4)
    found = surveyed(rows)
    assert found.row_ids.tolist() == list(range(30))
    assert found.lengths.tolist() == [len(each["input_ids"]) for each in rows]
    assert found.dropped == ()
    assert found.num_truncated == 0


def test_a_dataset_without_rows_is_surveyed():
    found = surveyed(as_table([]))
    assert len(found.row_ids) == len(found.lengths) == len(found.dropped) == 0


def test_unusable_rows_are_left_out_with_a_reason_and_others_keep_their_numbers():
    rows = [
        row(None, [1, 1]),
        GOOD,
        row([]),
        row([1, 2, 3], [0, 0, 0]),
        row([1, 2, 3], [1, 0, 1]),
        {"input_ids": [1, 2], "loss_mask": None},
        OTHER,
    ]
    found = surveyed(rows)
    assert found.row_ids.tolist() == [1, 6]
    assert reasons(found) == {
        0: "null",
        2: "empty",
        3: "no_loss_token",
        4: "no_anchor",
        5: "null",
    }


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize(
    ("ids", "mask", "reason"),
    [(None, None, "null"), (None, [1], "null"), ([1], None, "null"), ([], [], "empty")],
)
def test_null_and_empty_rows_do_no_harm_wherever_they_stand(place, ids, mask, reason):
    rows = random_rows(9, shortest=4)
    rows.insert(place, {"input_ids": ids, "loss_mask": mask})
    found = surveyed(rows)
    assert found.row_ids.tolist() == [each for each in range(10) if each != place]
    assert reasons(found) == {place: reason}


def test_every_row_may_be_unusable():
    found = surveyed([row([1, 2], [0, 0])] * 3 + [row([])])
    assert len(found.row_ids) == 0
    assert reasons(found) == {
        0: "no_loss_token",
        1: "no_loss_token",
        2: "no_loss_token",
        3: "empty",
    }


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([0, 0, 0, 0], "no_loss_token"),
        ([0, 0, 0, 1], "no_anchor"),  # an anchor needs the loss token after it
        ([1, 0, 1, 0], "no_anchor"),
        ([0, 0, 1, 1], None),
        ([1, 1, 0, 0], None),
        ([1, 1, 1, 1], None),
    ],
)
def test_a_row_is_kept_if_two_loss_tokens_follow_each_other(mask, reason):
    found = surveyed([GOOD, row([1, 2, 3, 4], mask), GOOD])
    assert reasons(found).get(1) == reason


def test_the_last_loss_token_of_a_row_and_the_first_of_the_next_are_no_pair():
    found = surveyed([row([1, 2], [0, 1]), row([3, 4], [1, 0])])
    assert reasons(found) == {0: "no_anchor", 1: "no_anchor"}


def test_a_row_of_one_token_has_no_anchor():
    assert reasons(surveyed([row([5], [1])])) == {0: "no_anchor"}


def test_longer_rows_are_truncated_and_counted():
    rows = [row([1] * length) for length in (3, 4, 5, 9)]
    found = surveyed(rows, max_seq_len=4)
    assert found.lengths.tolist() == [3, 4, 4, 4]
    assert found.num_truncated == 2
    assert found.dropped == ()


def test_longer_rows_are_dropped_if_the_policy_says_so():
    rows = [row([1] * length) for length in (3, 4, 5, 9)]
    found = surveyed(rows, max_seq_len=4, too_long="drop")
    assert found.lengths.tolist() == [3, 4]
    assert reasons(found) == {2: "too_long", 3: "too_long"}
    assert found.num_truncated == 0


def test_a_row_whose_loss_tokens_are_cut_off_is_left_out():
    rows = [row([1] * 6, [0, 0, 0, 0, 1, 1]), row([1] * 6, [0, 0, 0, 1, 1, 1])]
    found = surveyed(rows, max_seq_len=4)
    assert reasons(found) == {0: "no_loss_token", 1: "no_anchor"}
    assert found.num_truncated == 0
    assert reasons(surveyed(rows, max_seq_len=5)) == {0: "no_anchor"}


@pytest.mark.parametrize("bad", [512, -1, 2**31, -(2**31) - 1, 2**40])
def test_an_id_outside_the_vocabulary_is_an_error_with_row_and_position(bad):
    message = fault_of([GOOD, row([1, 2, bad]), GOOD])
    assert message == (
        f"row 1: position 2: id {bad} is outside the target's vocabulary 0..511. {END}"
    )


def test_the_first_and_the_last_id_of_the_vocabulary_are_good():
    assert surveyed([row([0, 511, 0])]).row_ids.tolist() == [0]


@pytest.mark.parametrize("ids", [pa.uint8(), pa.int8(), pa.uint16(), pa.uint64()])
def test_ids_of_any_integer_type_are_checked(ids):
    table = as_table([GOOD, row([1, 100, 3])], ids=ids)
    assert surveyed(table).row_ids.tolist() == [0, 1]
    message = fault_of(table, vocab_size=50)
    assert message.startswith("row 1: position 1: id 100 is outside the target's vocabulary 0..49.")


@pytest.mark.parametrize(
    ("mask", "kind", "shown"),
    [([0, 2, 1], pa.int64(), "2"), ([0, 0.5, 1], pa.float64(), "0.5"), ([0, -1, 1], None, "-1")],
)
def test_a_mask_value_that_is_neither_0_nor_1_is_an_error_with_row_and_position(mask, kind, shown):
    message = fault_of(as_table([row([1, 2, 3]), row([1, 2, 3], mask)], mask=kind))
    assert message == f"row 1: position 1: loss_mask value {shown} is neither 0 nor 1. {END}"


def test_a_mask_value_that_is_not_a_number_is_an_error():
    table = as_table([row([1, 2], [float("nan"), 1.0])], mask=pa.float64())
    assert fault_of(table).startswith("row 0: position 0: loss_mask value nan is neither 0 nor 1.")


@pytest.mark.parametrize("mask", [[1, 1, 1], [1, 1, 1, 1, 1], []])
def test_a_mask_of_another_length_is_an_error(mask):
    message = fault_of([GOOD, row([1, 2, 3, 4], mask)])
    assert message == f"row 1: loss_mask has {len(mask)} values for 4 ids. {END}"


def test_masks_that_make_up_for_each_other_are_still_errors():
    rows = [row([1, 2, 3], [1, 1]), row([1, 2, 3], [1, 1, 1, 1])]
    assert fault_of(rows) == (
        f"row 0: loss_mask has 2 values for 3 ids. 1 more row has faults. {END}"
    )


def test_a_seq_len_that_differs_from_the_row_is_an_error():
    rows = [{**GOOD, "seq_len": 4}, {**OTHER, "seq_len": 5}]
    assert fault_of(rows) == f"row 1: seq_len says 5, input_ids has 4. {END}"


def test_a_seq_len_that_agrees_is_good_and_one_of_a_null_row_is_not_looked_at():
    rows = [{**GOOD, "seq_len": 4}, {"input_ids": None, "loss_mask": None, "seq_len": 7}]
    assert surveyed(rows).row_ids.tolist() == [0]


def test_the_first_faulty_row_is_named_and_the_others_are_counted():
    rows = [GOOD, row([1, 600]), GOOD, row([-1, 600, 700]), row([1, 2], [1, 2]), GOOD]
    assert fault_of(rows) == (
        "row 1: position 1: id 600 is outside the target's vocabulary 0..511. "
        f"2 more rows have faults. {END}"
    )


def test_a_row_with_several_faults_counts_once():
    message = fault_of([row([600, 1], [1, 2])])
    assert "more rows" not in message


def test_a_null_inside_a_list_is_an_error_with_row_and_position():
    message = fault_of([GOOD, row([1, None, 3])])
    assert message == f"row 1: position 1: null in input_ids. {END}"
    assert "row 0: position 2: null in loss_mask" in fault_of([row([1, 2, 3], [1, 1, None])])


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (row([1, 512, 3]), "id_out_of_range", "position 1: id 512 is outside the target's voc"),
        (row([1, 2, -1]), "id_out_of_range", "position 2: id -1 is outside the target's voc"),
        (row([1, 2, 3], [0, 2, 1]), "mask_value", "position 1: loss_mask value 2 is neither"),
        (row([1, 2, 3], [1, 1]), "mask_length", "loss_mask has 2 values for 3 ids"),
        (row([1, 2], [1, 1, 1, 1]), "mask_length", "loss_mask has 4 values for 2 ids"),
        (row([1, 2], []), "mask_length", "loss_mask has 0 values for 2 ids"),
        (row([], [1, 1]), "mask_length", "loss_mask has 2 values for 0 ids"),
        (row([1, 2, 3], seq_len=4), "seq_len", "seq_len says 4, input_ids has 3"),
        (row([1, None, 3]), "null_value", "position 1: null in input_ids"),
        (row([1, 2, 3], [1, None, 1]), "null_value", "position 1: null in loss_mask"),
    ],
)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_bad_row_is_left_out_with_its_fault_if_the_policy_says_so(bad, reason, detail, place):
    good = [GOOD, OTHER, row([1, 2, 3], [0, 0, 0]), GOOD]
    rows = [{"seq_len": len(each["input_ids"])} | each for each in (*good[:place], bad)]
    rows += [{"seq_len": len(each["input_ids"])} | each for each in good[place:]]
    found = surveyed(rows, on_bad_row="drop")
    unsupervised = 2 if place > 2 else 3
    assert reasons(found) == {place: reason, unsupervised: "no_loss_token"}
    assert found.row_ids.tolist() == [each for each in range(5) if each not in reasons(found)]
    (dropped,) = [each for each in found.dropped if each.row_id == place]
    assert dropped.detail.startswith(detail)


def test_dropping_bad_rows_changes_nothing_where_there_are_none():
    rows = [*random_rows(20), row(None, [1]), row([])]
    assert same(surveyed(rows, on_bad_row="drop"), surveyed(rows))


def test_every_bad_row_is_left_out_once_and_in_order():
    rows = [row([600, 1], [1, 2]), row([]), row([1], [1, 1]), GOOD, row([-1, 600])]
    found = surveyed(rows, on_bad_row="drop")
    expected = {0: "id_out_of_range", 1: "empty", 2: "mask_length", 4: "id_out_of_range"}
    assert list(reasons(found).items()) == list(expected.items())
    assert len(found.dropped) == 4


@pytest.mark.parametrize(
    ("bad", "mended"),
    [
        (row([1, 2**32 + 2, 3]), row([1, 2, 3])),
        (row([1, 2, 3], [0, 2, 1]), row([1, 2, 3], [0, 1, 1])),
        (row([1, None, 3]), row([1, 0, 3])),
        (row([1, 2, 3], seq_len=4), row([1, 2, 3], seq_len=3)),
    ],
    ids=["id", "mask", "null", "seq_len"],
)
def test_a_row_that_was_mended_is_another_dataset(bad, mended):
    found = [surveyed([GOOD | {"seq_len": 4}, {"seq_len": 3} | each, GOOD | {"seq_len": 4}],
                      on_bad_row="drop") for each in (bad, mended)]  # fmt: skip
    assert found[0].fingerprint != found[1].fingerprint


def test_a_seq_len_of_null_says_nothing_and_one_that_is_no_number_is_refused():
    table = as_table([GOOD])
    said = table.append_column("seq_len", pa.array([None], pa.int64()))
    assert surveyed(said).row_ids.tolist() == [0]
    with pytest.raises(DataError, match="'seq_len' has type string"):
        surveyed(table.append_column("seq_len", pa.array(["4"])))


def test_ids_that_are_no_whole_numbers_are_refused():
    table = as_table([row([1.5, 2.0, 3.0])], ids=pa.float64())
    with pytest.raises(DataError):
        surveyed(table)


@pytest.mark.parametrize("kind", KINDS)
def test_faults_are_numbered_by_row_across_chunks(kind):
    rows = [row([1, 2, 3, 4])] * 6 + [row([1, 2, 512, 4])] + [GOOD]
    for bounds in ((), (3,), (6,), (7,), (0, 2, 2, 5)):
        message = fault_of(in_chunks(as_table(rows, kind=kind), *bounds))
        assert message.startswith("row 6: position 2: id 512 ")


def test_rows_after_the_limit_are_not_looked_at():
    table = as_table([GOOD, OTHER, row([900]), row([])])
    found = surveyed(TokenRows(table, limit=2))
    assert found.row_ids.tolist() == [0, 1]
    assert found.dropped == ()
    assert same(found, surveyed([GOOD, OTHER]))


def test_many_rows_are_surveyed_in_blocks_with_the_same_result_as_row_by_row():
    count = BLOCK_ROWS + 10
    ids = pa.ListArray.from_arrays(
        np.arange(count + 1, dtype=np.int32) * 2, np.zeros(2 * count, int)
    )
    mask = pa.ListArray.from_arrays(
        np.arange(count + 1, dtype=np.int32) * 2, np.ones(2 * count, int)
    )
    table = pa.table({"input_ids": ids, "loss_mask": mask})
    found = surveyed(table)
    assert found.row_ids.tolist() == list(range(count))
    assert found.fingerprint == surveyed(in_chunks(table, 5, BLOCK_ROWS + 1)).fingerprint
