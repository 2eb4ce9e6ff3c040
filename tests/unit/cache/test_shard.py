"""Shards written and read without a cache around them."""

from pathlib import Path

import numpy as np
import pytest

from dflash_cache.cache.codecs import CODECS
from dflash_cache.cache.local import LocalStorage
from dflash_cache.cache.record import SegmentRecord
from dflash_cache.cache.shard import ALIGNMENT, ShardWriter
from dflash_cache.cache.shard_reader import DamagedChunkError, ShardReader
from dflash_cache.cache.tokens import aligned_empty, chunk_parts
from dflash_cache.errors import CacheCorruptError

CHUNK_TOKENS, NUM_CHUNKS, TOKEN_BYTES = 5, 3, 32
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def states() -> np.ndarray:
    """[tokens, 2, 8] of three chunks; every bit pattern may occur, those of NaN too."""
    shape = (CHUNK_TOKENS * NUM_CHUNKS, 2, 16)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8).view(np.uint16)


def open_shard(folder: Path, codec) -> ShardReader:
    """The states' shard, written and opened."""
    writer = ShardWriter(folder / "shard", codec)
    writer.append(np.split(states(), NUM_CHUNKS))
    writer.finish()
    record = SegmentRecord(
        index=0,
        num_sequences=1,
        num_tokens=CHUNK_TOKENS * NUM_CHUNKS,
        chunk_tokens=CHUNK_TOKENS,
        bytes_raw=states().nbytes,
        bytes_stored=writer.size,
        files={},
        shard=(writer.size, writer.index_digest),
        chunk_crcs=tuple(writer.chunk_crcs),
    )
    assert (folder / "shard").stat().st_size == writer.size
    return ShardReader(LocalStorage(folder), "shard", record, codec, CHUNK_TOKENS * TOKEN_BYTES)


def read(shard: ShardReader, start: int, stop: int) -> np.ndarray:
    found = np.empty((stop - start, 2, 8), np.uint16)
    parts = chunk_parts([(start, stop)], CHUNK_TOKENS, TOKEN_BYTES)
    shard.read(parts, found.reshape(-1).view(np.uint8).data)
    return found


@every_codec
def test_any_tokens_are_read_wherever_the_chunks_borders_lie(tmp_path, codec):
    shard = open_shard(tmp_path, codec)
    for start in range(len(states())):
        for stop in range(start + 1, len(states()) + 1):
            assert read(shard, start, stop).tobytes() == states()[start:stop].tobytes()
    assert not list(shard.damaged())


@every_codec
def test_runs_within_a_chunk_are_read_with_the_chunk_once(tmp_path, codec):
    shard, runs = open_shard(tmp_path, codec), [(0, 1), (2, 4), (4, 6), (9, 10), (12, 14)]
    wanted = np.concatenate([states()[start:stop] for start, stop in runs])
    found = np.empty_like(wanted)
    parts = list(chunk_parts(runs, CHUNK_TOKENS, TOKEN_BYTES))
    assert [part.chunk for part in parts] == [0, 1, 2]
    shard.read(parts, found.reshape(-1).view(np.uint8).data)
    assert found.tobytes() == wanted.tobytes()


@every_codec
def test_chunks_begin_at_aligned_places(tmp_path, codec):
    open_shard(tmp_path, codec)
    content = (tmp_path / "shard").read_bytes()
    index = np.frombuffer(content[-NUM_CHUNKS * 16 - 4 : -4], "<u8").reshape(-1, 2)
    assert not (index[:, 0] % ALIGNMENT).any()


@every_codec
def test_every_flipped_bit_is_found_the_zeros_behind_a_chunk_included(tmp_path, codec):
    shard, path = open_shard(tmp_path, codec), tmp_path / "shard"
    whole = path.read_bytes()
    for bit in range(0, 8 * (len(whole) - NUM_CHUNKS * 16 - 4), 3):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        (error,) = shard.damaged()
        with pytest.raises(DamagedChunkError, match=r"chunk \d: the chunk's checksum") as raised:
            read(shard, 0, len(states()))
        assert raised.value.chunk == error.chunk


@every_codec
def test_a_shard_that_is_cut_or_gone_is_an_error(tmp_path, codec):
    shard, path = open_shard(tmp_path, codec), tmp_path / "shard"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CacheCorruptError, match=f"{len(whole) - 1} bytes, expected {len(whole)}"):
        read(shard, 0, 1)
    path.unlink()
    with pytest.raises(CacheCorruptError, match="the file is missing"):
        list(shard.damaged())


def test_a_whole_chunk_in_the_place_of_another_is_found(tmp_path):
    shard, path = open_shard(tmp_path, CODECS["crc32c"]), tmp_path / "shard"
    whole = bytearray(path.read_bytes())
    stride = len(whole[: -NUM_CHUNKS * 16 - 4]) // NUM_CHUNKS
    whole[stride : 2 * stride] = whole[:stride]
    path.write_bytes(whole)
    (error,) = shard.damaged()
    assert error.chunk == 1


def test_memory_for_states_is_aligned():
    for num_tokens in range(1, 40):
        made = aligned_empty((num_tokens, 3, 7), np.uint16)
        assert made.ctypes.data % ALIGNMENT == 0
        assert made.shape == (num_tokens, 3, 7)
