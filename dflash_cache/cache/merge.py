"""Several caches of one identity become one: the same files under new numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_cache.errors import CacheMismatchError
from dflash_cache.types import CommittedSegment

from .cache import Cache
from .durable import fsync_tree
from .layout import SPEC, segment_folder, segment_name
from .local import LocalStorage
from .segment import SHARD_KEY
from .spec import CacheSpec, differences, part_number
from .storage import Storage
from .verify import OnSegment
from .writer import CacheWriter


def merge_caches(
    sources: Sequence[Cache],
    into: Storage,
    *,
    symlink: bool = False,
    on_segment: OnSegment | None = None,
) -> Cache:
    """Make or extend the cache ``into`` with all dataset parts and segments of ``sources``.

    A part that several have, as when machines shared one plan, becomes one with the segments of
    all. Committed segments are taken as they are, by hard links where the file system allows. With
    ``symlink`` hidden states stay where they lie, and symbolic links lead to them; caches are
    folders then. A merge that was cut short goes on. The caller holds ``into``'s lock.
    ``on_segment`` is told of each segment that is in place.
    """
    merged = _with_all_parts(sources, into)
    writer = CacheWriter(merged)
    pairs = [(source, index) for source in sources for index in sorted(source.segments)]
    for number, (source, index) in enumerate(pairs, start=1):
        place = _place_of(source.spec, index, merged.spec)
        if place not in merged.segments:
            writer.commit(*_renumbered(source, index, writer.staging, place, symlink))
        if on_segment:
            on_segment(number, len(pairs))
    return merged


def _with_all_parts(sources: Sequence[Cache], into: Storage) -> Cache:
    first, merged = sources[0], Cache.open(into) if into.exists(SPEC) else None
    _require_mergeable(sources, merged or first)
    if merged is None:
        spec = replace(first.spec, parts=first.spec.parts[:1])
        merged = Cache.create(into, spec, first.settings[0], first.target, first.part(0))
    for source in sources:
        for number, part in enumerate(source.spec.parts):
            if part_number(merged.spec, part) is None:
                spec = replace(merged.spec, parts=(*merged.spec.parts, part))
                merged.append(spec, source.settings[number], source.part(number))
    return merged


def _require_mergeable(sources: Sequence[Cache], other: Cache) -> None:
    """``CacheMismatchError``, before anything is written, unless all of them may become one."""
    together = other.spec
    for source in sources:
        _require_same_form(source, other)
        for part in source.spec.parts:
            if part_number(together, part) is None:
                together = replace(together, parts=(*together.parts, part))


def _require_same_form(source: Cache, other: Cache) -> None:
    found = replace(source.spec, parts=other.spec.parts)
    if differing := differences(found, other.spec):
        raise CacheMismatchError(
            f"{source.address} cannot be merged with {other.address}:\n  "
            + "\n  ".join(differing)
            + "\nOnly caches of one target, with one form of states, become one"
        )


def _place_of(spec: CacheSpec, index: int, merged: CacheSpec) -> int:
    """The index in ``merged`` of segment ``index`` of ``spec``."""
    source_part = spec.part_of(index)
    merged_part = part_number(merged, spec.parts[source_part])
    assert merged_part is not None
    return index - spec.first_segments[source_part] + merged.first_segments[merged_part]


def _renumbered(
    source: Cache, index: int, staging: Path, place: int, symlink: bool
) -> tuple[Path, CommittedSegment]:
    record, folder = source.record(index), staging / segment_name(place)
    files = [*record.files, SHARD_KEY] if record.num_tokens else list(record.files)
    for name in files:
        path, file = folder / name, f"{segment_folder(index)}/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if symlink and name == SHARD_KEY:  # the other files are a thousandth of it
            assert isinstance(source.storage, LocalStorage), "an object store has no links"
            source.storage.link(file, path)
        else:
            source.storage.copy(file, path)
    record = replace(record, index=place)
    (folder / "zarr.json").write_bytes(record.to_bytes())
    fsync_tree(folder)
    return folder, record.committed()
