"""Open what users have: saved datasets, parquet, arrow and jsonl files, memory-mapped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import datasets
import numpy as np
import pyarrow as pa

from dflash_cache.errors import ConfigError, DataError
from dflash_cache.types import Int64Array, TokenSequence

from .columns import ListColumn

_READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


class TokenRows:
    """Rows with input_ids, loss_mask and optionally seq_len, addressed by row number."""

    def __init__(self, table: pa.Table, indices: Int64Array | None, limit: int | None) -> None:
        missing = {"input_ids", "loss_mask"} - set(table.column_names)
        if missing:
            raise DataError(
                f"the dataset has no column {', '.join(sorted(missing))}; it has "
                f"{', '.join(table.column_names)}. Rename your columns to input_ids and loss_mask"
            )
        self.input_ids = ListColumn("input_ids", table.column("input_ids"))
        self.loss_mask = ListColumn("loss_mask", table.column("loss_mask"))
        self.seq_len = table.column("seq_len") if "seq_len" in table.column_names else None
        self.indices = indices
        rows = table.num_rows if indices is None else len(indices)
        self.num_rows = rows if limit is None else min(rows, limit)

    @classmethod
    def open(cls, path: Path, *, split: str | None = None, limit: int | None = None) -> Self:
        """Open ``path``: a ``save_to_disk`` folder, or .arrow, .parquet, .jsonl file(s)."""
        if not path.exists():
            raise ConfigError(f"--data {path} does not exist")
        if path.is_file() or not _is_saved(path):
            return cls(_read_files(path), None, limit)
        dataset = datasets.load_from_disk(str(path))
        if isinstance(dataset, Mapping):
            dataset = _choose_split(dataset, split, path)
        indices = dataset._indices  # a shuffled or selected dataset keeps its order apart
        order = None if indices is None else indices.column(0).to_numpy().astype(np.int64)
        return cls(dataset.data.table, order, limit)

    def stored_row(self, row: int) -> int:
        """Where ``row`` lies in the columns: differs for a shuffled or selected dataset."""
        return row if self.indices is None else int(self.indices[row])

    def sequence(self, row: int, num_tokens: int) -> TokenSequence:
        """The first ``num_tokens`` tokens of ``row``, copied out of the memory map."""
        stored = self.stored_row(row)
        return TokenSequence(
            row_id=row,
            input_ids=self.input_ids.row(stored)[:num_tokens].astype(np.int32),
            loss_mask=self.loss_mask.row(stored)[:num_tokens].astype(np.uint8),
        )


def _is_saved(path: Path) -> bool:
    if (path / "spec.json").exists():
        raise ConfigError(
            f"--data {path} is a cache, not a dataset; give it as --cache, and the dataset of "
            "tokens as --data"
        )
    return (path / "state.json").exists() or (path / "dataset_dict.json").exists()


def _choose_split(splits: Mapping[str, Any], split: str | None, path: Path) -> Any:
    names = ", ".join(splits)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None:
        raise ConfigError(f"--data {path} has splits {names}; choose one with --split")
    if split not in splits:
        raise ConfigError(f"--split {split}: {path} has {names}")
    return splits[split]


def _read_files(path: Path) -> pa.Table:
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    kinds = {file.suffix for file in files}
    if len(kinds) != 1 or not kinds <= {".arrow", *_READERS}:
        raise ConfigError(
            f"--data {path}: expected a folder written by datasets' save_to_disk, or files of one "
            f"kind among .arrow, .parquet, .jsonl; found {', '.join(sorted(kinds)) or 'nothing'}"
        )
    kind = kinds.pop()
    if kind == ".arrow":
        return pa.concat_tables([_map_arrow(file) for file in files])
    names = [str(file) for file in files]
    # datasets converts once to Arrow files in its own folder and maps those.
    return datasets.load_dataset(_READERS[kind], data_files=names, split="train").data.table


def _map_arrow(file: Path) -> pa.Table:
    source = pa.memory_map(str(file))
    if file.open("rb").read(6) == b"ARROW1":
        return pa.ipc.open_file(source).read_all()
    return pa.ipc.open_stream(source).read_all()
