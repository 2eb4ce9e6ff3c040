"""The log of committed segments: one checksummed line each, appended last."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_cache.types import CommittedSegment, DroppedRow

from .durable import checked_line, fsync_path, parse_checked_line


def record_of(segment: CommittedSegment) -> dict[str, Any]:
    """``segment`` as JSON, the form in the log and in the segment's own attributes."""
    return asdict(segment) | {"files": {name: list(pair) for name, pair in segment.files.items()}}


def segment_of(record: dict[str, Any]) -> CommittedSegment:
    dropped = tuple(DroppedRow(**row) for row in record["dropped"])
    files = {name: (size, digest) for name, (size, digest) in record["files"].items()}
    crcs = tuple(record["chunk_crcs"])
    return CommittedSegment(**record | {"dropped": dropped, "files": files, "chunk_crcs": crcs})


class CommitLog:
    """``commits.log``. A segment is committed when its line is in it, whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[int, CommittedSegment]:
        """All committed segments by index.

        An unterminated last line is a commit that a crash cut short: it does not count. Any other
        bad line is damage, reported as ``CacheCorruptError``.
        """
        segments = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            segment = segment_of(parse_checked_line(line, f"{self.path}, line {number}"))
            segments[segment.index] = segment
        return segments

    def _whole_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        # Not splitlines: it would split at other characters too, and hide an altered line's end.
        return [line + b"\n" for line in self.path.read_bytes().split(b"\n")[:-1]]

    def cut_unterminated_line(self) -> None:
        """Let the next line start clean after a crash; only the holder of the lock may."""
        if self.path.exists():
            whole = sum(len(line) for line in self._whole_lines())
            if whole != self.path.stat().st_size:
                os.truncate(self.path, whole)

    def append(self, segment: CommittedSegment) -> None:
        """Commit ``segment``, whose data must be durable already."""
        line = checked_line(record_of(segment))
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
