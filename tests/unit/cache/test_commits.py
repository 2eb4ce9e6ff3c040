import os

import pytest

from dflash_cache.cache.commits import CommitLog, commit_line, committed_segment
from dflash_cache.cache.durable import parse_checked_line
from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment, DroppedRow


def committed(index: int, *, dropped: tuple[DroppedRow, ...] = ()) -> CommittedSegment:
    return CommittedSegment(
        index=index,
        num_sequences=2,
        num_tokens=30,
        num_chunks=3,
        bytes_raw=480,
        bytes_stored=500 + index,
        record_digest="0f1e2d",
        dropped=dropped,
    )


@pytest.fixture
def log(tmp_path) -> CommitLog:
    """A log of the segments 4, 0 and 2."""
    log = CommitLog(tmp_path / "commits.log")
    for index in (4, 0, 2):
        log.append(committed(index))
    return log


def test_a_line_gives_its_segment_back():
    dropped = (DroppedRow(row_id=7, reason="non_finite", detail="layer 1, position 3"),)
    segment = committed(3, dropped=dropped)
    assert committed_segment(parse_checked_line(commit_line(segment), "here")) == segment


def test_a_log_that_does_not_exist_holds_no_segments(tmp_path):
    assert CommitLog(tmp_path / "commits.log").read() == {}


def test_appended_segments_are_read_by_index(log):
    assert CommitLog(log.path).read() == {index: committed(index) for index in (4, 0, 2)}


def test_readers_ignore_an_unterminated_last_line_and_leave_it(log):
    whole = log.path.read_bytes()
    for cut in (1, 5, len(whole.splitlines()[-1])):
        torn = whole[:-cut]
        log.path.write_bytes(torn)
        assert sorted(log.read()) == [0, 4]
        assert log.path.read_bytes() == torn


def test_the_writer_cuts_an_unterminated_last_line_and_goes_on(log):
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b"1234abcd {half of a rec")
    log.cut_unterminated_line()
    assert log.path.read_bytes() == whole
    log.append(committed(9))
    assert sorted(log.read()) == [0, 2, 4, 9]


def test_the_writer_leaves_a_whole_log_as_it_is(log):
    whole = log.path.read_bytes()
    log.cut_unterminated_line()
    assert log.path.read_bytes() == whole


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_flipped_byte_in_any_line_is_an_error_that_names_the_line(log, number):
    lines = log.path.read_bytes().splitlines(keepends=True)
    line = bytearray(lines[number - 1])
    line[20] ^= 1
    lines[number - 1] = bytes(line)
    log.path.write_bytes(b"".join(lines))
    with pytest.raises(CacheCorruptError, match=rf"commits\.log, line {number}: "):
        log.read()


def test_every_flipped_bit_before_the_last_line_end_is_found_and_nothing_is_deleted(log):
    whole = log.path.read_bytes()
    for bit in range(8 * (len(whole) - 1)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        log.path.write_bytes(flipped)
        log.cut_unterminated_line()
        assert log.path.read_bytes() == flipped, f"bit {bit}"
        with pytest.raises(CacheCorruptError):
            log.read()


def test_a_line_end_that_became_a_carriage_return_is_an_error_and_nothing_is_deleted(log):
    damaged = log.path.read_bytes().replace(b"\n", b"\r", 1)
    log.path.write_bytes(damaged)
    log.cut_unterminated_line()
    assert log.path.read_bytes() == damaged
    with pytest.raises(CacheCorruptError, match="line 1"):
        log.read()


def test_a_lost_or_empty_line_in_the_middle_of_another_is_an_error(log):
    first, second, third = log.path.read_bytes().splitlines(keepends=True)
    for content in (first + b"\n" + second, first[:-9] + second + third):
        log.path.write_bytes(content)
        with pytest.raises(CacheCorruptError):
            log.read()


@pytest.mark.parametrize("fault", ["short write", "failed sync"])
def test_an_append_that_fails_leaves_the_log_as_it_was(log, monkeypatch, fault):
    whole = log.path.read_bytes()
    if fault == "short write":
        write = os.write
        monkeypatch.setattr("os.write", lambda fd, data: write(fd, data[:9]))
    else:

        def fail(_descriptor):
            raise OSError("no space left on device")

        monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=r"is the disk full|no space left"):
        log.append(committed(9))
    assert log.path.read_bytes() == whole


def test_an_append_is_durable_when_it_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    log = CommitLog(tmp_path / "commits.log")
    log.append(committed(0))
    assert set(synced) == {log.path.stat().st_ino, tmp_path.stat().st_ino}
