"""The log of committed segments: one checksummed line each, appended last."""

import os
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_cache.types import CommittedSegment, DroppedRow

from .durable import checked_line, fsync_path, parse_checked_line, write_atomically

EVICTED = "evicted"  # the only field of a line that takes a segment out again


def commit_line(segment: CommittedSegment) -> bytes:
    return checked_line(asdict(segment))


def committed_segment(record: dict[str, Any]) -> CommittedSegment:
    dropped = tuple(DroppedRow(**row) for row in record["dropped"])
    return CommittedSegment(**record | {"dropped": dropped})


class CommitLog:
    """``commits.log``. A segment is committed when its line is in it, whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def files(self) -> list[str]:
        return [self.name]

    def read(self) -> dict[int, CommittedSegment]:
        """All committed segments by index.

        An unterminated last line is a commit that a crash cut short: it does not count. Any other
        bad line is damage, reported as ``CacheCorruptError``.
        """
        segments: dict[int, CommittedSegment] = {}
        for record in self._records():
            if EVICTED in record:
                segments.pop(record[EVICTED], None)
            else:
                segments[record["index"]] = committed_segment(record)
        return segments

    def evicted(self) -> set[int]:
        """Segments that were committed and then evicted, committed again since or not."""
        return {record[EVICTED] for record in self._records() if EVICTED in record}

    def _records(self) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(self._whole_lines(), start=1):
            yield parse_checked_line(line, f"{self.path}, line {number}")

    def _whole_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        # Not splitlines: it would split at other characters too, and hide an altered line's end.
        return [line + b"\n" for line in self.path.read_bytes().split(b"\n")[:-1]]

    def is_cut_short(self) -> bool:
        """Whether the last line has no end."""
        return self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")

    def cut_unterminated_line(self) -> None:
        """Let the next line start clean after a crash; only the holder of the lock may."""
        if self.is_cut_short():
            os.truncate(self.path, sum(map(len, self._whole_lines())))

    def append(self, segment: CommittedSegment) -> None:
        """Commit ``segment``, whose data must be durable already."""
        self._append(commit_line(segment))

    def evict(self, index: int) -> None:
        """Segment ``index`` is committed no more."""
        self._append(checked_line({EVICTED: index}))

    def _append(self, line: bytes) -> None:
        created = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            start = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(f"{self.path}: short write of a commit record; is the disk full?")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, start)
                raise
        finally:
            os.close(descriptor)
        if created:
            fsync_path(self.path.parent)

    def replace(self, segments: Collection[CommittedSegment]) -> None:
        """Write the log anew, with ``segments`` alone."""
        write_atomically(self.path, b"".join(map(commit_line, segments)))
