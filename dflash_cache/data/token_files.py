"""Token sequences to Arrow files that ``datasets.load_from_disk`` and ``extract`` open."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import datasets
import numpy as np
import pyarrow as pa
import xxhash

from dflash_cache.types import Array, Int64Array

from .tokenization import TokenBatch

FILE_TOKENS = 100_000_000  # some 500 MB


class TokenFiles:
    """A folder of Arrow files, written batch by batch; ``finish`` makes it a dataset."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._schema: pa.Schema | None = None
        self._file: pa.ipc.RecordBatchStreamWriter | None = None
        self._tokens_in_file = 0
        self._content = xxhash.xxh3_128()

    def write(self, batch: TokenBatch) -> None:
        """Append the sequences. ``category`` is null where a row has none."""
        if not len(batch.lengths):
            return
        columns = {
            "input_ids": _lists(batch.input_ids, batch.lengths),
            "loss_mask": _lists(batch.loss_mask, batch.lengths),
            "seq_len": pa.array(batch.lengths.astype(np.int32)),
            "category": pa.array(batch.categories, pa.string()),
        }
        record = pa.RecordBatch.from_pydict(columns)
        self._schema = record.schema
        if self._file is None or self._tokens_in_file >= FILE_TOKENS:
            self._open(record.schema)
        assert self._file is not None
        self._file.write_batch(record)
        self._tokens_in_file += len(batch.input_ids)
        self._content.update(np.ascontiguousarray(batch.input_ids).data)
        self._content.update(np.ascontiguousarray(batch.loss_mask).data)

    def finish(self) -> None:
        """Close the files and write what ``load_from_disk`` looks for. Some sequence is there."""
        assert self._schema is not None
        self.close()
        features = datasets.Features.from_arrow_schema(self._schema)
        datasets.DatasetInfo(features=features).write_to_directory(str(self._folder))
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in self._names],
            "_fingerprint": self._content.hexdigest(),
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        path = self._folder / "state.json"
        path.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, schema: pa.Schema) -> None:
        self.close()
        self._names.append(f"data-{len(self._names):05d}.arrow")
        self._file = pa.ipc.new_stream(str(self._folder / self._names[-1]), schema)
        self._tokens_in_file = 0


def _lists(values: Array, lengths: Int64Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
