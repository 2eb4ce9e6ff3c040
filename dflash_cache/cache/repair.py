"""Put a damaged cache right: restore what has a copy, un-commit what must be extracted again."""

import json
from collections.abc import Collection
from pathlib import Path

from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment

from .arrays import group_metadata
from .cache import Cache
from .commits import record_of
from .content import CacheContent
from .durable import (
    check_fingerprint,
    checked_line,
    fsync_path,
    parse_checked_line,
    remove_tree,
    write_atomically,
)
from .folder import LOG, ROOT, SPEC, STAGING, read_identity
from .segment import own_record

REBUILT = "rebuilt"


def restore_spec(root: Path) -> None:
    """Write ``spec.json`` again from the copy in the root group's attributes."""
    copy = root / ROOT / "zarr.json"
    try:
        line = json.loads(copy.read_bytes())["attributes"]["spec"].encode()
        parse_checked_line(line, str(copy))
    except (OSError, ValueError, KeyError, CacheCorruptError) as error:
        raise CacheCorruptError(
            f"{root / SPEC} and its copy in {copy} are both damaged; restore one of them from a "
            "backup, nothing was changed"
        ) from error
    write_atomically(root / SPEC, line)


def rebuild_log(root: Path) -> None:
    """Write the commit log again from the records that the segments carry."""
    folders = Cache(root, read_identity(root), {}).segment_folders()
    records = [own_record(folder) for folder in folders]
    # A segment whose own record is damaged too counts as not committed.
    _write_log(root, [segment for segment in records if segment is not None])


def _write_log(root: Path, segments: Collection[CommittedSegment]) -> None:
    lines = [checked_line(record_of(segment)) for segment in segments]
    write_atomically(root / LOG, b"".join(lines))


def rewrite_content(cache: Cache, content: CacheContent, names: Collection[str]) -> None:
    """Write the files ``names`` of plan, ledger and target parts again, from ``content``.

    ``CacheCorruptError``, before anything is replaced, if they do not come out as they were.
    """
    fresh = cache.root / STAGING / REBUILT
    remove_tree(fresh)
    content.write(fresh)
    for name in sorted(names):
        check_fingerprint(fresh, name, cache.fingerprints)
    for name in sorted(names):
        (cache.root / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache.root / name, (fresh / name).read_bytes())
    spec = (cache.root / SPEC).read_text(encoding="utf-8")
    write_atomically(cache.root / ROOT / "zarr.json", group_metadata({"spec": spec}))
    remove_tree(fresh)


def uncommit(cache: Cache, indices: Collection[int]) -> None:
    """Take segments out of the log and out of the way; extraction then makes them again.

    Segments that are in place but in no log, for their records are damaged, go as well.
    """
    kept = [segment for index, segment in cache.segments.items() if index not in indices]
    _write_log(cache.root, kept)
    cache.segments = {segment.index: segment for segment in kept}
    folder = cache.root / ROOT / "segments"
    staging = cache.root / STAGING
    staging.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for segment in cache.segment_folders():
        if int(segment.name) not in cache.segments:
            remove_tree(staging / segment.name)
            segment.rename(staging / segment.name)
    fsync_path(folder)
