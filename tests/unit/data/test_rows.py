import tracemalloc

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from dflash_cache.data import TokenRows
from dflash_cache.errors import ConfigError, DataError
from tests.support.arrow_tables import (
    KINDS,
    as_jsonl,
    as_table,
    random_rows,
    surveyed,
)

ROWS = random_rows(12, shortest=4)


@pytest.fixture(autouse=True)
def _own_conversion_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("converted")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    if not datasets.are_progress_bars_disabled():
        datasets.disable_progress_bars()


def write_stream(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_file(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write_jsonl(path, table):
    path.write_text(as_jsonl(table.to_pylist()), encoding="utf-8")


WRITERS = {
    "stream.arrow": write_stream,
    "file.arrow": write_file,
    "rows.parquet": lambda path, table: pyarrow.parquet.write_table(table, path),
    "rows.jsonl": write_jsonl,
    "rows.json": write_jsonl,
}


def contents(rows):
    sequences = [rows.sequence(row, 10_000) for row in range(rows.num_rows)]
    return [
        {"input_ids": each.input_ids.tolist(), "loss_mask": each.loss_mask.tolist()}
        for each in sequences
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_any_form_is_opened(tmp_path, name):
    WRITERS[name](tmp_path / name, as_table(ROWS))
    rows = TokenRows.open(tmp_path / name)
    assert rows.num_rows == 12
    assert contents(rows) == ROWS
    assert surveyed(rows).fingerprint == surveyed(ROWS).fingerprint


@pytest.mark.parametrize("name", WRITERS)
def test_the_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path, name):
    kind = name.rpartition(".")[2]
    for part, start in (("b", 8), ("a", 0), ("aa", 3)):
        stop = {0: 3, 3: 8, 8: 12}[start]
        WRITERS[name](tmp_path / f"{part}.{kind}", as_table(ROWS[start:stop]))
    assert contents(TokenRows.open(tmp_path)) == ROWS


@pytest.mark.parametrize(
    "name", ["part [1-3].parquet", "[x].jsonl", "été 日本.json", "a*b?{c}.arrow"]
)
def test_names_with_spaces_brackets_and_accents_are_names_and_no_patterns(tmp_path, name):
    folder = tmp_path / "my [rows] é*"
    folder.mkdir()
    write = {".parquet": WRITERS["rows.parquet"], ".arrow": write_file}.get(
        (folder / name).suffix, write_jsonl
    )
    write(folder / name, as_table(ROWS))
    for path in (folder, folder / name):
        assert contents(TokenRows.open(path)) == ROWS


def test_a_saved_dataset_in_a_folder_of_such_a_name_is_opened(tmp_path):
    path = saved(tmp_path / "my [rows] é*", ROWS)
    assert contents(TokenRows.open(path)) == ROWS


def test_a_name_that_datasets_takes_for_an_address_is_refused(tmp_path):
    write_jsonl(tmp_path / "a::b.jsonl", as_table(ROWS))
    with pytest.raises(ConfigError, match="a name with '::' cannot be opened; rename it"):
        TokenRows.open(tmp_path)


@pytest.mark.parametrize("kind", ["arrow", "jsonl"])
def test_many_files_are_one_dataset(tmp_path, kind):
    rows = random_rows(300, longest=6)
    write = {"arrow": write_stream, "jsonl": write_jsonl}[kind]
    for start in range(0, 300, 3):
        write(tmp_path / f"rows-{start:05d}.{kind}", as_table(rows[start : start + 3]))
    found = TokenRows.open(tmp_path)
    assert contents(found) == rows
    assert surveyed(found).fingerprint == surveyed(rows).fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow", "rows.parquet"])
def test_every_kind_of_list_is_read_from_files(tmp_path, kind, name):
    rows = random_rows(5, longest=8, shortest=8)
    WRITERS[name](tmp_path / name, as_table(rows, kind=kind))
    assert contents(TokenRows.open(tmp_path / name)) == rows


def test_arrow_files_stay_on_disk_and_are_mapped(tmp_path):
    before = pa.total_allocated_bytes()
    table = as_table([{"input_ids": list(range(500)), "loss_mask": [1] * 500}] * 2000)
    write_stream(tmp_path / "rows.arrow", table)
    size = table.nbytes
    del table
    rows = TokenRows.open(tmp_path / "rows.arrow")
    assert size > 8_000_000
    assert pa.total_allocated_bytes() - before < size / 100
    assert rows.sequence(1999, 500).input_ids.tolist() == list(range(500))


def test_a_survey_takes_little_memory_whatever_the_number_of_rows(tmp_path):
    table = as_table([{"input_ids": list(range(200)), "loss_mask": [1] * 200}] * 20_000)
    write_stream(tmp_path / "rows.arrow", table)
    del table
    rows = TokenRows.open(tmp_path / "rows.arrow")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    found = surveyed(rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.row_ids) == 20_000
    assert most < 10_000_000 < 20_000 * 200 * 8
    assert pa.total_allocated_bytes() - before < 1_000_000


def saved(path, rows, **more):
    datasets.Dataset.from_list(rows, **more).save_to_disk(path)
    return path


def test_a_saved_dataset_is_opened(tmp_path):
    assert contents(TokenRows.open(saved(tmp_path / "d", ROWS))) == ROWS


def test_a_saved_dataset_in_several_shards_is_opened(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "d", num_shards=3)
    assert contents(TokenRows.open(tmp_path / "d")) == ROWS


def test_a_shuffled_and_a_selected_dataset_keep_their_order(tmp_path):
    dataset = datasets.Dataset.from_list(ROWS)
    for name, arranged in (
        ("shuffled", dataset.shuffle(seed=1)),
        ("selected", dataset.select([7, 2, 2, 0])),
        ("contiguous", dataset.select(range(3, 9))),
    ):
        arranged.save_to_disk(tmp_path / name)
        expected = [{name: row[name] for name in ("input_ids", "loss_mask")} for row in arranged]
        assert contents(TokenRows.open(tmp_path / name)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(None, 12), (1, 1), (5, 5), (12, 12), (99, 12)])
def test_a_limit_takes_the_first_rows(limit, expected):
    assert contents(TokenRows(as_table(ROWS), limit=limit)) == ROWS[:expected]


def test_a_sequence_is_cut_to_the_planned_length_ids_and_mask_alike():
    sequence = TokenRows(as_table([{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}])).sequence(
        0, 2
    )
    assert sequence.input_ids.tolist() == [1, 2]
    assert sequence.loss_mask.tolist() == [0, 1]


@pytest.mark.parametrize("mask", [pa.bool_(), pa.float64(), pa.int64(), pa.uint8()])
def test_a_sequence_has_ids_and_mask_of_fixed_types_and_memory_of_its_own(mask):
    values = pa.array([1, 0]).cast(mask).to_pylist()
    table = as_table([{"input_ids": [1, 2], "loss_mask": values}], mask=mask)
    rows = TokenRows(table)
    sequence = rows.sequence(0, 2)
    assert (sequence.input_ids.dtype, sequence.loss_mask.dtype) == (np.int32, np.uint8)
    assert sequence.loss_mask.tolist() == [1, 0]
    sequence.input_ids[:] = 9
    sequence.loss_mask[:] = 9
    assert rows.sequence(0, 2).input_ids.tolist() == [1, 2]
    assert rows.sequence(0, 2).loss_mask.tolist() == [1, 0]


@pytest.fixture
def splits(tmp_path):
    parts = {"train": ROWS[:4], "test": ROWS[4:]}
    path = tmp_path / "splits"
    datasets.DatasetDict(
        {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
    ).save_to_disk(path)
    return path


def test_a_split_of_a_dataset_dict_is_opened_by_name(splits):
    assert contents(TokenRows.open(splits, split="train")) == ROWS[:4]
    assert contents(TokenRows.open(splits, split="test", limit=2)) == ROWS[4:6]


def test_a_dataset_dict_without_a_choice_is_an_error_that_names_the_splits(splits):
    with pytest.raises(ConfigError) as caught:
        TokenRows.open(splits)
    message = f"--data {splits} has splits train, test; choose one with --split"
    assert str(caught.value) == message


def test_an_unknown_split_is_an_error_that_names_the_splits(splits):
    with pytest.raises(ConfigError) as caught:
        TokenRows.open(splits, split="valid")
    assert str(caught.value) == f"--split valid: {splits} has train, test"


def test_the_only_split_of_a_dataset_dict_needs_no_choice(tmp_path):
    whole = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    whole.save_to_disk(tmp_path / "d")
    assert contents(TokenRows.open(tmp_path / "d")) == ROWS


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ConfigError) as caught:
        TokenRows.open(tmp_path / "nothing")
    assert str(caught.value) == f"--data {tmp_path / 'nothing'} does not exist"


@pytest.mark.parametrize(
    ("names", "found"),
    [([], "nothing"), (["a.csv"], ".csv"), (["a.arrow", "b.parquet"], ".arrow, .parquet")],
)
def test_a_folder_without_files_of_one_known_kind_is_an_error(tmp_path, names, found):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as caught:
        TokenRows.open(tmp_path)
    assert str(caught.value) == (
        f"--data {tmp_path}: expected a folder written by datasets' save_to_disk, or files of "
        f"one kind among .arrow, .parquet, .jsonl; found {found}"
    )


def test_a_cache_given_as_data_is_an_error_that_says_so(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a cache, not a dataset; give it as --cache"):
        TokenRows.open(tmp_path)


def test_missing_columns_are_named_with_those_that_are_there():
    table = pa.table({"tokens": [[1]], "text": ["a"]})
    with pytest.raises(DataError) as caught:
        TokenRows(table)
    assert str(caught.value) == (
        "the dataset has no column input_ids, loss_mask; it has tokens, text. "
        "Rename your columns to input_ids and loss_mask"
    )


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow", "rows.parquet", "rows.jsonl"])
def test_a_file_that_was_cut_off_is_an_error_that_names_it(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, as_table(ROWS))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=name):
        TokenRows.open(path)


def test_null_and_empty_rows_of_a_jsonl_file_keep_their_numbers(tmp_path):
    rows = [{"input_ids": None, "loss_mask": None}, ROWS[0], {"input_ids": [], "loss_mask": []}]
    (tmp_path / "rows.jsonl").write_text(as_jsonl([*rows, ROWS[1]]))
    assert surveyed(TokenRows.open(tmp_path / "rows.jsonl")).row_ids.tolist() == [1, 3]


def test_a_saved_dataset_of_no_rows_is_said_to_be_empty(tmp_path):
    datasets.Dataset.from_list([]).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match="none: the dataset is empty"):
        TokenRows.open(tmp_path / "none")
