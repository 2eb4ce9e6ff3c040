"""A cache folder: identity, plan, the target's frozen parts, and committed segments."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.errors import CacheCorruptError, CacheIncompleteError, ConfigError
from dflash_cache.types import (
    Array,
    CommittedSegment,
    DroppedRow,
    HiddenSegment,
    Int64Array,
    SegmentPlan,
)

from .arrays import read_array, write_array, write_group
from .commits import CommitLog
from .durable import (
    Fingerprints,
    checked_line,
    fingerprint_files,
    fsync_folder,
    fsync_tree,
    parse_checked_line,
    read_fingerprinted,
    write_atomically,
)
from .lock import LOCK
from .segment import SegmentWriter, own_record, read_segment, segment_name
from .spec import CacheSpec

SPEC, LEDGER, LOG, STAGING, ROOT = (
    "spec.json",
    "ledger.jsonl",
    "commits.log",
    "staging",
    "cache.zarr",
)
PLAN_ARRAYS = ("row_ids", "lengths", "segment_sequences")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetParts:
    """What training needs of the target. Arrays are float32, or bfloat16 bits as uint16."""

    config: Mapping[str, Any]  # the text model's configuration, every value written out
    embedding: Array  # [vocabulary, H]
    head: Array | None  # [vocabulary, H]; None when tied to the embedding
    norm: Array | None  # [H], the final norm's weight, where it has one
    mask_token_id: int | None  # what its tokenizer offers as a mask token


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheContent:
    """What a cache holds beside its segments."""

    plan: Sequence[SegmentPlan]
    dropped: Sequence[DroppedRow]
    target: TargetParts

    def write(self, folder: Path) -> Path:
        """Write plan, target and ledger below ``folder``, the same bytes every time."""
        root, target = folder / ROOT, self.target
        attributes = {"config": dict(target.config), "mask_token_id": target.mask_token_id}
        for name, group in (("segments", {}), ("plan", {}), ("target", attributes)):
            write_group(root / name, group)
        for name, data in _plan_arrays(self.plan).items():
            write_array(root / "plan" / name, data)
        logical = "bfloat16" if target.embedding.dtype == np.uint16 else "float32"
        for name in ("embedding", "head", "norm"):
            if (data := getattr(target, name)) is not None:
                write_array(root / "target" / name, data, logical_dtype=logical)
        lines = [f"{json.dumps(asdict(row))}\n" for row in self.dropped]
        (folder / LEDGER).write_text("".join(lines), encoding="utf-8")
        return folder


class Cache:
    """A cache opened for reading; ``segments`` holds the commit records by index."""

    def __init__(self, root: Path, identity: Mapping[str, Any]) -> None:
        """``identity`` is the content of ``spec.json``."""
        self.root = root
        self.spec = CacheSpec.from_dict(identity["spec"])
        self.settings: Mapping[str, Any] = identity["settings"]
        self.fingerprints: Fingerprints = {
            name: (size, digest) for name, (size, digest) in identity["files"].items()
        }
        self.segments = CommitLog(root / LOG).read()

    @staticmethod
    def exists(root: Path) -> bool:
        return (root / SPEC).exists()

    @classmethod
    def open(cls, root: Path) -> "Cache":
        """Open ``root``; ``ConfigError`` if it is no cache, ``CacheCorruptError`` if damaged."""
        return cls(root, read_identity(root))

    @classmethod
    def create(
        cls,
        root: Path,
        spec: CacheSpec,
        settings: Mapping[str, Any],
        content: "CacheContent",
    ) -> "Cache":
        """Lay out a new cache. It exists once ``spec.json``, written last, is in place.

        ``settings`` are those that made it, kept for ``verify --repair`` and for people.
        """
        require_free_folder(root)
        for leftover in root.glob(f".{SPEC}.*"):
            leftover.unlink()
        shutil.rmtree(root / STAGING, ignore_errors=True)
        shutil.rmtree(root / ROOT, ignore_errors=True)  # of a creation that did not get to its end
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
        rows, lengths, counts = (
            read_array(self.root, f"{ROOT}/plan/{name}", self.fingerprints) for name in PLAN_ARRAYS
        )
        bounds = np.cumsum(counts)[:-1]
        pairs = zip(np.split(rows, bounds), np.split(lengths, bounds), strict=True)
        return [
            SegmentPlan(index=index, row_ids=row_ids, lengths=tokens)
            for index, (row_ids, tokens) in enumerate(pairs)
        ]

    @property
    def target(self) -> TargetParts:
        """The target's embedding, head, final norm and configuration."""
        folder = f"{ROOT}/target"
        arrays = {
            name: read_array(self.root, f"{folder}/{name}", self.fingerprints)
            if f"{folder}/{name}/zarr.json" in self.fingerprints
            else None
            for name in ("embedding", "head", "norm")
        }
        assert arrays["embedding"] is not None
        metadata = self.read_file(f"{folder}/zarr.json")
        attributes = json.loads(metadata)["attributes"]
        return TargetParts(
            config=attributes["config"],
            mask_token_id=attributes["mask_token_id"],
            embedding=arrays["embedding"],
            head=arrays["head"],
            norm=arrays["norm"],
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
        return read_fingerprinted(self.root, name, self.fingerprints)

    def require_complete(self, num_planned: int) -> None:
        """Raise ``CacheIncompleteError`` unless every planned segment is committed."""
        if len(self.segments) < num_planned:
            raise CacheIncompleteError(
                f"{self.root} holds {len(self.segments)} of {num_planned} segments; run the same "
                "`dflash-cache extract` again to finish it, or train at the same time with "
                "`dflash-cache both --overlap`"
            )

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        """A committed segment, or those of its sequences that are in ``row_ids``; thread-safe."""
        segment = self.segments[index]
        return read_segment(self.segment_folder(index), segment, self.spec, row_ids)

    def segment_folder(self, index: int) -> Path:
        return self.root / ROOT / "segments" / segment_name(index)


def read_identity(root: Path) -> dict[str, Any]:
    """The content of ``spec.json``: spec, settings, and fingerprints of the other files."""
    path = root / SPEC
    if path.exists():
        return parse_checked_line(path.read_bytes(), str(path))
    if (root / LOG).exists():
        raise CacheCorruptError(f"{path}: the file is missing beside a commit log")
    raise ConfigError(
        f"{root} is no cache: it has no {SPEC}. Make one with: "
        f"dflash-cache extract --data D --target M --cache {root}"
    )


class CacheWriter:
    """Writes and commits segments of one cache. Whoever makes one holds ``writer_lock``.

    What a crash left behind is cleared or taken up first.

    ``segment`` may be called from any thread; ``commit`` from one thread, the committer.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._log = log = CommitLog(cache.root / LOG)
        self._staging = cache.root / STAGING
        self._segments = cache.root / ROOT / "segments"
        shutil.rmtree(self._staging, ignore_errors=True)  # segments that never were whole
        self._staging.mkdir()
        log.cut_unterminated_line()
        cache.segments = log.read()
        for folder in sorted(self._segments.iterdir()):
            if folder.name.isdecimal() and int(folder.name) not in cache.segments:
                self._adopt(folder)

    def segment(self, plan: SegmentPlan) -> SegmentWriter:
        return SegmentWriter(self._staging, self._cache.spec, plan.index, plan.num_tokens)

    def commit(self, folder: Path, segment: CommittedSegment) -> None:
        """Make a finished segment, durable in ``folder``, part of the cache."""
        folder.rename(self._segments / segment_name(segment.index))
        fsync_folder(self._segments)
        self._record(segment)

    def _adopt(self, folder: Path) -> None:
        """Log a segment that was in place, durable, when a crash came before its log line."""
        segment = own_record(folder)
        if segment is None:
            raise CacheCorruptError(
                f"{folder}/zarr.json: the segment is in place, but its record is missing or was "
                f"altered; mend it with: dflash-cache verify --cache {self._cache.root} --repair"
            )
        self._record(segment)

    def _record(self, segment: CommittedSegment) -> None:
        self._log.append(segment)
        self._cache.segments[segment.index] = segment


def require_free_folder(root: Path) -> None:
    """Only an empty folder, or one in which a creation did not get to its end, may be laid out.

    ``ConfigError`` names what else is in it; nothing is removed.
    """
    if not root.exists():
        return
    if not root.is_dir():
        raise ConfigError(f"--cache {root} is a file; name a new or empty folder")
    segments = root / ROOT / "segments"
    if (root / LOG).exists() or (segments.is_dir() and any(p.is_dir() for p in segments.iterdir())):
        raise CacheCorruptError(
            f"{root / SPEC} is missing beside committed segments; mend it with: "
            f"dflash-cache verify --cache {root} --repair"
        )
    foreign = _others(root, "", {LOCK, STAGING, ROOT, LEDGER})
    foreign += _others(root, STAGING, {ROOT, LEDGER})
    foreign += _others(root, ROOT, {"plan", "segments", "target", "zarr.json"})
    if foreign:
        raise ConfigError(
            f"--cache {root} is a folder with other things in it "
            f"({', '.join(foreign[:5])}); name a new or empty folder"
        )


def _others(root: Path, folder: str, ours: set[str]) -> list[str]:
    """What is in ``root/folder`` and not ours, nor left of a ``spec.json`` in the making."""
    if not (root / folder).is_dir():
        return []
    names = {path.name for path in (root / folder).iterdir()} - ours
    return sorted(str(Path(folder, name)) for name in names if not name.startswith(f".{SPEC}."))


def _plan_arrays(plan: Sequence[SegmentPlan]) -> dict[str, Int64Array]:
    empty = np.zeros(0, np.int64)
    return {
        "row_ids": np.concatenate([empty, *(segment.row_ids for segment in plan)]),
        "lengths": np.concatenate([empty, *(segment.lengths for segment in plan)]),
        "segment_sequences": np.array([len(segment.row_ids) for segment in plan], np.int64),
    }
