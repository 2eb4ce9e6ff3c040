"""Rows of chats out of .jsonl, .json and .parquet files, one after the other."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_cache.errors import ConfigError, DataError

KINDS = (".jsonl", ".json", ".parquet")
SETTINGS = ".settings.json"  # what ``regenerate`` writes beside its chats ends so
_PARQUET_ROWS = 256
_READ_CHARACTERS = 1 << 20
_LONGEST_ITEM = 1 << 28  # characters; a longer one is a broken file
_BETWEEN_ITEMS = re.compile(r"[\s,]*")

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
        """Name, size and time of each file: another content shows without a look into it."""
        stats = [(file, file.stat()) for file in self.files]
        return [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]

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
        start = content.read(4096).lstrip()
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
                except ValueError as error:  # no UTF-8 is one too
                    raise DataError(
                        f"{file}, line {number} is no JSON: {error}. Mend or remove the line"
                    ) from error
                yield row, done


def _array(file: Path) -> Iterator[tuple[Any, int]]:
    """The items of one JSON array, of which only a part is in memory."""
    decoder = json.JSONDecoder()
    with file.open("rb") as content, io.TextIOWrapper(content, encoding="utf-8") as text:
        buffer = text.read(_READ_CHARACTERS)
        place = buffer.index("[") + 1
        for number in count():
            item, buffer, place = _next_item(decoder, text, buffer, place, f"{file}, item {number}")
            if item is None:
                return
            yield item, content.tell()


def _next_item(
    decoder: json.JSONDecoder, text: Any, buffer: str, place: int, where: str
) -> tuple[Any, str, int]:
    """The next item or None at the array's end, the text read so far and the place behind it."""
    while True:
        between = _BETWEEN_ITEMS.match(buffer, place)
        assert between is not None
        place = between.end()
        if buffer.startswith("]", place):
            return None, buffer, place
        try:
            item, place = decoder.raw_decode(buffer, place)
        except json.JSONDecodeError as error:
            more = text.read(max(_READ_CHARACTERS, len(buffer) - place))
            if not more or len(buffer) - place > _LONGEST_ITEM:
                raise DataError(f"{where} is no JSON: {error.msg}. Write the file again") from error
            buffer, place = buffer[place:] + more, 0
        else:
            return item, buffer, place


def _parquet(file: Path) -> Iterator[tuple[Any, int]]:
    size = file.stat().st_size
    try:
        with pq.ParquetFile(file) as table:
            num_rows = table.metadata.num_rows
            rows = (
                row
                for batch in table.iter_batches(batch_size=_PARQUET_ROWS)
                for row in batch.to_pylist()
            )
            for number, row in enumerate(rows, start=1):
                yield _without_nulls(row), size * number // num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file} cannot be read: {error}. Write it again") from error


def _without_nulls(value: Any) -> Any:
    """Every struct of a column has the keys of all, with nulls where a row had none."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
