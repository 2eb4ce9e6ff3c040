import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

from dflash_cache.cache import Cache, CacheWriter, PlannedPart, TargetParts, writer_lock
from dflash_cache.cache.durable import checked_line, parse_checked_line
from dflash_cache.cache.local import LocalStorage
from dflash_cache.errors import (
    CacheCorruptError,
    CacheIncompleteError,
    CacheMismatchError,
    ConfigError,
)
from dflash_cache.types import CommittedSegment, DroppedRow, SegmentPlan, TokenSequence
from tests.support.caches import SPEC
from tests.support.caches import TARGET as PARTS

LENGTHS = {10: 4, 11: 1, 20: 7, 30: 2, 31: 3}
PLAN = [
    SegmentPlan(index=index, row_ids=np.array(rows), lengths=np.array([LENGTHS[r] for r in rows]))
    for index, rows in enumerate([[10, 11], [20], [30, 31]])
]
PLANNED_DROPS = [DroppedRow(row_id=5, reason="empty"), DroppedRow(row_id=6, reason="no_anchor")]
PART = PlannedPart(segments=PLAN, dropped=PLANNED_DROPS)


def finished(writer: CacheWriter, plan: SegmentPlan) -> tuple[Path, CommittedSegment]:
    """A whole segment in staging. Row 31 turns out not to be finite."""
    segment, sequences = writer.segment(plan), []
    for row in plan.row_ids.tolist():
        if row != 31:
            ids = np.full(LENGTHS[row], row % 20, np.int32)
            mask = np.ones(LENGTHS[row], np.uint8)
            sequences.append(TokenSequence(row_id=row, input_ids=ids, loss_mask=mask))
            rng = np.random.default_rng(row)
            segment.append(rng.standard_normal((LENGTHS[row], 2, 4), np.float32))
    dropped = [DroppedRow(row_id=31, reason="non_finite", detail="layer 1, position 0")]
    return segment.folder, segment.finish(sequences, dropped if 31 in plan.row_ids else ())


def made(root: Path, num_segments: int = 3) -> Cache:
    """A cache with the last ``num_segments`` of its plan's three segments committed."""
    root.mkdir(parents=True, exist_ok=True)
    cache = Cache.create(LocalStorage(root), SPEC, {"writers": 4}, PARTS, PART)
    writer = CacheWriter(cache)
    for plan in reversed(PLAN[len(PLAN) - num_segments :]):
        writer.commit(*finished(writer, plan))
    return cache


def read_everything(root: Path) -> None:
    """All that training reads."""
    cache = Cache.open(root)
    _ = (cache.plan, cache.target, cache.ledger)
    cache.require_complete()
    for index in cache.segments:
        cache.read(index)


def test_what_was_created_is_opened_again(tmp_path):
    made(tmp_path)
    cache = Cache.open(tmp_path)
    assert (cache.spec, cache.settings) == (SPEC, [{"writers": 4}])
    for found, expected in zip(cache.plan, PLAN, strict=True):
        assert found.index == expected.index
        assert found.row_ids.tolist() == expected.row_ids.tolist()
        assert found.lengths.tolist() == expected.lengths.tolist()
    assert (cache.target.config, cache.target.mask_token_id) == (PARTS.config, 19)
    for name in ("embedding", "head", "norm"):
        np.testing.assert_array_equal(getattr(cache.target, name), getattr(PARTS, name))


def test_a_tied_bfloat16_target_keeps_its_bits_and_has_no_head(tmp_path):
    bits = np.arange(80, dtype=np.uint16).reshape(20, 4)
    parts = TargetParts(config={}, embedding=bits, head=None, norm=None, mask_token_id=None)
    found = Cache.create(LocalStorage(tmp_path), SPEC, {}, parts, PART).target
    assert (found.head, found.norm, found.mask_token_id) == (None, None, None)
    np.testing.assert_array_equal(found.embedding, bits, strict=True)  # the dtype too


def test_plain_zarr_opens_the_hierarchy(tmp_path):
    made(tmp_path)
    root = zarr.open(tmp_path / "cache.zarr", mode="r")
    np.testing.assert_array_equal(root["target/embedding"][...], PARTS.embedding)
    assert root["plan/0000/row_ids"][...].tolist() == list(LENGTHS)
    assert root["segments/00000000/row_ids"][...].tolist() == [10, 11]


def test_the_ledger_holds_planned_drops_and_then_those_of_extraction(tmp_path):
    made(tmp_path)
    lost = DroppedRow(row_id=31, reason="non_finite", detail="layer 1, position 0")
    assert Cache.open(tmp_path).ledger == [*PLANNED_DROPS, lost]


def test_an_unfinished_cache_says_how_to_finish_it(tmp_path):
    made(tmp_path, num_segments=2)
    with pytest.raises(CacheIncompleteError, match=r"2 of 3 segments.*dflash-cache extract"):
        Cache.open(tmp_path).require_complete()


def test_a_folder_without_a_cache_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"is no cache.*dflash-cache extract"):
        Cache.open(tmp_path)


def test_another_format_version_is_refused(tmp_path):
    made(tmp_path)
    path = tmp_path / "spec.json"
    record = parse_checked_line(path.read_bytes(), "")
    record["spec"]["format_version"] = 99
    path.write_bytes(checked_line(record))
    with pytest.raises(CacheMismatchError, match="format version 99, this program reads 1"):
        Cache.open(tmp_path)


@pytest.mark.parametrize("name", ["thesis.tex", "staging/thesis.tex", "cache.zarr/thesis.tex"])
def test_a_folder_with_foreign_files_is_refused_and_left_alone(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work")
    with pytest.raises(ConfigError, match=name.split("/")[0]):
        made(tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("lost", [["spec.json"], ["spec.json", "commits.log"]], ids=len)
def test_committed_segments_without_a_spec_are_never_laid_out_anew(tmp_path, lost):
    made(tmp_path)
    for name in lost:
        (tmp_path / name).unlink()
    before = set(tmp_path.rglob("*"))
    with pytest.raises(CacheCorruptError, match=r"spec\.json is missing"):
        made(tmp_path)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stop", ["before the spec", "failed at the spec", "killed at the spec"])
def test_a_creation_that_did_not_get_to_its_end_starts_anew(tmp_path, monkeypatch, stop):
    replace = Path.replace

    def fail(*_arguments):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        if stop == "before the spec":
            patch.setattr("dflash_cache.cache.cache.fsync_tree", fail)
        else:
            patch.setattr(Path, "replace", lambda a, b: (fail if b == spec else replace)(a, b))
        if stop == "killed at the spec":  # a killed process does not clean up
            patch.setattr(Path, "unlink", lambda *_, **__: None)
        spec = tmp_path / "spec.json"
        with pytest.raises(OSError, match="no space left"):
            made(tmp_path)
    made(tmp_path)
    read_everything(tmp_path)


def test_the_writer_removes_what_a_crash_left_in_staging(tmp_path):
    cache = made(tmp_path, num_segments=1)
    left, _ = finished(CacheWriter(cache), PLAN[1])
    assert left.is_dir()
    CacheWriter(cache)
    assert list((tmp_path / "staging").iterdir()) == []


def placed_without_a_log_line(root: Path) -> Path:
    """A crash between a segment's rename into place and its line in the log."""
    folder, _ = finished(CacheWriter(made(root, num_segments=2)), PLAN[0])
    return folder.rename(root / "cache.zarr" / "segments" / "00000000")


def test_a_segment_in_place_without_a_log_line_is_adopted_by_the_writer_only(tmp_path):
    placed_without_a_log_line(tmp_path)
    cache = Cache.open(tmp_path)
    assert sorted(cache.segments) == [1, 2]
    CacheWriter(cache)
    read_everything(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "halved", "flipped"])
def test_a_segment_to_adopt_with_a_damaged_record_is_an_error_that_names_the_file(tmp_path, damage):
    path = placed_without_a_log_line(tmp_path) / "zarr.json"
    damaged(path, damage, path.read_bytes().index(b"num_tokens"))
    with pytest.raises(CacheCorruptError, match=r"00000000/zarr\.json"):
        CacheWriter(Cache.open(tmp_path))


def test_the_log_can_be_rebuilt_from_the_segments(tmp_path):
    expected = dict(made(tmp_path).segments)
    (tmp_path / "commits.log").unlink()
    CacheWriter(Cache.open(tmp_path))
    assert Cache.open(tmp_path).segments == expected


def test_a_bad_log_line_stops_the_writer_before_it_deletes_anything(tmp_path):
    cache = made(tmp_path)
    damaged(tmp_path / "commits.log", "flipped", 40)
    content = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CacheCorruptError, match=r"commits\.log, line 1"):
        CacheWriter(cache)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == content


def damaged(path: Path, damage: str, place: int | None = None, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "halved":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2 if place is None else place] ^= bits
        path.write_bytes(data)


def files_of_training(root: Path) -> list[Path]:
    """Every file that training reads. Zarr's other metadata describes and holds no values."""

    def is_read(path: Path) -> bool:
        described = path.parent.name.isdecimal() or path.parent.parent.name in ("target", "0000")
        described |= path.parent.name == "target"
        return path.name != "zarr.json" or (described and path.parent.name != "0000")

    return sorted(path for path in root.rglob("*") if path.is_file() and is_read(path))


@pytest.mark.parametrize("damage", ["missing", "halved", "flipped"])
def test_damage_to_any_file_that_training_reads_is_an_error_that_names_it(tmp_path, damage):
    made(tmp_path)
    for path in files_of_training(tmp_path):
        whole = path.read_bytes()
        damaged(path, damage)
        # A log cut short holds fewer commits: resuming takes the segments in place up again.
        cut_short = path.name == "commits.log" and damage != "flipped"
        message = "extract` again" if cut_short else str(path.relative_to(tmp_path))
        with pytest.raises(CacheIncompleteError if cut_short else CacheCorruptError, match=message):
            read_everything(tmp_path)
        path.write_bytes(whole)
    read_everything(tmp_path)


def test_sixty_random_bit_flips_are_all_found(tmp_path):
    made(tmp_path)
    files, rng = files_of_training(tmp_path), np.random.default_rng(0)
    for _ in range(60):
        path = files[rng.integers(len(files))]
        whole = path.read_bytes()
        bit = int(rng.integers(8 * len(whole)))
        damaged(path, "flipped", bit // 8, 1 << bit % 8)
        cut_short = path.name == "commits.log" and bit // 8 == len(whole) - 1
        with pytest.raises(CacheIncompleteError if cut_short else CacheCorruptError):
            read_everything(tmp_path)
        path.write_bytes(whole)
    read_everything(tmp_path)


def test_a_reader_beside_the_writer_sees_whole_segments_only(tmp_path):
    writer, done = CacheWriter(made(tmp_path, num_segments=0)), threading.Event()

    def read_on() -> set[int]:
        seen = set()
        while not done.is_set():
            cache = Cache.open(tmp_path)
            for index in cache.segments:
                cache.read(index)
            seen.add(len(cache.segments))
        return seen

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(read_on)
        for plan in PLAN:
            writer.commit(*finished(writer, plan))
        done.set()
        assert len(seen.result()) > 1
    read_everything(tmp_path)


def test_a_folder_of_others_among_the_segments_stops_no_writer(tmp_path):
    made(tmp_path, num_segments=2)
    (tmp_path / "cache.zarr" / "segments" / ".checkpoints").mkdir()
    writer = CacheWriter(Cache.open(tmp_path))
    writer.commit(*finished(writer, PLAN[0]))
    read_everything(tmp_path)


def test_what_a_killed_write_left_is_gone_with_the_next_writer(tmp_path):
    made(tmp_path)
    left = tmp_path / f".commits.log.{'0' * 32}"
    left.write_text("half")
    CacheWriter(Cache.open(tmp_path))
    assert not left.exists()


def test_one_who_looks_at_the_lock_keeps_no_writer_out(tmp_path):
    """A look holds the lock for an instant; here for longer than one and shorter than a writer."""
    with writer_lock(tmp_path):
        pass
    descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    closing = threading.Timer(0.01, os.close, [descriptor])
    closing.start()
    with writer_lock(tmp_path):
        closing.join()


def test_states_land_in_the_callers_buffer(tmp_path):
    cache = made(tmp_path)
    fresh = cache.read(0)
    buffer = np.zeros((len(fresh.hidden_TKH) + 3, *fresh.hidden_TKH.shape[1:]), np.float32)
    segment = cache.read(0, into=buffer)
    assert np.shares_memory(segment.hidden_TKH, buffer)
    assert segment.hidden_TKH.tobytes() == fresh.hidden_TKH.tobytes()
    assert not buffer[len(fresh.hidden_TKH) :].any()


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros((3, 2, 4), np.float32),
        np.zeros((9, 2, 4), np.uint16),
        np.zeros((9, 2, 3), np.float32),
        np.zeros((9, 2, 8), np.float32)[:, :, ::2],
    ],
    ids=["too small", "dtype", "shape", "not contiguous"],
)
def test_a_buffer_that_cannot_hold_the_states_is_refused(tmp_path, buffer):
    with pytest.raises(ValueError, match=r"expected \(5, 2, 4\) or more float32, contiguous"):
        made(tmp_path).read(0, into=buffer)


def test_a_shard_that_goes_bad_while_a_cache_is_open_names_the_rows_that_are_lost(tmp_path):
    cache = made(tmp_path)
    cache.read(1)
    (shard,) = (tmp_path / "cache.zarr/segments/00000001").rglob("c.0.0.0")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CacheCorruptError, match=r"bytes, expected .* rows 20 \(segment 1\)"):
        cache.read(1)
