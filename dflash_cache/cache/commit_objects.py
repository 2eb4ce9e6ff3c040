"""Commit records in an object store: one small object for each segment, written last."""

from collections.abc import Callable, Collection

from dflash_cache.types import CommittedSegment

from .commits import commit_line, committed_segment
from .durable import parse_checked_line
from .layout import segment_name
from .object_store import ObjectStore, naming, obstore

COMMITS = "commits"
SUMMARY = "commits.summary"
SUMMARY_EVERY = 256  # commits: reading fetches the summary and the few records after it


class CommitObjects:
    """``commits/00000012`` says that segment 12 is committed.

    ``commits.summary`` repeats the records of many, to be fetched at once; it decides nothing.
    """

    def __init__(self, store: ObjectStore, place: str, require_lease: Callable[[], None]) -> None:
        self.name = COMMITS
        self._store = store
        self._place = place
        self._require_lease = require_lease
        self._lines: dict[str, bytes] = {}  # as of the last read or append
        self._unsummarized = 0

    def files(self) -> list[str]:
        with naming(self._place):
            listed = obstore.list(self._store, COMMITS)
            return [SUMMARY, *(item["path"] for batch in listed for item in batch)]

    def is_cut_short(self) -> bool:
        """Never: an object is put whole or not at all."""
        return False

    def read(self) -> dict[int, CommittedSegment]:
        summary, lines = self._summary(), {}
        for path in self.files()[1:]:
            name = path.rsplit("/", 1)[-1]
            lines[name] = summary.get(name) or self._get(path)
        self._lines, self._unsummarized = lines, len(lines.keys() - summary.keys())
        segments = [self._segment(name, line) for name, line in lines.items()]
        return {segment.index: segment for segment in segments}

    def _get(self, path: str) -> bytes:
        with naming(f"{self._place}: {path}"):
            return bytes(obstore.get(self._store, path).bytes())

    def _segment(self, name: str, line: bytes) -> CommittedSegment:
        return committed_segment(parse_checked_line(line, f"{self._place}/{name}"))

    def _summary(self) -> dict[str, bytes]:
        try:
            data = self._get(SUMMARY)
        except FileNotFoundError:
            return {}
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
        segments = [self._segment(SUMMARY, line) for line in lines]
        return {segment_name(s.index): line for s, line in zip(segments, lines, strict=True)}

    def append(self, segment: CommittedSegment) -> None:
        self._require_lease()
        name, line = segment_name(segment.index), commit_line(segment)
        path = f"{COMMITS}/{name}"
        with naming(f"{self._place}: {path}"):
            try:
                obstore.put(self._store, path, line, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                # A try whose answer was lost has put it; anything else is another writer's.
                if self._get(path) != line:
                    raise
        self._lines[name] = line
        self._unsummarized += 1
        if self._unsummarized >= SUMMARY_EVERY:
            self._summarize()

    def evicted(self) -> set[int]:
        """None: only a folder has a disk budget."""
        return set()

    def replace(self, segments: Collection[CommittedSegment]) -> None:
        self._require_lease()
        kept = {segment_name(segment.index): commit_line(segment) for segment in segments}
        gone = [path for path in self.files()[1:] if path.rsplit("/", 1)[-1] not in kept]
        self._lines = kept
        self._summarize()  # first: an old line in it would hide what is committed after a crash
        with naming(self._place):
            if gone:
                obstore.delete(self._store, gone)
            for name, line in kept.items():
                obstore.put(self._store, f"{COMMITS}/{name}", line)

    def _summarize(self) -> None:
        with naming(f"{self._place}: {SUMMARY}"):
            obstore.put(self._store, SUMMARY, b"".join(self._lines.values()))
        self._unsummarized = 0
