"""Rows of chats out of .jsonl, .json and .parquet files, one after the other."""

import codecs
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_cache.cache import file_fingerprint
from dflash_cache.errors import ConfigError, DataError

from .chats import COLUMNS

KINDS = (".jsonl", ".json", ".parquet")
SETTINGS = ".settings.json"  # what ``regenerate`` writes beside its chats ends so
_PARQUET_ROWS = 256
_READ_CHARACTERS = 1 << 20
_LONGEST_ITEM = 1 << 28  # characters; a longer one is a broken file
_BLANK = re.compile(r"\s*")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatFiles:
    """Files of one kind, in the order of their names."""

    files: tuple[Path, ...]

    @classmethod
    def find(cls, path: Path) -> Self:
        """``path``, or the files in it; ``ConfigError`` if there are none of a known kind."""
        if not path.exists():
            raise ConfigError(f"{path} does not exist; name a file of chats, or a folder of them")
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        files = [each for each in inside if each.is_file() and not each.name.endswith(SETTINGS)]
        kinds = {file.suffix for file in files}
        if len(kinds) != 1 or not kinds <= set(KINDS):
            raise ConfigError(
                f"{path}: expected files of one kind among {', '.join(KINDS)}; found "
                f"{', '.join(sorted(kinds)) or 'nothing'}. A dataset in another form is written as "
                "one of them by datasets' to_json or to_parquet"
            )
        return cls(tuple(files))

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def stamps(self) -> list[list[str | int]]:
        """Size and digest of each file, whatever it is called and wherever it lies."""
        return [list(file_fingerprint(file)) for file in self.files]

    def rows(self) -> Iterator[tuple[Row, int]]:
        """Each row, and how many bytes of the files are read by then."""
        before = 0
        for file in self.files:
            for row, done in _read(file):
                if not isinstance(row, dict):
                    raise DataError(
                        f"{file}: {str(row)[:60]!r} where a row is expected, an object of columns"
                    )
                yield row, before + done
            before += file.stat().st_size


def _read(file: Path) -> Iterator[tuple[Any, int]]:
    if file.suffix == ".parquet":
        return _parquet(file)
    with file.open("rb") as content:
        start = content.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    # Files named .json are often lines of JSON.
    return _array(file) if file.suffix == ".json" and start[:1] == b"[" else _lines(file)


def _lines(file: Path) -> Iterator[tuple[Any, int]]:
    done = 0
    with file.open("rb") as content:
        for number, line in enumerate(content, start=1):
            done += len(line)
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # no UTF-8 is one too
                    said = str(error)
                    if isinstance(
                        error, json.JSONDecodeError
                    ):  # which counts lines within this one
                        said = f"{error.msg}, column {error.pos + 1}"
                    raise DataError(
                        f"{file}, line {number} is no JSON: {said}. Mend or remove the line"
                    ) from error
                yield row, done


def _array(file: Path) -> Iterator[tuple[Any, int]]:
    """The items of one JSON array, of which only a part is in memory."""
    with file.open("rb") as content, io.TextIOWrapper(content, encoding="utf-8-sig") as text:
        for item in _ArrayText(file, text).items():
            yield item, content.tell()


class _ArrayText:
    """The text of one JSON array, read as far as it is needed."""

    def __init__(self, file: Path, text: io.TextIOWrapper) -> None:
        self._file, self._text = file, text
        self._decoder = json.JSONDecoder()
        self._buffer, self._place, self._number = "", 0, 0

    def items(self) -> Iterator[Any]:
        """``DataError`` names the item where the text is not as JSON has it."""
        self._take("[")
        sign = self._take("]") if self._next() == "]" else ","
        while sign == ",":
            yield self._item()
            self._number += 1
            sign = self._take(",", "]")
        if more := self._next():
            raise self._fault(f"{more!r} stands behind the array's end")

    def _take(self, *signs: str) -> str:
        found = self._next()
        if found not in signs:
            raise self._fault(f"expected {' or '.join(signs)}, found {found or 'the end'}")
        self._place += 1
        return found

    def _next(self) -> str:
        """The next sign that is no blank; nothing at the end."""
        while True:
            blank = _BLANK.match(self._buffer, self._place)
            assert blank is not None
            self._place = blank.end()
            if self._place < len(self._buffer) or not self._read():
                return self._buffer[self._place : self._place + 1]

    def _item(self) -> Any:
        self._next()
        while True:
            try:
                item, self._place = self._decoder.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError as error:
                left = len(self._buffer) - self._place
                if left > _LONGEST_ITEM or not self._read(left):
                    raise self._fault(error.msg) from error
            except (ValueError, RecursionError) as error:
                raise self._fault(str(error)) from error
            else:
                return item

    def _read(self, least: int = 0) -> bool:
        """More of the text; False at its end."""
        try:
            more = self._text.read(max(_READ_CHARACTERS, least))
        except UnicodeDecodeError as error:
            raise self._fault(str(error)) from error
        self._buffer, self._place = self._buffer[self._place :] + more, 0
        return bool(more)

    def _fault(self, what: str) -> DataError:
        return DataError(f"{self._file}, item {self._number} is no JSON: {what}. Mend the file")


def _parquet(file: Path) -> Iterator[tuple[Any, int]]:
    size = file.stat().st_size
    try:
        with pq.ParquetFile(file) as table:
            num_rows = table.metadata.num_rows
            names = table.schema_arrow.names
            # Others may hold what Python has no value for. Of those the names are enough.
            columns = [name for name in names if name in COLUMNS]
            rows = (
                row
                for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=columns)
                for row in batch.to_pylist()
            )
            for number, row in enumerate(rows, start=1):
                plain = {name: _without_nulls(each) for name, each in row.items()}
                yield dict.fromkeys(names) | plain, size * number // num_rows
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{file} cannot be read: {error}. Write it again") from error


def _without_nulls(value: Any) -> Any:
    """Every struct in a column has the keys of all, with nulls where one had none."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
