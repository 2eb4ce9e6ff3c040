"""What the survey finds, whatever Arrow form holds the rows and in which order they are read."""

import pyarrow as pa
import pytest

from tests.support.arrow_tables import (
    KINDS,
    as_table,
    in_chunks,
    random_rows,
    reasons,
    sliced,
    surveyed,
)

ROWS = random_rows(20, longest=16, shortest=16)
CHUNKINGS = [(), (1,), (7, 13), (0, 5, 5, 20), tuple(range(1, 20))]
INTEGERS = [pa.uint16(), pa.int16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
MASKS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
EXPECTED = surveyed(ROWS)
GOOD = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}


def changed(place, **columns):
    return [{**each, **columns} if number == place else each for number, each in enumerate(ROWS)]


def assert_same(found, expected=EXPECTED):
    assert found.row_ids.tolist() == expected.row_ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.dropped == expected.dropped
    assert found.num_truncated == expected.num_truncated
    assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", CHUNKINGS)
def test_the_survey_is_the_same_for_every_kind_of_list_and_chunking(kind, bounds):
    assert_same(surveyed(in_chunks(as_table(ROWS, kind=kind), *bounds)))


@pytest.mark.parametrize("ids", INTEGERS)
def test_the_survey_is_the_same_for_every_integer_type_of_ids(ids):
    assert_same(surveyed(as_table(ROWS, ids=ids)))


@pytest.mark.parametrize("mask", MASKS)
def test_the_survey_is_the_same_for_every_number_type_of_masks(mask):
    assert_same(surveyed(as_table(ROWS, mask=mask)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_survey_is_the_same_for_boolean_masks(kind):
    rows = [{**row, "loss_mask": [value == 1 for value in row["loss_mask"]]} for row in ROWS]
    assert_same(surveyed(as_table(rows, kind=kind, mask=pa.bool_())))


@pytest.mark.parametrize("kind", KINDS)
def test_the_survey_of_a_slice_is_that_of_its_rows(kind):
    faulty = {"input_ids": [999] * 16, "loss_mask": [5] * 16}
    assert_same(surveyed(sliced(as_table(ROWS, kind=kind), faulty, faulty)))


def test_the_columns_may_be_chunked_differently():
    table, other = in_chunks(as_table(ROWS), 3, 11), in_chunks(as_table(ROWS), 5)
    mixed = pa.table({"input_ids": table["input_ids"], "loss_mask": other["loss_mask"]})
    assert_same(surveyed(mixed))


@pytest.mark.parametrize("kind", ["list", "large_list"])
@pytest.mark.parametrize("bounds", [(), (2,), (1, 3)])
def test_null_and_empty_rows_give_the_same_survey_in_every_chunking(kind, bounds):
    rows = [ROWS[0], {"input_ids": None, "loss_mask": None}, {"input_ids": [], "loss_mask": []}]
    rows.append(ROWS[1])
    assert_same(surveyed(in_chunks(as_table(rows, kind=kind), *bounds)), surveyed(rows))


def test_null_rows_give_the_same_survey_in_a_fixed_size_list():
    rows = [ROWS[0], {"input_ids": None, "loss_mask": None}, ROWS[1]]
    found = surveyed(as_table(rows, kind="fixed_size_list"))
    assert reasons(found) == {1: "null"}
    assert_same(found, surveyed(rows))


def test_values_that_lie_under_a_null_row_do_not_show():
    offsets, validity = pa.array([0, 4, 8, 12], pa.int32()), pa.array([False, True, False])
    hidden = pa.ListArray.from_arrays(
        offsets, pa.array([1, 2, 3, 4, 999, 999, 999, 999, 5, 6, 7, 8]), mask=validity
    )
    mask = pa.ListArray.from_arrays(offsets, pa.array([0, 0, 1, 1] * 3), mask=validity)
    good = [{"input_ids": ids, "loss_mask": [0, 0, 1, 1]} for ids in ([1, 2, 3, 4], [5, 6, 7, 8])]
    plain = surveyed([good[0], {"input_ids": None, "loss_mask": None}, good[1]])
    assert_same(surveyed(pa.table({"input_ids": hidden, "loss_mask": mask})), plain)


@pytest.mark.parametrize(
    "rows",
    [
        changed(3, input_ids=[(ROWS[3]["input_ids"][0] + 1) % 512, *ROWS[3]["input_ids"][1:]]),
        changed(3, loss_mask=[1] * 16),
        [*ROWS[:3], ROWS[4], ROWS[3], *ROWS[5:]],
        ROWS[:-1],
        [*ROWS, ROWS[0]],
        changed(19, input_ids=None),
    ],
    ids=["one token", "one mask", "two rows swapped", "a row less", "a row more", "a null row"],
)
def test_any_change_of_the_content_changes_the_fingerprint(rows):
    assert surveyed(rows).fingerprint != EXPECTED.fingerprint


def test_a_token_that_moves_to_the_next_row_changes_the_fingerprint():
    def rows(first):
        ids = list(range(8))
        return [
            {"input_ids": part, "loss_mask": [1] * len(part)} for part in (ids[:first], ids[first:])
        ]

    assert surveyed(rows(3)).fingerprint != surveyed(rows(4)).fingerprint


def test_the_limits_of_the_survey_are_not_part_of_the_fingerprint():
    assert surveyed(ROWS, max_seq_len=8).fingerprint == EXPECTED.fingerprint
    assert surveyed(ROWS, vocab_size=4096).fingerprint == EXPECTED.fingerprint
