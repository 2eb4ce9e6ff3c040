"""What is done of a long job, one record a row, in the order in which it was done."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from dflash_cache.cache import checked_line, fsync_path, parse_checked_line

_REMEDY = "delete the line, and its row is done again"


class Journal:
    """Checked lines of JSON objects with a ``row``; for the holder of the lock alone.

    In memory there is a row's place in the file, not its record. ``CacheCorruptError`` names a
    line that was altered; a last line that a crash cut short is cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, int] = {}  # by row, the byte at which its line starts
        created = not path.exists()
        self._file: BinaryIO = path.open("a+b")
        if created:
            fsync_path(path.parent)
        try:
            self._end = self._read()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, row: int) -> bool:
        return row in self._places

    def close(self) -> None:
        self._file.close()

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Durable when this returns, all with one write."""
        lines = [checked_line(record) for record in records]
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        for record, line in zip(records, lines, strict=True):
            self._places[record["row"]] = self._end
            self._end += len(line)

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, in the order of their rows."""
        for row in sorted(self._places):
            self._file.seek(self._places[row])
            yield self._parse(self._file.readline(), self._places[row])

    def _read(self) -> int:
        """Find the place of each record; returns the end of the last whole line."""
        place = 0
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            self._places[self._parse(line, place)["row"]] = place
            place += len(line)
        return place

    def _parse(self, line: bytes, place: int) -> dict[str, Any]:
        return parse_checked_line(line, f"{self._path}, byte {place}", _REMEDY)
