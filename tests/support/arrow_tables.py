"""Datasets of tokens in every Arrow form, and a survey of them with small limits."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dflash_cache.data import Survey, TokenRows, survey

KINDS = ("list", "large_list", "fixed_size_list")
Row = dict[str, Any]


def random_rows(count: int, *, seed: int = 0, longest: int = 40, shortest: int = 2) -> list[Row]:
    """Rows of random length whose second half is trained on, as in the fault trials' D0."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in rng.integers(shortest, longest + 1, count).tolist():
        ids = rng.integers(0, 512, length).tolist()
        mask = [int(2 * position >= length) for position in range(length)]
        rows.append({"input_ids": ids, "loss_mask": mask})
    return rows


def list_type(kind: str, values: pa.DataType, size: int) -> pa.DataType:
    if kind == "fixed_size_list":
        return pa.list_(values, size)
    return pa.large_list(values) if kind == "large_list" else pa.list_(values)


def as_table(
    rows: Sequence[Row],
    *,
    kind: str = "list",
    ids: pa.DataType | None = None,
    mask: pa.DataType | None = None,
) -> pa.Table:
    """``rows`` as one chunk a column; a fixed_size_list takes its size from the first row."""
    size = next((len(row["input_ids"]) for row in rows if row["input_ids"]), 0)
    types = {"input_ids": ids or pa.int64(), "loss_mask": mask or pa.int64()}
    columns = {
        name: pa.array([row[name] for row in rows], list_type(kind, values, size))
        for name, values in types.items()
    }
    if rows and "seq_len" in rows[0]:
        columns["seq_len"] = pa.array([row["seq_len"] for row in rows], pa.int64())
    return pa.table(columns)


def in_chunks(table: pa.Table, *bounds: int) -> pa.Table:
    """The same rows with chunks that end at ``bounds``; equal bounds make an empty chunk."""
    edges = [0, *bounds, table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in pairwise(edges)]
    columns = [
        pa.chunked_array(
            [piece.column(name).combine_chunks() for piece in pieces],
            table.schema.field(name).type,
        )
        for name in table.column_names
    ]
    return pa.table(columns, table.column_names)


def sliced(table: pa.Table, before: Row, after: Row) -> pa.Table:
    """``table`` as a slice out of a longer one, so that its arrays have an offset."""
    types = {name: table.schema.field(name).type for name in table.column_names}
    extra = [
        pa.table({name: pa.array([row[name]], kind) for name, kind in types.items()})
        for row in (before, after)
    ]
    whole = pa.concat_tables([extra[0], table, extra[1]]).combine_chunks()
    return whole.slice(1, table.num_rows)


def surveyed(
    rows: TokenRows | pa.Table | Sequence[Row],
    *,
    vocab_size: int = 512,
    max_seq_len: int = 256,
    too_long: str = "truncate",
    on_bad_row: str = "fail",
) -> Survey:
    if not isinstance(rows, TokenRows):
        rows = TokenRows(rows if isinstance(rows, pa.Table) else as_table(rows))
    return survey(
        rows,
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        too_long=too_long,
        on_bad_row=on_bad_row,
    )


def reasons(found: Survey) -> dict[int, str]:
    return {row.row_id: row.reason for row in found.dropped}


def as_jsonl(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
