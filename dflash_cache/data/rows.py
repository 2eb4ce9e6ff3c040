"""Open what users have: saved datasets, parquet, arrow and jsonl files, memory-mapped."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import datasets
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dflash_cache.errors import ConfigError, DataError
from dflash_cache.types import TokenSequence

from .columns import INTEGERS, NUMBERS, ListColumn

_SAVED = ("state.json", "dataset_dict.json")  # by save_to_disk
_CHATS = {"messages", "conversations", "prompt"}  # columns of what ``tokenize`` takes
_READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


class TokenRows:
    """Rows with input_ids, loss_mask, optionally seq_len and category, by row number."""

    def __init__(self, table: pa.Table, limit: int | None = None) -> None:
        missing = {"input_ids", "loss_mask"} - set(table.column_names)
        if missing:
            remedy = "Rename your columns to input_ids and loss_mask"
            if _CHATS & set(table.column_names):
                remedy = "Chats become tokens with: dflash-cache tokenize CHATS --target M --out D"
            raise DataError(
                f"the dataset has no column {', '.join(sorted(missing))}; it has "
                f"{', '.join(table.column_names)}. {remedy}"
            )
        self.input_ids = ListColumn("input_ids", table.column("input_ids"), INTEGERS)
        self.loss_mask = ListColumn("loss_mask", table.column("loss_mask"))
        self.seq_len = _lengths_of(table)
        named = table.column("category") if "category" in table.column_names else None
        self._category = named if named is not None and _is_text(named.type) else None
        self.num_rows = table.num_rows if limit is None else min(table.num_rows, limit)

    @classmethod
    def open(cls, path: Path, *, split: str | None = None, limit: int | None = None) -> Self:
        """Open ``path``: a ``save_to_disk`` folder, or .arrow, .parquet, .jsonl file(s)."""
        if not path.exists():
            raise ConfigError(f"--data {path} does not exist")
        if path.is_file() or not _is_saved(path):
            if split is not None:
                raise ConfigError(f"--split {split}: {path} has no splits")
            return cls(_read_files(path), limit)
        try:
            dataset = datasets.load_from_disk(str(path))
        except IndexError as error:  # it finds no table to join
            raise DataError(f"--data {path}: the dataset is empty") from error
        if isinstance(dataset, Mapping):
            dataset = _choose_split(dataset, split, path)
        elif split is not None:
            raise ConfigError(f"--split {split}: {path} has no splits")
        if not dataset.num_rows:
            raise DataError(f"--data {path}: the dataset is empty")
        # save_to_disk writes a shuffled or selected dataset in its new order.
        return cls(dataset.data.table, limit)

    def category(self, row: int) -> str | None:
        """What the column ``category`` says; None where it is null, no text or not there."""
        return None if self._category is None else self._category[row].as_py()

    def sequence(self, row: int, num_tokens: int) -> TokenSequence:
        """The first ``num_tokens`` tokens of ``row``, copied out of the memory map."""
        return TokenSequence(
            row_id=row,
            input_ids=self.input_ids.row(row)[:num_tokens].astype(np.int32),
            loss_mask=self.loss_mask.row(row)[:num_tokens].astype(np.uint8),
        )


def _lengths_of(table: pa.Table) -> pa.ChunkedArray | None:
    if "seq_len" not in table.column_names:
        return None
    column = table.column("seq_len")
    if not any(check(column.type) for check in NUMBERS):
        raise DataError(f"column 'seq_len' has type {column.type}, expected an integer")
    return column


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_dataset(path: Path) -> bool:
    """Whether ``path`` is of a form that ``TokenRows.open`` takes, whatever its content."""
    if path.is_dir() and _is_saved(path):
        return True
    kinds = _kinds([path] if path.is_file() else list(path.iterdir()))
    return len(kinds) == 1 and kinds <= {".arrow", *_READERS}


def _is_saved(path: Path) -> bool:
    if (path / "spec.json").exists():
        raise ConfigError(
            f"--data {path} is a cache, not a dataset; give it as --cache, and the dataset of "
            "tokens as --data"
        )
    return any((path / name).exists() for name in _SAVED)


def _choose_split(splits: Mapping[str, Any], split: str | None, path: Path) -> Any:
    names = ", ".join(splits)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None:
        raise ConfigError(f"--data {path} has splits {names}; choose one with --split")
    if split not in splits:
        raise ConfigError(f"--split {split}: {path} has {names}")
    return splits[split]


def _kinds(paths: Sequence[Path]) -> set[str]:
    return {path.suffix for path in paths if path.is_file()}


def _read_files(path: Path) -> pa.Table:
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    kinds = _kinds(files)
    if len(kinds) != 1 or not kinds <= {".arrow", *_READERS}:
        raise ConfigError(
            f"--data {path}: expected a folder written by datasets' save_to_disk, or files of one "
            f"kind among .arrow, .parquet, .jsonl; found {', '.join(sorted(kinds)) or 'nothing'}"
        )
    kind = kinds.pop()
    if kind == ".arrow":
        return _join(path, [_map_arrow(file) for file in files])
    if not any(file.stat().st_size for file in files):
        raise DataError(f"--data {path}: the dataset is empty")
    if any("::" in str(file) for file in files):
        raise ConfigError(f"--data {path}: a name with '::' cannot be opened; rename it")
    # datasets takes names for patterns.
    names = [glob.escape(str(file)) for file in files]
    # datasets converts once to Arrow files in its own folder and maps those.
    try:
        if kind == ".parquet" and not sum(parquet.read_metadata(file).num_rows for file in files):
            raise DataError(f"--data {path}: the dataset is empty")
        return datasets.load_dataset(_READERS[kind], data_files=names, split="train").data.table
    except (datasets.exceptions.DatasetGenerationError, pa.ArrowInvalid) as error:
        cause = error.__cause__ or error
        raise DataError(f"{path} cannot be read: {cause}. Write it again") from error
    except ValueError as error:  # objects without a key make no table
        raise DataError(f"{path} has no rows that can be read: {error}") from error


def _join(path: Path, tables: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise DataError(f"--data {path}: its files differ in their columns: {error}") from error


def _map_arrow(file: Path) -> pa.Table:
    source = pa.memory_map(str(file))
    is_file_format = source.read(6) == b"ARROW1"
    source.seek(0)
    try:
        return (pa.ipc.open_file if is_file_format else pa.ipc.open_stream)(source).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file} cannot be read: {error}. Write it again") from error
