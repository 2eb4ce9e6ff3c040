"""A cache folder: identity, plan, the target's frozen parts, and committed segments."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.errors import CacheCorruptError, CacheIncompleteError
from dflash_cache.types import (
    Array,
    CommittedSegment,
    DroppedRow,
    HiddenSegment,
    Int64Array,
    SegmentPlan,
)

from .arrays import read_array, write_group
from .commits import CommitLog
from .content import PLAN_ARRAYS, CacheContent, TargetParts
from .durable import (
    Fingerprints,
    checked_line,
    fingerprint_files,
    fsync_tree,
    read_fingerprinted,
    remove_tree,
    write_atomically,
)
from .folder import LEDGER, LOG, ROOT, SPEC, STAGING, read_identity, require_free_folder
from .segment import read_segment, segment_name
from .spec import CacheSpec


class Cache:
    """A cache opened for reading; ``segments`` holds the commit records by index."""

    def __init__(
        self,
        root: Path,
        identity: Mapping[str, Any],
        segments: dict[int, CommittedSegment],
    ) -> None:
        """``identity`` is the content of ``spec.json``."""
        self.root = root
        self.spec = CacheSpec.from_dict(identity["spec"])
        self.settings: Mapping[str, Any] = identity["settings"]
        self.fingerprints: Fingerprints = {
            name: (size, digest) for name, (size, digest) in identity["files"].items()
        }
        self.segments = segments

    @staticmethod
    def exists(root: Path) -> bool:
        return (root / SPEC).exists()

    @classmethod
    def open(cls, root: Path | str) -> "Cache":
        """Open ``root``; ``ConfigError`` if it is no cache, ``CacheCorruptError`` if damaged."""
        root = Path(root)
        return cls(root, read_identity(root), CommitLog(root / LOG).read())

    @classmethod
    def create(
        cls,
        root: Path,
        spec: CacheSpec,
        settings: Mapping[str, Any],
        content: CacheContent,
    ) -> "Cache":
        """Lay out a new cache. It exists once ``spec.json``, written last, is in place.

        ``settings`` are those that made it, kept for ``verify --repair`` and for people.
        """
        require_free_folder(root)
        for leftover in root.glob(f".{SPEC}.*"):
            leftover.unlink()
        remove_tree(root / STAGING)
        remove_tree(root / ROOT)  # of a creation that did not get to its end
        staging = content.write(root / STAGING)
        files = fingerprint_files(staging)
        line = checked_line({"spec": spec.as_dict(), "settings": settings, "files": files})
        # The root group holds a copy, for readers without this program and for repair.
        write_group(staging / ROOT, {"spec": line.decode()})
        fsync_tree(staging)
        (staging / ROOT).rename(root / ROOT)
        (staging / LEDGER).rename(root / LEDGER)
        write_atomically(root / SPEC, line)
        return cls.open(root)

    @property
    def plan(self) -> list[SegmentPlan]:
        """All planned segments in plan order, committed or not."""
        rows, lengths, counts = (self._read_array(f"plan/{name}") for name in PLAN_ARRAYS)
        bounds = np.cumsum(counts)[:-1]
        pairs = zip(np.split(rows, bounds), np.split(lengths, bounds), strict=True)
        return [
            SegmentPlan(index=index, row_ids=row_ids, lengths=tokens)
            for index, (row_ids, tokens) in enumerate(pairs)
        ]

    @property
    def target(self) -> TargetParts:
        """The target's embedding, head, final norm and configuration."""
        attributes = json.loads(self.read_file(f"{ROOT}/target/zarr.json"))["attributes"]
        optional = {
            name: self._read_array(f"target/{name}")
            if f"{ROOT}/target/{name}/zarr.json" in self.fingerprints
            else None
            for name in ("head", "norm")
        }
        return TargetParts(
            config=attributes["config"],
            mask_token_id=attributes["mask_token_id"],
            embedding=self._read_array("target/embedding"),
            **optional,
        )

    @property
    def ledger(self) -> list[DroppedRow]:
        """Every row that was left out: by the plan, then by extraction."""
        lines = self.read_file(LEDGER).splitlines()
        planned = [DroppedRow(**json.loads(line)) for line in lines]
        return planned + [
            row for _, segment in sorted(self.segments.items()) for row in segment.dropped
        ]

    def read_file(self, name: str) -> bytes:
        """One of the files beside the segments, checked."""
        with self._remedy():
            return read_fingerprinted(self.root, name, self.fingerprints)

    def _read_array(self, name: str) -> Array:
        with self._remedy():
            return read_array(self.root, f"{ROOT}/{name}", self.fingerprints)

    @contextmanager
    def _remedy(self) -> Iterator[None]:
        """Let an error of damage end with the command that mends it."""
        try:
            yield
        except CacheCorruptError as error:
            raise CacheCorruptError(
                f"{error}. Mend it with: dflash-cache verify --cache {self.root} --repair"
            ) from error

    def require_complete(self, num_planned: int) -> None:
        """Raise ``CacheIncompleteError`` unless every planned segment is committed."""
        if len(self.segments) < num_planned:
            raise CacheIncompleteError(
                f"{self.root} holds {len(self.segments)} of {num_planned} segments; run the same "
                "`dflash-cache extract` again to finish it, or train at the same time with "
                "`dflash-cache both --overlap`"
            )

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        """A committed segment, or those of its sequences that are in ``row_ids``; thread-safe.

        ``CacheCorruptError`` names file, rows and the way to mend it.
        """
        segment = self.segments[index]
        with self._remedy():
            return read_segment(self.segment_folder(index), segment, self.spec, row_ids)

    def segment_folders(self) -> list[Path]:
        """All segments in place, committed or not."""
        folder = self.root / ROOT / "segments"
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if path.name.isdecimal())

    def segment_folder(self, index: int) -> Path:
        return self.root / ROOT / "segments" / segment_name(index)
