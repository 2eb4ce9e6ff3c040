import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_cache.data import sources
from dflash_cache.data.chats import Chat, Text, UnusableRowError, parse_row
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
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', "line 3 is no JSON: Expecting value, column 8"),
        ("a.jsonl", '{"a": 1}\n[1, 2]\n', "'[1, 2]' where a row is expected"),
        ("a.json", '[{"a": 1}, {"a"', "item 1 is no JSON"),
        ("a.json", '[{"a": 1}', "item 1 is no JSON: expected , or ], found the end"),
        ("a.json", '[{"a": 1}, null, {"a": 2}]', "'None' where a row is expected"),
        ("a.json", '[{"a": 1}] [{"a": 2}]', "'[' stands behind the array's end"),
        ("a.json", '[{"a": 1} {"a": 2}]', "item 1 is no JSON: expected , or ], found {"),
        ("a.json", '[{"a": 1},]', "item 1 is no JSON"),
        ("a.json", '[{"a": ' + "9" * 5000 + "}]", "item 0 is no JSON: Exceeds the limit"),
        ("a.json", "[" * 100_000, "item 0 is no JSON"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1 is no JSON"),
        ("a.parquet", "no parquet", "cannot be read"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path, name, text, message):
    with pytest.raises(DataError) as caught:
        rows_of(write(tmp_path / name, text))
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_an_array_that_is_no_utf8_is_named(tmp_path):
    (tmp_path / "a.json").write_bytes(b'[{"a": "\xe9"}]')
    with pytest.raises(DataError, match=r"a\.json, item 0 is no JSON: 'utf-8' codec"):
        rows_of(tmp_path)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_byte_order_mark_is_no_content(tmp_path, name):
    text = json.dumps(ROWS) if name == "a.json" else lines(ROWS)
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert rows_of(tmp_path) == ROWS


def test_an_empty_array_has_no_rows(tmp_path):
    assert rows_of(write(tmp_path / "a.json", " [ ] \n")) == []


def test_of_parquet_only_columns_of_chats_are_read(tmp_path):
    beyond = pa.array([2**61], pa.timestamp("us"))  # no date of Python's
    pq.write_table(pa.table({"text": ["a"], "when": beyond}), tmp_path / "a.parquet")
    assert rows_of(tmp_path) == [{"text": "a", "when": None}]
    pq.write_table(pa.table({"when": beyond, "answer": ["a"]}), tmp_path / "a.parquet")
    (row,) = rows_of(tmp_path)
    with pytest.raises(DataError, match="it has when, answer; expected"):
        parse_row(row, has_template=True)


def test_a_text_in_parquet_that_is_no_utf8_is_an_error_that_names_the_file(tmp_path):
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xe9"))
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: 'utf-8' codec"):
        rows_of(tmp_path)


NULLS = [
    {"messages": None, "text": "a", "prompt": None, "response": None},
    {
        "messages": [{"role": "user", "content": "a"}],
        "text": None,
        "prompt": None,
        "response": None,
    },
    {"messages": None, "text": None, "prompt": None, "response": None},
    {"messages": None, "text": None, "prompt": "a", "response": "b"},
]


def test_columns_that_are_null_mean_the_same_in_every_kind_of_file(tmp_path):
    write(tmp_path / "a.jsonl", lines(NULLS))
    pq.write_table(pa.Table.from_pylist(NULLS), tmp_path / "b.parquet")
    read = [rows_of(tmp_path / name) for name in ("a.jsonl", "b.parquet")]
    assert read[0] == read[1] == NULLS
    kinds = []
    for row in NULLS:
        try:
            kinds.append(type(parse_row(row, has_template=True)))
        except UnusableRowError as error:
            kinds.append(error.reason)
    assert kinds == [Text, Chat, "empty", Chat]


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
