import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_cache.data import sources
from dflash_cache.data.sources import ChatFiles
from dflash_cache.errors import ConfigError, DataError

ROWS = [{"text": f"row {number} é " + "x" * number} for number in range(40)]


def rows_of(path):
    return [row for row, _ in ChatFiles.find(path).rows()]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture(params=["jsonl", "json lines", "json", "json indented", "parquet", "folder"])
def path(request, tmp_path, monkeypatch):
    """The same rows in each form; of an array a part of an item is read at a time."""
    monkeypatch.setattr(sources, "_READ_CHARACTERS", 7)
    match request.param:
        case "jsonl":
            return write(tmp_path / "a.jsonl", lines(ROWS) + "\n\n")
        case "json lines":
            return write(tmp_path / "a.json", lines(ROWS))
        case "json":
            return write(tmp_path / "a.json", json.dumps(ROWS))
        case "json indented":
            return write(tmp_path / "a.json", " \n" + json.dumps(ROWS, indent=2) + "\n")
        case "parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=7)
            return tmp_path / "a.parquet"
        case _:
            write(tmp_path / "2.jsonl", lines(ROWS[15:]))
            write(tmp_path / "1.jsonl", lines(ROWS[:15]))
            return tmp_path


def test_rows_come_in_order_with_what_was_read_by_then(path):
    files = ChatFiles.find(path)
    found = list(files.rows())
    assert [row for row, _ in found] == ROWS
    done = [each for _, each in found]
    assert done == sorted(done)
    assert 0 < done[0] <= done[-1] <= files.num_bytes


def test_keys_that_parquet_fills_with_null_are_taken_out(tmp_path):
    rows = [{"tools": [{"a": 1}]}, {"tools": [{"b": {"c": 2}}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    pq_keys = [row["tools"][0].keys() for row in rows_of(tmp_path)]
    assert pq_keys == [{"a"}, {"b"}]


def test_nulls_in_json_stay(tmp_path):
    assert rows_of(write(tmp_path / "a.jsonl", '{"a": {"b": null}}')) == [{"a": {"b": None}}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', "line 3 is no JSON"),
        ("a.jsonl", '{"a": 1}\n[1, 2]\n', "'[1, 2]' where a row is expected"),
        ("a.json", '[{"a": 1}, {"a"', "item 1 is no JSON"),
        ("a.json", '[{"a": 1}', "item 1 is no JSON"),
        ("a.parquet", "no parquet", "cannot be read"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path, name, text, message):
    with pytest.raises(DataError) as caught:
        rows_of(write(tmp_path / name, text))
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("names", [[], ["a.csv"], ["a.jsonl", "b.parquet"]])
def test_other_files_are_refused(tmp_path, names):
    for name in names:
        write(tmp_path / name, "")
    with pytest.raises(ConfigError, match=r"expected files of one kind among \.jsonl"):
        ChatFiles.find(tmp_path)


def test_the_settings_beside_chats_are_no_chats(tmp_path):
    chats = write(tmp_path / "chats.jsonl", "")
    write(tmp_path / "chats.jsonl.settings.json", "{}")
    assert ChatFiles.find(tmp_path).files == (chats,)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        ChatFiles.find(tmp_path / "nowhere")
