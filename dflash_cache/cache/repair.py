"""Put a damaged cache right: restore what has a copy, un-commit what must be extracted again."""

import json
import shlex
from collections.abc import Collection, Mapping

from dflash_cache.errors import CacheAwayError, CacheCorruptError

from .cache import Cache, spec_copy
from .content import PlannedPart, TargetParts, write_groups
from .durable import parse_checked_line
from .fingerprints import check_fingerprint
from .layout import ROOT, SPEC, segment_folder
from .local import LocalStorage
from .record import own_record
from .segment import shard_name
from .storage import Storage, missing_file, segments_in_place


def restore_spec(storage: Storage) -> None:
    """Write ``spec.json`` again from the copy in the root group's attributes."""
    name = f"{ROOT}/zarr.json"
    try:
        line = json.loads(storage.read(name))["attributes"]["spec"].encode()
        parse_checked_line(line, storage.place(name))
    except (OSError, ValueError, KeyError, CacheCorruptError) as error:
        raise CacheCorruptError(
            f"{storage.place(SPEC)} and its copy in {storage.place(name)} are both damaged; "
            "restore one of them from a backup, nothing was changed"
        ) from error
    storage.write(SPEC, line)


def rebuild_commits(storage: Storage) -> None:
    """Write the commit records again from those that the segments carry."""
    records = []
    for index in segments_in_place(storage):
        try:
            records.append(own_record(storage, index))
        except CacheCorruptError:
            continue
    storage.commits.replace([record.committed() for record in records])


def rewrite_content(
    cache: Cache,
    target: TargetParts | None,
    parts: Mapping[int, PlannedPart],
    names: Collection[str],
) -> None:
    """Write the files ``names`` of target, plans and ledgers again.

    ``target`` and ``parts`` are what some of them belong to. ``CacheCorruptError``, before
    anything is replaced, if they do not come out as they were.
    """
    storage, fresh = cache.storage, cache.storage.staging()
    write_groups(fresh)
    if target is not None:
        target.write(fresh)
    for number, part in parts.items():
        part.write(fresh, number)
    for name in sorted(names):
        check_fingerprint(LocalStorage(fresh), name, cache.fingerprints[name])
    for name in sorted(names):
        storage.write(name, (fresh / name).read_bytes())
    storage.write(f"{ROOT}/zarr.json", spec_copy(storage.read(SPEC)))


def dead_links(cache: Cache, indices: Collection[int]) -> list[str]:
    """The names of what is linked, of these segments, to files that are not there."""
    storage = cache.storage
    names = map(shard_name, sorted(indices))
    return [name for name in names if storage.link_of(name) and not storage.exists(name)]


def require_links_lead(cache: Cache, indices: Collection[int]) -> None:
    """``CacheAwayError`` if states of one of these segments are linked to what is not there.

    Their disk may only not be mounted, and they are not lost then.
    """
    storage, away = cache.storage, dead_links(cache, indices)
    if away:
        raise CacheAwayError(
            f"{missing_file(storage, away[0])}. {len(away)} segments are linked so, and none was "
            "given up. If they are lost, remove the dead links: "
            f"find {shlex.quote(storage.address)} -xtype l -delete; then the same command makes "
            "the segments again, in this cache"
        )


def uncommit(cache: Cache, indices: Collection[int]) -> None:
    """Take segments out of the commits and out of the way; extraction then makes them again.

    Segments that are in place but not committed, for their records are damaged, go as well.
    """
    kept = {index: segment for index, segment in cache.segments.items() if index not in indices}
    cache.storage.commits.replace(kept.values())
    cache.segments = kept
    gone = [index for index in segments_in_place(cache.storage) if index not in kept]
    cache.storage.discard(segment_folder(index) for index in gone)
