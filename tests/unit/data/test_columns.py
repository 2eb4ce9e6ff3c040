import numpy as np
import pyarrow as pa
import pytest

from dflash_cache.data.columns import ListColumn
from dflash_cache.errors import DataError
from tests.support.arrow_tables import KINDS, list_type

LISTS = [[10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42], [50, 51, 52]]
RAGGED = [[1], [], [2, 3, 4], [5, 6]]


def column(lists, kind="list", values=None):
    size = next((len(each) for each in lists if each), 0)
    return pa.chunked_array([pa.array(lists, list_type(kind, values or pa.int64(), size))])


def parts(block):
    return block.offsets, block.values, block.valid


def all_rows(found):
    return [found.row(row).tolist() for row in range(len(found))]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_from_every_kind_of_list(kind):
    assert all_rows(ListColumn("c", column(LISTS, kind))) == LISTS


@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_rows_of_different_lengths_and_empty_rows_are_read(kind):
    assert all_rows(ListColumn("c", column(RAGGED, kind))) == RAGGED


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_slice_are_its_own_and_not_the_parents(kind):
    found = ListColumn("c", column(LISTS, kind).slice(1, 3))
    assert all_rows(found) == LISTS[1:4]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_slice_of_a_slice_are_read(kind):
    found = ListColumn("c", column(LISTS, kind).slice(1, 4).slice(1, 2))
    assert all_rows(found) == LISTS[2:4]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_found_across_chunks_and_empty_chunks(kind):
    whole = column(LISTS, kind).chunk(0)
    bounds = [(0, 0), (0, 2), (2, 2), (2, 2), (2, 3), (3, 5), (5, 5)]
    found = ListColumn("c", pa.chunked_array([whole.slice(a, b - a) for a, b in bounds]))
    assert len(found) == 5
    assert found.starts.tolist() == [0, 0, 2, 2, 2, 3, 5, 5]
    assert all_rows(found) == LISTS


def test_a_column_without_chunks_has_no_rows():
    found = ListColumn("c", pa.chunked_array([], pa.list_(pa.int64())))
    assert len(found) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float32()])
def test_numbers_keep_their_type(kind, values):
    lists = [[1, 2], [3, 4]]
    row = ListColumn("c", column(lists, kind, values)).row(1)
    assert row.tolist() == [3, 4]
    assert row.dtype == values.to_pandas_dtype()


@pytest.mark.parametrize("kind", KINDS)
def test_booleans_are_read_although_arrow_packs_them_into_bits(kind):
    lists = [[True, False, True], [False, True, True], [False, False, True]]
    found = ListColumn("c", column(lists, kind, pa.bool_()).slice(1))
    assert all_rows(found) == lists[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_numbers_is_a_view_and_not_a_copy(kind):
    chunks = column(LISTS, kind)
    row = ListColumn("c", chunks).row(2)
    memory = chunks.chunk(0).values.buffers()[1]
    address = row.__array_interface__["data"][0]
    assert memory.address <= address < memory.address + memory.size
    assert address == memory.address + 6 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_offsets_from_zero_and_the_values_between_them(kind):
    offsets, values, valid = parts(ListColumn("c", column(LISTS, kind).slice(1)).block(1, 3))
    assert offsets.tolist() == [0, 3, 6]
    assert values.tolist() == [30, 31, 32, 40, 41, 42]
    assert valid.tolist() == [True, True]


def test_a_block_lies_in_the_chunk_that_holds_its_first_row():
    chunks = pa.chunked_array([[[1], [2, 2]], [], [[3, 3, 3], [4]]], pa.list_(pa.int64()))
    offsets, values, _ = parts(ListColumn("c", chunks).block(2, 4))
    assert offsets.tolist() == [0, 3, 4]
    assert values.tolist() == [3, 3, 3, 4]


def test_reading_blocks_does_not_change_what_rows_are():
    found = ListColumn("c", column(RAGGED))
    for _ in range(2):
        assert found.block(2, 4).offsets.tolist() == [0, 3, 5]
        assert found.row(3).tolist() == [5, 6]


@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_null_rows_are_marked_in_a_block(kind):
    lists = [None, [1, 2], None, [], [3]]
    found = ListColumn("c", column(lists, kind))
    offsets, values, valid = parts(found.block(0, 5))
    assert valid.tolist() == [False, True, False, True, True]
    assert np.diff(offsets)[valid].tolist() == [2, 0, 1]
    assert values.tolist() == [1, 2, 3]
    assert found.block(1, 4).valid.tolist() == [True, False, True]


def test_null_rows_of_a_fixed_size_list_are_marked_and_are_no_nulls_inside_a_list():
    found = ListColumn("c", column([[1, 2], None, [5, 6]], "fixed_size_list"))
    offsets, values, valid = parts(found.block(0, 3))
    assert valid.tolist() == [True, False, True]
    assert values[offsets[2] : offsets[3]].tolist() == [5, 6]


@pytest.mark.parametrize("kind", ["list", "large_list"])
@pytest.mark.parametrize("values", [pa.int64(), pa.float32(), pa.bool_()])
def test_nulls_inside_lists_are_found_and_null_rows_are_none_of_them(kind, values):
    lists = [[1], None, [], [1, 0, None, 1], [None]]
    lists = [each and pa.array(each).cast(values).to_pylist() for each in lists]
    block = ListColumn("c", column(lists, kind, values)).block(0, 5)
    assert block.nulls.tolist() == [3, 5]
    assert block.values.tolist() == [1, 1, 0, 0, 1, 0]
    assert block.offsets.tolist() == [0, 1, 1, 1, 5, 6]


def test_a_null_inside_a_fixed_size_list_is_found():
    found = ListColumn("c", column([[7, 8], [1, None]], "fixed_size_list").slice(1))
    assert found.block(0, 1).nulls.tolist() == [1]


def test_lists_that_hold_nothing_but_nulls_are_read():
    block = ListColumn("c", pa.chunked_array([pa.array([[None], [], [None, None]])])).block(0, 3)
    assert block.nulls.tolist() == [0, 1, 2]
    assert block.values.tolist() == [0, 0, 0]


@pytest.mark.parametrize("values", [["text"], [1], [{"a": 1}]])
def test_a_column_that_is_no_list_is_refused_with_its_type(values):
    array = pa.array(values)
    with pytest.raises(DataError) as caught:
        ListColumn("input_ids", pa.chunked_array([array]))
    message = f"column 'input_ids' has type {array.type}, expected a list of integers"
    assert str(caught.value) == message


@pytest.mark.parametrize("values", [[["text"]], [[[1, 2]]], [[{"a": 1}]]])
def test_a_list_of_anything_but_numbers_is_refused_with_its_type(values):
    array = pa.array(values)
    with pytest.raises(DataError) as caught:
        ListColumn("input_ids", pa.chunked_array([array]))
    message = f"column 'input_ids' has type {array.type}, expected a list of integers"
    assert str(caught.value) == message
